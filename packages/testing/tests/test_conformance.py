"""The kit by itself: what it draws, which cases it makes, and what it says. Its parts are small and of this file."""

import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, model_validator
from torch import nn

import dither.testing as kit
from dither.registry import Catalog, FeatureSpace, Misfit, Options, Slot, Spec, TokenSpace, named
from dither.registry.flow.records import Noise
from dither.registry.kinds import BlockSpec, HeadSpec, ModelSpec
from dither.registry.kinds.process import ScheduleSpec
from dither.testing import CHECKS, Case, cleans, parametrize, spaces, specs
from dither.testing.conformance import cases
from dither.testing.summary import lines
from dither.testing.traits import DECLARED_TRAITS, IMPLIED_TRAITS

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

    def traits(self) -> frozenset[str]:
        return frozenset({"zero-init", "equivariant"})

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


sys.modules["dither.registry.plugins.plugin_files.kit"] = sys.modules[__name__]
Mix.__module__ = Straight.__module__ = (
    "dither.registry.plugins.plugin_files.kit"  # as the parts of a file are, whose Specs may use torch
)
OURS = catalog_of(Mix, Straight)


@parametrize("ours", catalog=OURS, strict=True)
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


def test_names_that_are_not_known_are_refused_with_the_nearest():
    for wrong, message in (
        ({"plugin": "theirs"}, 'plugin "theirs" offers nothing; there is ours'),
        ({"plugin": "our"}, 'did you mean "ours"'),
        ({"expected_failures": {("block:mix", "identity_at_start"): "x"}}, 'did you mean "identity_at_init"'),
        ({"expected_failures": {("block:mux", "summary"): "x"}}, 'offers no block:mux; did you mean "block:mix"'),
        ({"expected_failures": {("schedule:straight", "cached_equals_full"): "x"}}, "has no check"),
        ({"expected_failures": {("block:mix", "summary"): " "}}, "for no reason"),
        ({"examples": {"block:mux": [{}]}}, 'did you mean "block:mix"'),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            parametrize(**{"plugin": "ours", "catalog": OURS, **wrong})


def case_of(spec: type[Spec], check: str, *others: type[Spec], **options) -> Case:
    name = f"{spec.kind}:{spec.name}"
    (case,) = (
        c for c in cases("ours", catalog_of(spec, *others), **options) if (c.name, c.check.name) == (name, check)
    )
    return case


def test_checks_follow_from_what_is_declared():
    class Plain(Mix):
        """It promises nothing."""

        name: ClassVar[str] = "plain"
        traits = Spec.traits

    def names(spec):
        return {case.check.name for case in cases("ours", catalog_of(spec))}

    promised = {"asked_equals_full", "cached_equals_full", "identity_at_init", "permutation_equivariant"}
    promised |= {"distances_matter", "weighted_equals_repeated"}
    assert promised <= names(Mix)
    assert not promised & names(Plain)
    assert names(Mix) - names(Plain) == promised
    with pytest.raises(pytest.skip.Exception, match="does not declare cache"):
        case_of(Mix, "cached_equals_full").run()


def test_what_is_declared_and_cannot_be_checked_is_a_failure():
    class Keeping(Mix):
        """It promises to work behind a cache, and there is no model to try it in."""

        name: ClassVar[str] = "keeping"

        def traits(self) -> frozenset[str]:
            return frozenset({"cache"})

    class Misspelt(Mix):
        """It promises what nobody knows."""

        name: ClassVar[str] = "misspelt"

        def traits(self) -> frozenset[str]:
            return frozenset({"zero-int"})

    with pytest.raises(AssertionError, match="declares cache, but this never ran: no model is installed"):
        case_of(Keeping, "cached_equals_full").run()
    with pytest.raises(AssertionError, match='"zero-int" is promised.*did you mean "zero-init"'):
        case_of(Misspelt, "promises_checked").run()


def test_every_trait_has_a_check_and_every_check_a_known_trait():
    assert {(check.kind, trait) for check in CHECKS for trait in check.needs} >= set(DECLARED_TRAITS)
    known = {*IMPLIED_TRAITS, *(trait for _, trait in DECLARED_TRAITS)}
    for check in CHECKS:
        assert check.needs <= known
        assert check.summary.endswith("."), check.name
    assert len({(check.kind, check.name) for check in CHECKS}) == len(CHECKS)


def test_a_recommended_check_fails_only_under_strict():
    class Silent(Straight):
        name: ClassVar[str] = "silent"

    Silent.__doc__ = None
    with pytest.raises(pytest.xfail.Exception, match="recommended: .*has no docstring"):
        case_of(Silent, "summary").run()
    with pytest.raises(AssertionError, match="has no docstring"):
        case_of(Silent, "summary", strict=True).run()


def test_a_part_that_fits_nowhere_fails():
    class Picky(Mix):
        """It takes no width."""

        name: ClassVar[str] = "picky"

        def check(self, width, cond):
            yield Misfit("never")

    with pytest.raises(AssertionError, match="fits nowhere"):
        case_of(Picky, "builds").run()


def test_a_model_without_parts_to_draw_is_said_to_lack_them():
    class Net(ModelSpec):
        """A model with a place for a head."""

        name: ClassVar[str] = "net"
        head: Slot[HeadSpec]
        """The head."""

        def build(self, space) -> Any: ...

    with pytest.raises(LookupError, match="no head is registered"):
        case_of(Net, "raw_output").run()


THEIRS = """
from typing import ClassVar

import torch
from pydantic import Field

from dither.registry import hookimpl
from dither.registry.flow import Noise
from dither.registry.kinds import ScheduleSpec


class Straight(ScheduleSpec):
    \"\"\"Sigma in a straight line.\"\"\"

    name: ClassVar[str] = "straight"
    end: float = Field(4.0, gt=0)
    \"\"\"Sigma at t = 1.\"\"\"

    def build(self):
        return lambda t: Noise(self.end * t, torch.full_like(t, self.end))
"""
TEST = """
import theirs
from dither.registry import Catalog
from dither.testing import conformance

catalog = Catalog()
catalog.add("theirs", [theirs.Straight])


@conformance.parametrize(plugin="theirs", catalog=catalog, expected_failures={expected})
def test_conformance(case):
    case.run()
"""
OUTSIDE = """
from dither.testing import conformance


@conformance.parametrize(plugin="{plugin}")
def test_conformance(case):
    case.run()
"""


def pytest_in(folder, *arguments: str) -> str:
    """Run pytest in a folder that is not of this repository, where our conftest and settings are not."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    there = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHONPATH"))}
    done = subprocess.run(
        [*command, "--rootdir", ".", *arguments], cwd=folder, capture_output=True, text=True, check=False, env=there
    )
    return done.stdout + done.stderr


def test_a_stranger_runs_the_kit_and_expected_failures_are_strict(tmp_path):
    (tmp_path / "theirs.py").write_text(THEIRS)
    expected = {
        ("schedule:straight", "menu_without_torch"): "Spec and module share a file",
        ("schedule:straight", "grows"): "it does not fail",
    }
    (tmp_path / "test_theirs.py").write_text(TEST.format(expected=expected))
    said = pytest_in(tmp_path, "test_theirs.py")
    checks = sum(check.kind in ("any", "schedule") for check in CHECKS)
    assert f"1 failed, {checks - 2} passed, 1 xfailed" in said
    assert "[XPASS(strict)] it does not fail" in said
    assert "schedule:straight-grows" in said
    assert f"conformance: {checks} checks ran over 1 parts, 0 skipped" in said
    assert "1 failed as expected: schedule:straight menu_without_torch: Spec and module share a file" in said


def test_the_kit_runs_outside_this_repository(tmp_path):
    (tmp_path / "test_ours.py").write_text(OUTSIDE.format(plugin="engine"))
    said = pytest_in(tmp_path, "test_ours.py")
    assert " passed" in said, said
    assert "failed" not in said, said
    assert re.search(r"conformance: \d+ checks ran over \d+ parts, \d+ skipped", said), said


def test_the_summary_counts_and_gives_reasons():
    def report(check, when="call", longrepr=None, **more):
        return SimpleNamespace(nodeid=f"test_x.py::test_y[block:mix-{check}]", when=when, longrepr=longrepr, **more)

    skipped = report("cached_equals_full", longrepr=("x.py", 3, "Skipped: does not declare cache"))
    stats = {"passed": [report("summary"), report("summary", "setup")], "skipped": [skipped], "error": [object()]}
    assert lines(stats) == [
        "conformance: 1 checks ran over 1 parts, 1 skipped",
        "  1 skipped: does not declare cache",
    ]
    assert lines({"passed": [SimpleNamespace(nodeid="test_x.py::test_z[1-2]", when="call")]}) == []


def test_importing_the_kit_imports_neither_pytest_nor_torch():
    code = "import sys, dither.testing; print([m for m in ('pytest', 'torch', 'hypothesis') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    code = "import sys; sys.modules['pytest'] = None; from dither.testing import CHECKS, specs, spaces, cleans"
    subprocess.run([sys.executable, "-c", code], check=True)
    for name in kit.__all__:
        assert getattr(kit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'conform'"):
        _ = kit.conform


def test_parts_of_a_file_need_no_menu_without_torch():
    class Alone(Straight):
        """A schedule of a file."""

        name: ClassVar[str] = "alone"

    Alone.__module__ = "dither.registry.plugins.plugin_files.kit"
    with pytest.raises(pytest.skip.Exception, match="is a file"):
        case_of(Alone, "menu_without_torch").run()
    Alone.__module__ = "dither.registry.flow.records"
    with pytest.raises(AssertionError, match=r"importing dither.registry.flow imports torch"):
        case_of(Alone, "menu_without_torch").run()


def test_every_check_is_in_the_docs():
    page = (Path(__file__).parents[3] / "docs" / "conformance.md").read_text("utf-8")
    rows = [tuple(cell.strip(" `") for cell in re.split(r"(?<!\\)\|", line)[1:-1]) for line in page.splitlines()]
    told = {tuple(cell.replace("\\|", "|") for cell in row) for row in rows if len(row) == 5}
    ours = {(c.kind, c.name, ", ".join(sorted(c.needs)), c.level, c.summary) for c in CHECKS}
    assert ours <= told, sorted(ours - told)
    assert len(told - ours) <= 2, sorted(told - ours)
    for kind, trait in DECLARED_TRAITS:
        assert (kind, trait, DECLARED_TRAITS[kind, trait]) in rows
    for trait, who in IMPLIED_TRAITS.items():
        assert ("", trait, who.replace("`", "")) in [tuple(cell.replace("`", "") for cell in row) for row in rows]
