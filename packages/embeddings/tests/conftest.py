"""One thread, and the spaces of the tests."""

import pytest
import torch

from dither.registry import Condition, FeatureSpace, Field, Group, TokenSpace

torch.set_num_threads(1)


@pytest.fixture
def graph():
    return TokenSpace(
        (Field("nodes", 4, 6, mask=4, pad=5), Field("edges", 6, 5, mask=3, pad=4))
    )


@pytest.fixture
def text():
    return TokenSpace((Field("text", 6, 3),))


@pytest.fixture
def columns():
    """Features in three groups of columns."""
    groups = (
        Group("motifs", 0, 3),
        Group("accessibility", 3, 4),
        Group("expression", 4, 6),
    )
    return FeatureSpace(5, 6, groups)


@pytest.fixture
def cells():
    """Features with a label per sample and a coordinate per position."""
    conditions = (Condition("cell", 3, ("K562", "HepG2", "hESC")), Condition("centre"))
    return FeatureSpace(5, 2, conditions=conditions)
