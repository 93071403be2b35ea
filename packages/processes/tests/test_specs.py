"""Specs of processes, schedules and samplers: defaults build, and incompatibilities are found without torch."""

from collections.abc import Iterable
from typing import ClassVar

import pytest

from dither.processes.options import MAX_POSITIONS
from dither.processes.schedules.sigma import linear_sigma
from dither.registry.config.errors import Refused
from dither.registry.flow.spaces import Condition, FeatureSpace, Field, Group, TokenSpace
from dither.registry.kinds import ModelFacts, ScheduleSpec
from dither.registry.spec.misfit import Misfit

TOKENS = TokenSpace((Field("nodes", 2, 5, mask=3, pad=4), Field("edges", 3, 4)))
TEXT = TokenSpace((Field("text", 8, 27),))
FEATURES = FeatureSpace(4, 5, (Group("motifs", 0, 4), Group("accessibility", 4, 5)))
SPACES = {
    "hybrid": TOKENS,
    "absorbing": TOKENS,
    "uniform": TOKENS,
    "marginal": TOKENS,
    "gaussian": FEATURES,
    "masked-region": FEATURES,
}


def said(misfits: Iterable[Misfit]) -> list[tuple]:
    return [(misfit.path, misfit.message, misfit.help) for misfit in misfits]


def test_absorbing_appends_masks_and_uniform_does_not(part) -> None:
    assert part("process", "absorbing").facts(TEXT).space == TEXT.with_mask()
    assert part("process", "uniform").facts(TEXT).space == TEXT
    priors = [part("process", name).facts(space).prior for name, space in SPACES.items()]
    assert priors == ["mixture", "mask", "uniform", "frequencies", "gaussian", "hidden"]


@pytest.mark.parametrize(
    ("schedule", "left", "fix"),
    [
        ({"use": "geometric", "sigma_max": 1.0}, "37 %", "sigma_max = 20"),
        ({"use": "linear-sigma", "sigma_max": 2.0}, "14 %", "sigma_max = 20"),
        ({"use": "log-linear", "eps": 0.2}, "20 %", "eps = 1e-3"),
        ({"use": "linear-beta", "steps": 10}, "90 %", "log-linear"),
    ],
)
def test_a_schedule_that_stops_early(part, schedule, left: str, fix: str) -> None:
    for name in ("absorbing", "gaussian", "masked-region"):
        (misfit,) = part("process", name, schedule=schedule).check(SPACES[name])
        assert (misfit.code, misfit.path) == ("signal-left-at-end", ("schedule",))
        assert left in misfit.message
        assert fix in misfit.help
    assert not list(part("process", "uniform", schedule=schedule).check(TOKENS))  # the seed of the language model
    assert not list(part("process", "masked-region", ratio=0.5, schedule=schedule).check(FEATURES))


class FlatSchedule(ScheduleSpec):
    """A third-party schedule that does not state where it ends."""

    name: ClassVar[str] = "flat"
    sigma_max: float = 0.1

    def build(self):
        return linear_sigma(self.sigma_max)


@pytest.mark.parametrize("name", SPACES)
def test_a_schedule_without_sigma_end_is_evaluated_when_built(part, name: str) -> None:
    weak, strong = (
        part("process", name).model_copy(update={"schedule": FlatSchedule(sigma_max=s)}) for s in (0.1, 9.0)
    )
    assert not list(weak.check(SPACES[name]))
    with pytest.raises(Refused) as info:
        weak.build(SPACES[name])
    assert info.value.codes == ["signal-left-at-end"]
    assert info.value.problems[0].path == ("process", "schedule")
    strong.build(SPACES[name])


def test_estimators_that_cannot_be(part) -> None:
    def check(space: TokenSpace = TOKENS, **options) -> list[tuple]:
        return said(part("process", "absorbing", **options).check(space))

    for estimator in ("time", "importance", "mask-count", "exact"):
        assert not check(estimator=estimator)
        assert part("process", "absorbing", estimator=estimator).build(TOKENS).estimator == estimator
    ((path, message, _),) = check(estimator="importance", t_min=0.0)
    assert path == ("estimator",)
    assert not check(TokenSpace((Field("text", MAX_POSITIONS, 3),)), estimator="exact")
    ((path, message, help_text),) = check(TokenSpace((Field("text", 13, 3),)), estimator="exact")
    assert path == ("estimator",)
    assert "at most 12 positions, not of 13" in message
    assert "mask-count" in help_text


def test_frequencies_must_fit(part) -> None:
    def check(**frequencies: list[float]) -> list[tuple]:
        misfits = part("process", "marginal", frequencies=frequencies).check(TOKENS)
        return [(misfit.path[-1], misfit.help) for misfit in misfits]

    assert not check(nodes=[1, 2, 0], edges=[0.1] * 4)
    assert check(nodes=[1.0, 2.0]) == [("nodes", None)]
    assert check(node=[1.0]) == [("node", 'did you mean "nodes"?')]
    assert check(edges=[0.0] * 4)


def test_groups_must_exist(part) -> None:
    def check(**options: str) -> list[tuple]:
        misfits = part("process", "masked-region", **options).check(FEATURES)
        return [(misfit.path, misfit.help) for misfit in misfits]

    assert not check(mask="group", group="accessibility")
    assert check(mask="group", group="accessibilty") == [(("group",), 'did you mean "accessibility"?')]
    assert [path for path, _ in check(mask="group")] == [("mask",)]
    assert [path for path, _ in check(group="motifs")] == [("group",)]


