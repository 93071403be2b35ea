"""The kit itself: the cases it makes and its messages, with small components of this file."""

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import Field
from torch import nn

import dither
import dither.testing as kit
from dither.registry import Catalog, Misfit, Slot, Spec, default_catalog
from dither.registry.contracts.records import Noise
from dither.registry.kinds import BlockSpec, HeadSpec, ModelSpec, ScheduleSpec
from dither.testing import CHECKS, Case, parametrize
from dither.testing.conformance import cases
from dither.testing.traits import DECLARED_TRAITS, IMPLIED_TRAITS

torch.set_num_threads(1)


class Mixing(nn.Module):
    """Attention with one head, gated by the condition; starts as the identity."""

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

    name = "mix"
    heads: int = Field(1, ge=1, le=1)
    """Number of heads."""

    def traits(self) -> frozenset[str]:
        return frozenset({"zero-init", "equivariant"})

    def build(self, width: int, cond: int) -> Any:
        return Mixing(width, cond)


class Straight(ScheduleSpec):
    """Linear sigma."""

    name = "straight"
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


FILE = "dither_plugin_kit"  # like components of a file, whose Specs may import torch
sys.modules[FILE] = sys.modules[__name__]
Mix.__module__ = Straight.__module__ = FILE
OURS = catalog_of(Mix, Straight)


@parametrize("ours", catalog=OURS, strict=True)
def test_correct_components_pass_every_check(case):
    case.run()


@pytest.mark.parametrize(
    ("arguments", "code", "suggestion"),
    [
        ({"plugin": "theirs"}, "unknown-plugin", "there is ours"),
        (
            {"expected_failures": {("block:mix", "identity_at_start"): "x"}},
            "unknown-value",
            '"identity_at_init"',
        ),
        (
            {"expected_failures": {("block:mux", "summary"): "x"}},
            "unknown-component",
            '"block:mix"',
        ),
        (
            {"expected_failures": {("schedule:straight", "cached_equals_full"): "x"}},
            "unknown-value",
            "no check",
        ),
        (
            {"expected_failures": {("block:mix", "summary"): " "}},
            "missing-argument",
            "reason",
        ),
        ({"examples": {"block:mux": [{}]}}, "unknown-component", '"block:mix"'),
    ],
)
def test_unknown_names(arguments, code, suggestion, refused):
    with refused(code, match=suggestion):
        parametrize(**{"plugin": "ours", "catalog": OURS, **arguments})


def case_of(spec: type[Spec], check: str, *others: type[Spec], **options) -> Case:
    name = f"{spec.kind}:{spec.name}"
    every = cases("ours", catalog_of(spec, *others), **options)
    (case,) = (case for case in every if (case.name, case.check.name) == (name, check))
    return case


def derived(base: type[Spec], name: str, **attributes: Any) -> type[Spec]:
    attributes = {
        "__module__": base.__module__,
        "__doc__": "Derived.",
        "name": name,
    } | attributes
    return type(name.title(), (base,), attributes)


def test_checks_follow_from_traits():
    def names(spec):
        return {case.check.name for case in cases("ours", catalog_of(spec))}

    dependent = {
        "requested_equals_full",
        "cached_equals_full",
        "identity_at_init",
        "permutation_equivariant",
    }
    dependent |= {
        "distances_matter",
        "grid_distances_matter",
        "weighted_equals_repeated",
    }
    assert names(Mix) - names(derived(Mix, "plain", traits=Spec.traits)) == dependent
    with pytest.raises(pytest.skip.Exception, match="does not declare cache"):
        case_of(Mix, "cached_equals_full").run()


@pytest.mark.slow
def test_a_trait_that_is_never_checked_is_a_failure():
    keeping = derived(Mix, "keeping", traits=lambda self: frozenset({"cache"}))
    with pytest.raises(
        AssertionError, match="declares cache, but the check never applied"
    ):
        case_of(keeping, "cached_equals_full").run()
    misspelt = derived(Mix, "misspelt", traits=lambda self: frozenset({"zero-int"}))
    with pytest.raises(
        AssertionError, match='unknown trait "zero-int"; did you mean "zero-init"'
    ):
        case_of(misspelt, "traits_known").run()


