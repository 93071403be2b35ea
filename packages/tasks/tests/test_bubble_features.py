"""Features of rendered plans, and distances in them."""

from types import SimpleNamespace

import numpy as np
import pytest

from dither.registry.kinds import DataSpec
from dither.tasks.bubble_diagram.plan_features import (
    OUTSIDE,
    SIDE,
    grid_shares,
    plan_features,
    plan_image,
    type_map,
)
from dither.tasks.bubble_diagram.specs import BubbleDiagram, ProceduralPlans
from dither.tasks.bubble_diagram.vocabulary import COLOURS
from dither.tasks.feature_distances import frechet_distance

LIVING, KITCHEN, BATHROOM = 0, 2, 3
PLANS = ProceduralPlans(train=20, valid=120, test=80)


def test_a_plan_is_drawn_in_the_middle():
    """A kitchen above a living room that is also behind it; a bathroom in a corner of the kitchen."""
    types = (LIVING, KITCHEN, BATHROOM)
    boxes = np.array([[10, 0, 138, 128], [10, 0, 138, 64], [10, 0, 74, 32]])
    for shift in (0, 100):
        kinds = type_map(types, boxes + shift)
        assert kinds.shape == (256, 256)
        assert (kinds[64:192, 64:192] != OUTSIDE).all()
        assert (kinds == BATHROOM).sum() == 64 * 32
        assert (kinds == KITCHEN).sum() == 64 * 128 - 64 * 32
        assert (kinds == LIVING).sum() == 64 * 128

    shares = grid_shares(kinds).reshape(4, 4, OUTSIDE) / OUTSIDE**0.5
    assert shares[1, 1, [KITCHEN, BATHROOM]].tolist() == [0.5, 0.5]
    assert shares[2, 1, LIVING] == 1
    assert shares.sum() == 4
    image = plan_image(kinds)
    assert image.shape == (SIDE, SIDE, 3)
    assert (image[0] == 1).all()
    colour = [int(COLOURS[BATHROOM][k : k + 2], 16) / 255 for k in (1, 3, 5)]
    np.testing.assert_allclose(image[17, 17], colour)
    # A plan larger than 18 m fills the square.
    kinds = type_map((LIVING,), np.array([[0, 0, 900_000, 450_000]]))
    assert (kinds[64:192] == LIVING).all()
    assert (kinds == LIVING).sum() == 128 * 256


def samples_of(plans, change=lambda kind: kind):
    samples = []
    for types, boxes in zip(plans.types, plans.boxes, strict=True):
        real = types <= 12
        diagram = SimpleNamespace(types=[change(kind) for kind in types[real].tolist()])
        placed = SimpleNamespace(diagram=diagram, boxes=boxes[real])
        samples.append(SimpleNamespace(level=5, placement=placed))
    return samples


def test_distances_of_layouts_from_real_plans():
    task = BubbleDiagram(data=PLANS).build()
    valid, test = task._reference.held
    same = task._plan_distances(samples_of(test))
    for name in ("plan_frechet", "plan_kid"):
        assert same[name] == same[f"{name}_floor"]
    copies = task._plan_distances(samples_of(valid))
    assert copies["plan_frechet"] == pytest.approx(0, abs=1e-6)

    wrong = samples_of(test, lambda kind: BATHROOM if kind == KITCHEN else kind)
    metrics = task._plan_distances(wrong)
    assert metrics["plan_frechet"] > 1.2 * metrics["plan_frechet_floor"]
    assert metrics["plan_kid"] > 0.003 + metrics["plan_kid_floor"]
    # The floor has as many plans as there are buildable samples.
    few = [SimpleNamespace(level=4, placement=wrong[0].placement), *wrong[:30]]
    floor = task._plan_distances(few)["plan_frechet_floor"]
    real = [
        (plan.placement.diagram.types, plan.placement.boxes)
        for plan in samples_of(test)
    ]
    features = [plan_features(plans, None) for plans in (real[:30],)]
    assert floor == frechet_distance(features[0], task._plan_features[0])
    assert task._plan_distances(wrong[:1]) == {}


class MeanColour(DataSpec):
    """Mean red, green and blue."""

    name = "mean-colour"
    gives = "image-features"

    def build(self):
        def features(images):
            assert images.shape[1:] == (SIDE, SIDE, 3)
            assert 0 <= images.min() < images.max() <= 1
            return images.mean((1, 2))

        return features


def test_features_of_a_component():
    task = BubbleDiagram(data=PLANS, extractor=MeanColour()).build()
    assert task._plan_features[0].shape == (120, 3)
    assert task._plan_distances(samples_of(task._reference.held[1]))["plan_kid"] < 0.01
    without = BubbleDiagram(data=PLANS, extractor=MeanColour()).build()
    for plans in without._reference.held:
        plans.boxes[:] = 0
    assert without._plan_distances([]) == {}
    misfits = [*BubbleDiagram(extractor=PLANS).check()]
    assert [(misfit.code, misfit.path) for misfit in misfits] == [
        ("wrong-kind", ("extractor",))
    ]
