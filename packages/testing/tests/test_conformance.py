"""The kit by itself: what it draws, which cases it makes, and what it says. Its parts are small and of this file."""

import math
import subprocess
import sys
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator
from torch import nn

from dither.registry import Catalog, FeatureSpace, Options, Slot, Spec, TokenSpace, named
from dither.registry.flow import Noise
from dither.registry.kinds import BlockSpec, HeadSpec, ModelSpec, ScheduleSpec
from dither.testing import cleans, parametrize, spaces, specs
from dither.testing.conformance import Case, cases

torch.set_num_threads(1)


class Mixing(nn.Module):
    """Attention with one head, gated by the condition; the identity at first."""

    def __init__(self, width: int, cond: int) -> None:
        super().__init__()
        self.qkv, self.gate = nn.Linear(width, 3 * width), nn.Linear(cond, width)
        nn.init.zeros_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, x, c, mask=None, cache=None, layer=0, keep=False):
        q, k, v = self.qkv(x)[:, None].chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0]
        return x + self.gate(c if c.ndim == 3 else c[:, None]) * y


class Mix(BlockSpec):
    """Attention with one head."""

    name: ClassVar[str] = "mix"
    heads: int = Field(1, ge=1, le=1)
    """Number of heads."""

    def build(self, width: int, cond: int) -> Any:
        return Mixing(width, cond)


class Straight(ScheduleSpec):
    """Sigma in a straight line."""

    name: ClassVar[str] = "straight"
    end: float = Field(4.0, gt=0)
    """Sigma at t = 1."""

    def sigma_end(self) -> float:
        return self.end

    def build(self) -> Any:
        return lambda t: Noise(self.end * t, torch.full_like(t, self.end))


def catalog_of(*parts: type[Spec]) -> Catalog:
    catalog = Catalog()
    catalog.add("ours", parts)
    return catalog


OURS = catalog_of(Mix, Straight)
TORCH = {(name, "menu_without_torch"): "Spec and module share this file" for name in ("block:mix", "schedule:straight")}


@parametrize("ours", catalog=OURS, claims={"block:mix": ["identity_at_init"]}, expected_failures=TORCH)
def test_good_parts_pass_every_check(case):
    case.run()


class Every(HeadSpec):
    """One option of each sort."""

    name: ClassVar[str] = "every"
    flag: bool = False
    choice: Literal["a", "b"] = "a"
    size: int = Field(512, ge=8, le=4096)
    even: Annotated[int, Field(ge=2, multiple_of=2)] = 4
    odds: float | None = Field(None, gt=0, lt=1)
    pair: list[Annotated[float, Field(ge=0, le=1)]] = Field([0.5, 0.5], min_length=2, max_length=2)
    low: float = Field(0.0, ge=0)
    high: float = Field(1.0, gt=0)
    schedule: Slot[ScheduleSpec] = named("straight", end=2.0)
    others: list[Slot[BlockSpec]] = []
    path: str = "here"

    class Inner(Options):
        depth: int = Field(1, ge=0)

    inner: Inner = Field(default_factory=Inner)

    @model_validator(mode="after")
    def _in_order(self):
        if self.low >= self.high:
            raise ValueError("low must be below high")
        return self

    def build(self, space, width) -> Any: ...


@pytest.mark.parametrize("small", [True, False])
def test_options_are_drawn_within_bounds_and_all_of_them_vary(small):
    seen: dict[str, set] = {}

    @settings(max_examples=200, database=None)
    @given(specs(Every, catalog_of(Mix, Straight, Every), small=small))
    def draw(spec):
        for key in type(spec).model_fields:
            seen.setdefault(key, set()).add(repr(getattr(spec, key)))
        assert spec.low < spec.high
        if small:
            assert spec.size <= 40

    draw()
    assert {key for key, values in seen.items() if len(values) < 2} == {"path"}
    assert seen["flag"] == {"True", "False"}
    assert "None" in seen["odds"]
    if not small:
        assert "512" in seen["size"]


def test_spaces_of_every_sort_are_drawn():
    seen = set()

    @settings(max_examples=200, database=None)
    @given(spaces())
    def draw(space):
        if isinstance(space, FeatureSpace):
            seen.add("groups" if space.groups else "features")
        else:
            seen.add(len(space.fields))
            seen.update(("mask", f.mask is not None) for f in space.fields)
            seen.update(("pad", f.pad is not None) for f in space.fields)
            if [f.name for f in space.fields] == ["nodes", "edges"]:
                assert space.fields[1].length == math.comb(space.fields[0].length, 2)
                seen.add("graph")

    draw()
    assert seen == {"groups", "features", "graph", 1, 2, 3, *((s, b) for s in ("mask", "pad") for b in (True, False))}