def test_blocks_ask_for_block_causal_attention(part) -> None:
    facts = part("process", "uniform").facts(TEXT)

    def check(block_size: int | None, process=facts, **options) -> list[tuple]:
        misfits = part("sampler", "blocks", **options).check(process, ModelFacts(block_size))
        return [(misfit.path, misfit.help) for misfit in misfits]

    assert not check(16)
    assert not check(12, size=12)
    assert not check(4, size=12, approximate=True)
    assert not check(None, approximate=True)
    assert len(check(None)) == 1
    for size in (12, 16, 4):
        assert check(8, size=size) == [(("size",), "set sampler.size = 8")]
    assert [path for path, _ in check(16, inner="first-hitting")] == [("inner",)]
    assert check(16, process=part("process", "uniform").facts(TOKENS))
    assert check(16, process=part("process", "gaussian").facts(FEATURES))
    assert ("inner",) in [path for path, _ in check(16, inner="blocks")]


def test_blocks_stop_only_where_there_is_an_end(part) -> None:
    for end in (None, 3):
        facts = part("process", "uniform").facts(TokenSpace((Field("text", 20, 5, end=end),)))
        found = said(part("sampler", "blocks", stop=True).check(facts, ModelFacts(16)))
        assert [path for path, *_ in found] == ([("stop",)] if end is None else [])
        assert not said(part("sampler", "blocks").check(facts, ModelFacts(16)))


def test_eps_is_not_divided_by_nothing(part) -> None:
    """x_0 = (x_t - sqrt(1 - alpha) eps) / sqrt(alpha) is beyond float32 where alpha is."""
    from dither.registry.flow.spaces import FeatureSpace

    space, long = FeatureSpace(3, 2), {"use": "geometric", "sigma_max": 100.0}
    (misfit,) = part("process", "gaussian", predict="eps", schedule=long).check(space)
    assert "exp(-sigma / 2)" in misfit.message
    assert not list(part("process", "gaussian", predict="velocity", schedule=long).check(space))
    assert not list(part("process", "gaussian", predict="eps").check(space))


def test_masks_must_make_sense(part) -> None:
    starts = FeatureSpace(4, 5, FEATURES.groups, (Condition("cell", 3), Condition("tss")))

    def check(name: str, space: FeatureSpace = FEATURES, **options) -> list[tuple]:
        return said(part("process", name, **options).check(space))

    for name in ("gaussian", "masked-region"):
        for mask in ("region", "block", "column", "element"):
            assert not check(name, mask=mask, ratio=0.5, exact=True)
        assert not check(name, mask="element", group="motifs")
        assert not check(name, mask="block", block=2)
        assert not check(name, starts, mask="tss", group="accessibility")
        ((path, message, _),) = check(name, mask="tss")
        assert path == ("mask",)
        assert "none" in message
        ((path, message, help_text),) = check(name, mask="column", group="motif")
        assert (path, help_text) == (("group",), 'did you mean "motifs"?')
        ((path, message, _),) = check(name, mask="region", block=3)
        assert path == ("block",)
        ((path, _, help_text),) = check(name, mask="region", group="motifs")
        assert (path, help_text) == (("group",), 'set mask = "group"')
    labels = FeatureSpace(4, 5, conditions=(Condition("tss", 2),))  # one per sample does not say which region
    assert [path for path, *_ in check("masked-region", labels, mask="tss")] == [("mask",)]
    assert [path for path, *_ in check("gaussian", ratio=0.5, exact=True)] == [("ratio",), ("exact",)]
    assert [path for path, *_ in check("gaussian", group="motifs")] == [("group",)]


@pytest.mark.parametrize("name", ["gaussian", "masked-region"])
def test_what_is_given_leaves_nothing_to_hide(part, name: str) -> None:
    space = FeatureSpace(4, 5, FEATURES.groups, (Condition("tss"),), given=("motifs",))
    for mask in ("group", "element", "column", "block", "tss"):
        (misfit,) = part("process", name, mask=mask, group="motifs").check(space)
        assert (misfit.path, misfit.related) == (("group",), ("task", "given"))
        assert 'group = "motifs" leaves nothing to learn' in misfit.message
        assert misfit.help == "groups that are not given: accessibility"
        assert not list(part("process", name, mask=mask, group="accessibility").check(space))
    assert not list(part("process", name, mask="element").check(space)), "the other columns are left"
    every = FeatureSpace(4, 5, FEATURES.groups, given=("motifs", "accessibility"))
    (misfit,) = part("process", name, mask="group", group="accessibility").check(every)
    assert misfit.help == "groups that are not given: none"


def test_gaussian_noise_says_what_scale_it_is_for(part) -> None:
    def warned(name: str, standardised: bool | None) -> list[tuple]:
        space = FeatureSpace(4, 5, standardised=standardised)
        return [(w.related, w.help) for w in part("process", name).warn(space)]

    assert warned("gaussian", False) == [(("task",), "set task.standardise = true")]
    assert not warned("gaussian", True)
    assert not warned("gaussian", None), "nobody knows"
    assert not warned("masked-region", False)


def test_zero_snr_asks_for_velocity(part) -> None:
    """Where nothing is left, eps says nothing of x_0 (Lin et al. 2023)."""
    schedule = {"use": "scaled-linear-beta", "zero_snr": True}
    (misfit,) = part("process", "gaussian", schedule=schedule, predict="eps").check(FEATURES)
    assert misfit.path == ("schedule",)
    assert "velocity" in misfit.help
    assert not list(part("process", "gaussian", schedule=schedule, predict="velocity").check(FEATURES))
    process = part("process", "gaussian", schedule=schedule, predict="velocity").build(FEATURES)
    import torch

    from dither.registry.flow.records import Clean

    noised = process.corrupt(Clean.of(torch.randn(2, 4, 5)), torch.ones(2))
    torch.testing.assert_close(noised.state.x, noised.eps)
    read = process.read(torch.randn(2, 4, 5), noised.state, noised.noise)
    assert (read.x0 + read.eps).isfinite().all()