@pytest.mark.slow
def test_an_autoregressive_model_passes():
    options = {
        "block_size": 1,
        "reads": "previous",
        "width": 16,
        "depth": 2,
        "condition": {"use": "none"},
        "block": {"use": "pre-norm", "heads": 2, "rope": True},
        "final": "norm",
    }
    examples = {"model:denoiser": [options]}
    of_models = 0
    for case in cases("core-blocks", default_catalog(), examples, strict=True):
        if case.options and case.check.kind == "model":
            case.run()
            of_models += 1
    assert of_models > 10


def test_every_trait_has_a_check_and_every_check_a_known_trait():
    known = {*IMPLIED_TRAITS}
    for kind, traits in DECLARED_TRAITS.items():
        needed = {trait for c in CHECKS if c.kind == kind for trait in c.needs}
        assert needed >= traits.keys()
        known |= traits.keys()
    for check in CHECKS:
        assert check.needs <= known
        assert check.summary.endswith("."), check.name
    assert len({(check.kind, check.name) for check in CHECKS}) == len(CHECKS)


def test_a_recommended_check_fails_only_under_strict():
    silent = derived(Straight, "silent", __doc__=None)
    with pytest.raises(pytest.xfail.Exception, match="recommended: .*has no docstring"):
        case_of(silent, "summary").run()
    with pytest.raises(AssertionError, match="has no docstring"):
        case_of(silent, "summary", strict=True).run()


@pytest.mark.slow
def test_a_component_that_fits_nowhere_fails():
    picky = derived(Mix, "picky", check=lambda self, width, cond: [Misfit("never")])
    with pytest.raises(AssertionError, match="fits nowhere"):
        case_of(picky, "builds").run()


def test_a_slot_without_components_is_named():
    class Net(ModelSpec):
        """A model with a slot for a head."""

        name = "net"
        head: Slot[HeadSpec]
        """The head."""

        def build(self, space) -> Any: ...

    with pytest.raises(LookupError, match="no head is registered"):
        case_of(Net, "raw_output").run()


THEIRS = """
import torch
from pydantic import Field

from dither.registry import hookimpl
from dither.registry.contracts import Noise
from dither.registry.kinds import ScheduleSpec


class Straight(ScheduleSpec):
    \"\"\"Sigma in a straight line.\"\"\"

    name = "straight"
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


@pytest.mark.slow
def test_expected_failures_of_a_third_party_are_strict(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    Path("theirs.py").write_text(THEIRS)
    expected = {
        ("schedule:straight", "spec_without_torch"): "torch in the same file",
        ("schedule:straight", "grows"): "passes",
    }
    Path("test_theirs.py").write_text(TEST.format(expected=expected))
    plugins = [
        word
        for name in ("cacheprovider", "xdist", "faulthandler")
        for word in ("-p", f"no:{name}")
    ]
    pytest.main(
        [
            *plugins,
            "--rootdir",
            ".",
            "-k",
            "grows or spec_without_torch or precision",
            "test_theirs.py",
        ]
    )
    del sys.modules["theirs"], sys.modules["test_theirs"]
    output = capsys.readouterr().out
    assert "1 failed, 1 passed, " in output
    assert "1 xfailed" in output
    assert "[XPASS(strict)] passes" in output
    assert "schedule:straight-grows" in output
    assert "conformance: 3 checks of 1 components ran, 0 were skipped" in output
    assert (
        "1 failed as expected: schedule:straight spec_without_torch: torch in the same file"
        in output
    )


def test_imports_are_lazy(monkeypatch):
    code = "import sys, dither.testing; print([m for m in ('pytest', 'torch', 'hypothesis') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    for name in kit.__all__:
        assert getattr(kit, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'conform'"):
        _ = kit.conform
    monkeypatch.setattr(dither, "testing", kit)
    for name in [name for name in sys.modules if name.startswith("dither.testing")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pytest", None)
    fresh = importlib.import_module("dither.testing")
    assert fresh is not kit
    assert all(callable(getattr(fresh, name)) for name in ("specs", "spaces", "cleans"))


def test_components_of_a_file_may_import_torch():
    with pytest.raises(pytest.skip.Exception, match="is a file"):
        case_of(derived(Straight, "alone"), "spec_without_torch").run()
    with pytest.raises(AssertionError, match="imports torch"):
        case_of(
            derived(Straight, "alone", __module__="dither.registry.contracts.records"),
            "spec_without_torch",
        ).run()