def test_batches_are_of_their_space():
    seen = set()

    @settings(max_examples=150, database=None)
    @given(st.data(), spaces())
    def draw(data, space):
        clean = data.draw(cleans(space))
        rows, length = clean.valid.shape
        assert length == space.length
        assert clean.known.shape == clean.x0.shape
        if isinstance(space, TokenSpace):
            allowed = space.clean().expand(rows, length, -1).gather(-1, clean.x0[..., None])[..., 0]
            assert allowed[clean.valid].all()
            for valid in space.split(clean.valid).values():
                assert (valid.int().diff() <= 0).all()
                assert valid[:, 0].all()
        assert not clean.known[~clean.valid].any()
        seen.update([("known", bool(clean.known.any())), ("padded", not clean.valid.all()), rows])

    draw()
    assert seen == {("known", True), ("known", False), ("padded", True), ("padded", False), 1, 2, 3}


def test_names_that_are_not_known_are_refused():
    for wrong, message in (
        ({"plugin": "theirs"}, 'plugin "theirs" offers nothing; plugins: ours'),
        ({"expected_failures": {("block:mix", "identity"): "x"}}, "block:mix identity"),
        ({"expected_failures": {("block:mux", "summary"): "x"}}, "block:mux summary"),
        ({"claims": {"block:mux": ["identity_at_init"]}}, "offers no block:mux"),
        ({"claims": {"block:mix": ["rows_independent"]}}, "no claim that the kit can check"),
        ({"examples": {"data:files": [{}]}}, "offers no data:files"),
    ):
        with pytest.raises(ValueError, match=message):
            parametrize(**{"plugin": "ours", "catalog": OURS, **wrong})


def test_a_claim_is_checked_only_where_it_is_made():
    assert "identity_at_init" not in {case.check.name for case in cases("ours", OURS, {}, {})}


def test_a_part_that_fits_nowhere_fails():
    class Picky(Mix):
        """It takes no width."""

        name: ClassVar[str] = "picky"

        def check(self, width, cond):
            from dither.registry import Misfit

            yield Misfit("never")

    (case,) = (c for c in cases("ours", catalog_of(Picky), {}, {}) if c.check.name == "builds")
    with pytest.raises(AssertionError, match="fits nowhere"):
        case.run()


def test_a_model_without_parts_to_draw_is_said_to_lack_them():
    class Net(ModelSpec):
        """A model with a place for a head."""

        name: ClassVar[str] = "net"
        head: Slot[HeadSpec]
        """The head."""

        def build(self, space) -> Any: ...

    found = {case.check.name: case for case in cases("ours", catalog_of(Net), {}, {})}
    with pytest.raises(LookupError, match="no head is registered"):
        found["raw_output"].run()


PLUGIN_TEST = """
import sys
sys.path.insert(0, {folder!r})
import test_conformance as ours
from dither.testing import parametrize

@parametrize("ours", catalog=ours.catalog_of(ours.Straight), expected_failures={expected})
def test_parts(case):
    case.run()
"""


def run_outside(tmp_path, expected: dict) -> str:
    from pathlib import Path

    (tmp_path / "test_theirs.py").write_text(PLUGIN_TEST.format(folder=str(Path(__file__).parent), expected=expected))
    (tmp_path / "conftest.py").write_text("from dither.testing.conformance import pytest_terminal_summary\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "--rootdir",
        ".",
        "test_theirs.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def test_a_stranger_runs_the_kit_and_expected_failures_are_strict(tmp_path):
    torch_there = ("schedule:straight", "menu_without_torch")
    expected = {torch_there: TORCH[torch_there], ("schedule:straight", "grows"): "it does not fail"}
    said = run_outside(tmp_path, expected)
    assert "1 failed, 11 passed, 1 xfailed" in said
    assert "[XPASS(strict)] it does not fail" in said
    assert "schedule:straight-grows" in said
    assert "conformance: 13 checks ran over 1 parts, 0 skipped" in said


def test_reasons_of_skipped_checks_are_kept():
    class Alone(Straight):
        """A schedule of a file."""

        name: ClassVar[str] = "alone"

    Alone.__module__ = "dither_file_plugin_alone"
    sys.modules["dither_file_plugin_alone"] = sys.modules[__name__]
    (case,) = (c for c in cases("ours", catalog_of(Alone), {}, {}) if c.check.name == "menu_without_torch")
    assert isinstance(case, Case)
    with pytest.raises(pytest.skip.Exception, match="is a file"):
        case.run()
