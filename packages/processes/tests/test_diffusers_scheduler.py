"""Sampler "diffusers" equals our samplers, serves all Gaussian noise, and refuses what it does not know."""

import sys
import types

import pytest
import torch
from pydantic import ValidationError

from dither.processes.samplers import diffusers_scheduler
from dither.processes.samplers.diffusers_scheduler import SCHEDULERS
from dither.registry import FeatureSpace, default_catalog
from dither.registry.config.errors import Refused
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import ModelFacts

SPACE = FeatureSpace(5, 3)
KNOWN = torch.zeros(4, 5, 3, dtype=torch.bool)
KNOWN[:, 1] = True
LIKE = Clean.of(torch.full((4, 5, 3), 0.3), known=KNOWN)
GAUSSIAN = {"use": "gaussian", "schedule": "linear-beta"}
WITH_SIGNAL = {**GAUSSIAN, "zero_snr": False}
FLOW = {"use": "flow-matching"}


def spec(kind, **options):
    return default_catalog().parse(kind, options)


def states_of(sampler, process):
    """Return the states of a smooth model, which equal seeds make comparable."""
    process = spec("process", **process).build(SPACE)

    def session(state, t):
        raw = torch.sin(2 * state.x + 3 * t[:, None, None]) + 0.1 * state.x
        return process.read(raw, state, process.schedule(t))

    torch.manual_seed(0)
    return list(spec("sampler", **sampler).build()(process, session, LIKE))


def theirs(scheduler, **options):
    return {"use": "diffusers", "scheduler": f"{scheduler}Scheduler", **options}


@pytest.mark.parametrize(
    ("scheduler", "options", "own", "process"),
    [
        ("DDIM", {}, {"use": "ddim"}, GAUSSIAN),
        ("DDIM", {"eta": 0.5}, {"use": "ddim", "eta": 0.5}, GAUSSIAN),
        ("DDIM", {"spacing": "log-snr"}, {"use": "ddim", "spacing": "log-snr"}, FLOW),
        ("DDPM", {}, {"use": "ddim", "eta": 1.0}, WITH_SIGNAL),
        ("DPMSolverMultistep", {}, {"use": "dpm-solver"}, GAUSSIAN),
        ("DPMSolverMultistep", {}, {"use": "dpm-solver"}, FLOW),
        (
            "DPMSolverMultistep",
            {"solver_order": 1},
            {"use": "dpm-solver", "order": 1},
            {**GAUSSIAN, "predict": "eps"},
        ),
        (
            "DPMSolverMultistep",
            {"algorithm_type": "sde-dpmsolver++"},
            {"use": "dpm-solver-sde"},
            {**GAUSSIAN, "predict": "velocity"},
        ),
        ("UniPCMultistep", {}, {"use": "unipc"}, GAUSSIAN),
        (
            "UniPCMultistep",
            {"solver_order": 3},
            {"use": "unipc", "order": 3},
            FLOW,
        ),
        ("EulerDiscrete", {}, {"use": "ddim"}, WITH_SIGNAL),
        ("EulerDiscrete", {}, {"use": "ddim"}, GAUSSIAN),
        ("EulerAncestralDiscrete", {}, {"use": "ddim", "eta": 1.0}, WITH_SIGNAL),
        ("FlowMatchEulerDiscrete", {}, {"use": "ddim"}, FLOW),
        ("FlowMatchEulerDiscrete", {}, {"use": "ddim"}, GAUSSIAN),
    ],
)
def test_steps_equal_our_samplers(scheduler, options, own, process) -> None:
    found = states_of(theirs(scheduler, **options, steps=12), process)
    expected = states_of({**own, "steps": 12}, process)
    assert len(found) == len(expected) == 12
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_heun_equals_ours_on_the_levels_of_edm() -> None:
    grid = {"spacing": "linspace", "t_min": 0.01}
    options = {"steps": 9, "use_karras_sigmas": True, **grid}
    found = states_of(theirs("HeunDiscrete", **options), WITH_SIGNAL)
    sigma = spec("process", **WITH_SIGNAL).build(SPACE).schedule
    level_min = sigma(torch.tensor([0.01]).double()).sigma.expm1().sqrt().item()
    own = {"use": "heun", "steps": 9, "level_max": 1e4, "level_min": level_min}
    expected = states_of(own, WITH_SIGNAL)
    # Theirs also yields the state at which the second slope is taken.
    assert len(found) == 17
    for x, y in zip([*found[1::2], found[-1]], expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


def test_heun_of_flow_matching_equals_our_ode() -> None:
    options = {"steps": 9, "spacing": "linspace", "t_min": 0.01}
    found = states_of(theirs("FlowMatchHeunDiscrete", **options), FLOW)
    expected = states_of({"use": "ode", "steps": 8, "t_min": 0.01}, FLOW)
    for x, y in zip([*found[1::2], found[-1]], expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)


KARRAS = [
    (name, {"use_karras_sigmas": True})
    for name, kind in SCHEDULERS.items()
    if "use_karras_sigmas" in kind.options
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in SCHEDULERS), *KARRAS]
)
@pytest.mark.parametrize("process", [GAUSSIAN, FLOW])
def test_exact_models_of_normal_data(name, options, process) -> None:
    process = spec("process", **process, predict="x0").build(SPACE)

    def session(state, t):
        noise = process.schedule(t)
        a, b = process.scales(noise, state.x)
        gain = a * 0.25 / (a**2 * 0.25 + b**2)
        return process.read(2 + gain * (state.x - 2 * a), state, noise)

    torch.manual_seed(0)
    table = {"use": "diffusers", "scheduler": name, "steps": 60, **options}
    sampler = spec("sampler", **table).build()
    *_, x = sampler(process, session, Clean.of(torch.zeros(2000, 5, 3)))
    assert x.mean().item() == pytest.approx(2, abs=0.02)
    assert x.std().item() == pytest.approx(0.5, abs=0.06)


def codes(**options):
    sampler = spec("sampler", use="diffusers", **options)
    facts = spec("process", **GAUSSIAN).facts(SPACE)
    return [(one.code, one.path) for one in sampler.check(facts, ModelFacts())]


def test_what_a_scheduler_lacks_is_refused_by_name() -> None:
    assert codes() == []
    ddim = {"scheduler": "DDIMScheduler"}
    assert codes(**ddim, eta=0.5) == []
    assert codes(**ddim, solver_order=2) == [("no-effect", ("solver_order",))]
    assert codes(eta=0.0) == [("no-effect", ("eta",))]
    assert codes(solver_type="bh1") == [("unknown-value", ("solver_type",))]
    for option in ({"scheduler": "PNDMScheduler"}, {"beta_start": 0.1}):
        with pytest.raises(ValidationError) as refused:
            spec("sampler", use="diffusers", **option)
        assert [error["loc"] for error in refused.value.errors()] == [tuple(option)]


def test_other_processes_are_refused() -> None:
    facts = spec("process", use="masked-region").facts(SPACE)
    (misfit,) = spec("sampler", use="diffusers").check(facts, ModelFacts())
    assert misfit.code == "process-mismatch"


def test_a_missing_library_is_named_with_the_command(monkeypatch) -> None:
    monkeypatch.setattr(diffusers_scheduler, "find_spec", lambda name: None)
    facts = spec("process", **GAUSSIAN).facts(SPACE)
    (misfit,) = spec("sampler", use="diffusers").check(facts, ModelFacts())
    assert misfit.code == "missing-dependency"
    assert "diffusers" in misfit.help


def test_a_version_without_the_class_is_refused(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", types.ModuleType("diffusers"))
    with pytest.raises(Refused) as refused:
        states_of(theirs("DDIM"), GAUSSIAN)
    assert refused.value.problems[0].code == "missing-dependency"
