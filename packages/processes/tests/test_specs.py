"""Specs of processes, schedules and samplers: defaults build, and incompatibilities are found without torch."""

import pytest
from pydantic import ValidationError

from dither.processes.options import MAX_POSITIONS
from dither.processes.schedules.sigma import LinearSigma
from dither.registry import default_catalog
from dither.registry.config.errors import Refused
from dither.registry.contracts.spaces import (
    Condition,
    FeatureSpace,
    Field,
    Group,
    TokenSpace,
)
from dither.registry.kinds import ModelFacts, ScheduleSpec

TOKENS = TokenSpace((Field("nodes", 2, 5, mask=3, pad=4), Field("edges", 3, 4)))
TEXT = TokenSpace((Field("text", 8, 27),))
FEATURES = FeatureSpace(4, 5, (Group("motifs", 0, 4), Group("accessibility", 4, 5)))
SPACES = {
    "gidd": TOKENS,
    "hybrid": TOKENS,
    "absorbing": TOKENS,
    "uniform": TOKENS,
    "marginal": TOKENS,
    "gaussian": FEATURES,
    "masked-region": FEATURES,
}


def test_absorbing_appends_masks_and_uniform_does_not(part) -> None:
    assert part("process", "absorbing").facts(TEXT).space == TEXT.with_mask()
    assert part("process", "uniform").facts(TEXT).space == TEXT
    priors = [
        part("process", name).facts(space).prior for name, space in SPACES.items()
    ]
    assert priors == [
        "mixture",
        "mixture",
        "mask",
        "uniform",
        "frequencies",
        "gaussian",
        "hidden",
    ]


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
    assert not list(
        part("process", "uniform", schedule=schedule).check(TOKENS)
    )  # the seed of the language model
    assert not list(
        part("process", "masked-region", ratio=0.5, schedule=schedule).check(FEATURES)
    )


class FlatSchedule(ScheduleSpec):
    """A third-party schedule that does not state where it ends."""

    name = "flat"
    sigma_max: float = 0.1

    def build(self):
        return LinearSigma(sigma_max=self.sigma_max).build()


@pytest.mark.parametrize("name", SPACES)
def test_a_schedule_without_sigma_end_is_evaluated_when_built(part, name: str) -> None:
    weak, strong = (
        part("process", name).model_copy(update={"schedule": FlatSchedule(sigma_max=s)})
        for s in (0.1, 9.0)
    )
    assert not list(weak.check(SPACES[name]))
    with pytest.raises(Refused) as info:
        weak.build(SPACES[name])
    assert info.value.codes == ["signal-left-at-end"]
    assert info.value.problems[0].path == ("process", "schedule")
    strong.build(SPACES[name])


def test_zero_snr_asks_for_velocity(part) -> None:
    """Where nothing is left, eps says nothing of x_0 (Lin et al. 2023)."""
    schedule = {"use": "scaled-linear-beta", "zero_snr": True}
    (misfit,) = part("process", "gaussian", schedule=schedule, predict="eps").check(
        FEATURES
    )
    assert misfit.path == ("schedule",)
    assert "velocity" in misfit.help
    assert not list(
        part("process", "gaussian", schedule=schedule, predict="velocity").check(
            FEATURES
        )
    )
    process = part("process", "gaussian", schedule=schedule, predict="velocity").build(
        FEATURES
    )
    import torch

    from dither.registry.contracts.records import Clean

    noised = process.corrupt(Clean.of(torch.randn(2, 4, 5)), torch.ones(2))
    torch.testing.assert_close(noised.state.x, noised.eps)
    read = process.read(torch.randn(2, 4, 5), noised.state, noised.noise)
    assert (read.x0 + read.eps).isfinite().all()


STARTS = FeatureSpace(4, 5, FEATURES.groups, (Condition("cell", 3), Condition("tss")))
LABELS = FeatureSpace(
    4, 5, conditions=(Condition("tss", 2),)
)  # one per sample does not say which region
GIVEN = FeatureSpace(4, 5, FEATURES.groups, (Condition("tss"),), given=("motifs",))
LONG = TokenSpace((Field("text", 13, 3),))
FAR = {"use": "geometric", "sigma_max": 100.0}
PROCESSES = [
    *(
        ("absorbing", TOKENS, {"estimator": e}, [], "")
        for e in ("time", "importance", "mask-count", "exact")
    ),
    ("absorbing", TOKENS, {"estimator": "importance", "t_min": 0.0}, ["estimator"], ""),
    (
        "absorbing",
        TokenSpace((Field("text", MAX_POSITIONS, 3),)),
        {"estimator": "exact"},
        [],
        "",
    ),
    ("absorbing", LONG, {"estimator": "exact"}, ["estimator"], "mask-count"),
    (
        "marginal",
        TOKENS,
        {"frequencies": {"nodes": [1, 2, 0], "edges": [0.1] * 4}},
        [],
        "",
    ),
    ("marginal", TOKENS, {"frequencies": {"nodes": [1.0, 2.0]}}, ["nodes"], ""),
    (
        "marginal",
        TOKENS,
        {"frequencies": {"node": [1.0]}},
        ["node"],
        'did you mean "nodes"?',
    ),
    ("marginal", TOKENS, {"frequencies": {"edges": [0.0] * 4}}, ["edges"], ""),
    # x_0 = (x_t - sqrt(1 - alpha) eps) / sqrt(alpha) is beyond float32 where alpha is
    ("gaussian", FEATURES, {"predict": "eps", "schedule": FAR}, ["schedule"], ""),
    ("gaussian", FEATURES, {"predict": "velocity", "schedule": FAR}, [], ""),
    ("gaussian", FEATURES, {"predict": "eps"}, [], ""),
    ("gaussian", FEATURES, {"ratio": 0.5, "exact": True}, ["ratio", "exact"], ""),
    ("gaussian", FEATURES, {"group": "motifs"}, ["group"], ""),
    ("masked-region", FEATURES, {"mask": "group"}, ["mask"], ""),
    ("masked-region", FEATURES, {"group": "motifs"}, ["group"], ""),
    ("masked-region", LABELS, {"mask": "tss"}, ["mask"], ""),
]
MASKS = [
    *(
        (FEATURES, {"mask": mask, "ratio": 0.5, "exact": True}, [], "")
        for mask in ("region", "block", "column")
    ),
    (FEATURES, {"mask": "element", "group": "motifs"}, [], ""),
    (FEATURES, {"mask": "block", "block": 2}, [], ""),
    (FEATURES, {"mask": "group", "group": "accessibility"}, [], ""),
    (
        FEATURES,
        {"mask": "group", "group": "accessibilty"},
        ["group"],
        'did you mean "accessibility"?',
    ),
    (
        FEATURES,
        {"mask": "column", "group": "motif"},
        ["group"],
        'did you mean "motifs"?',
    ),
    (FEATURES, {"mask": "region", "block": 3}, ["block"], ""),
    (FEATURES, {"mask": "region", "group": "motifs"}, ["group"], 'set mask = "group"'),
    (FEATURES, {"mask": "tss"}, ["mask"], ""),
    (STARTS, {"mask": "tss", "group": "accessibility"}, [], ""),
    *(
        (GIVEN, {"mask": m, "group": "motifs"}, ["group"], "accessibility")
        for m in ("group", "element", "block", "tss")
    ),
    (GIVEN, {"mask": "group", "group": "accessibility"}, [], ""),
    (GIVEN, {"mask": "element"}, [], ""),
]
"""Options that processes of features share."""
PROCESSES += [(name, *row) for name in ("gaussian", "masked-region") for row in MASKS]


@pytest.mark.parametrize(("name", "space", "options", "paths", "help_text"), PROCESSES)
def test_options_of_processes(
    part, name: str, space, options: dict, paths: list[str], help_text: str
) -> None:
    misfits = list(part("process", name, **options).check(space))
    assert [misfit.path[-1] for misfit in misfits] == paths
    assert all(help_text in (misfit.help or "") for misfit in misfits)


ENDED = TokenSpace((Field("text", 20, 5, end=3),))
SAMPLERS = [
    ("blocks", "uniform", 16, {}, []),
    ("blocks", "uniform", 12, {"size": 12}, []),
    ("blocks", "uniform", 4, {"size": 12, "approximate": True}, []),
    ("blocks", "uniform", None, {"approximate": True}, []),
    ("blocks", "uniform", None, {}, [()]),
    *(("blocks", "uniform", 8, {"size": size}, [("size",)]) for size in (12, 16, 4)),
    ("blocks", "uniform", 16, {"inner": "first-hitting"}, [("inner",)]),
    ("blocks", "uniform", 16, {"stop": True}, [("stop",)]),
    ("ddim", "gaussian", None, {"t_min": 0.1}, [("t_min",)]),
    ("ddim", "gaussian", None, {"t_min": 0.01, "spacing": "leading"}, []),
    ("ordered-regions", "masked-region", None, {"draws": 3}, [("draws",)]),
    ("ordered-regions", "masked-region", None, {"draws": 3, "by": "spread"}, []),
    ("ordered", "absorbing", None, {"threshold": 0.9}, []),
    ("ordered", "absorbing", None, {"entropy_bound": 0.1, "by": "entropy"}, []),
    ("ordered", "absorbing", None, {"threshold": 0.9, "steps": 3}, [("steps",)]),
    (
        "ordered",
        "absorbing",
        None,
        {"threshold": 0.9, "by": "margin", "noise": 1.0},
        [("threshold",)] * 2,
    ),
    (
        "ordered",
        "absorbing",
        None,
        {"threshold": 0.9, "entropy_bound": 0.1},
        [("entropy_bound",)],
    ),
    ("ordered", "absorbing", None, {"by": "random", "noise": 1.0}, [("noise",)]),
    ("ordered", "absorbing", None, {"by": "random", "stop": 1.0}, [("stop",)]),
    ("ordered", "uniform", None, {"threshold": 0.9, "steps": 3, "stop": 0.1}, []),
    *((name, "uniform", None, {}, [()]) for name in ("remdm", "first-hitting")),
    ("semi-autoregressive", "absorbing", None, {}, []),
    ("semi-autoregressive", "hybrid", None, {}, [()]),
    ("semi-autoregressive", "absorbing", 4, {}, [()]),
    ("semi-autoregressive", "absorbing", None, {"approximate": True}, []),
    ("self-correct", "hybrid", None, {}, []),
    ("self-correct", "absorbing", None, {}, [()]),
    ("particle-gibbs", "uniform", None, {"top_k": 2}, [("top_k",)]),
    ("remdm", "absorbing", None, {"t_on": 0.4}, [("t_on",)]),
    ("remdm", "absorbing", None, {"strategy": "loop", "t_on": 0.4}, []),
    ("remdm", "absorbing", None, {"strategy": "loop", "t_min": 0.05}, [("t_min",)]),
    ("ode", "flow-matching", None, {}, []),
    ("repaint", "flow-matching", None, {}, [()]),
    ("ode", "flow-matching", None, {"tolerance": 1e-3}, [("tolerance",)]),
    ("ode", "absorbing", None, {}, [()]),
]


@pytest.mark.parametrize(
    ("sampler", "process", "block_size", "options", "paths"), SAMPLERS
)
def test_options_of_samplers(
    part, sampler: str, process: str, block_size, options: dict, paths: list[tuple]
) -> None:
    space = (
        FEATURES if process in ("gaussian", "masked-region", "flow-matching") else TEXT
    )
    spec, facts = (
        part("sampler", sampler, **options),
        part("process", process).facts(space),
    )
    assert [
        misfit.path for misfit in spec.check(facts, ModelFacts(block_size))
    ] == paths


def test_samplers_that_need_more_than_one_option(part) -> None:
    ended = part("process", "uniform").facts(ENDED)
    assert not list(part("sampler", "blocks", stop=True).check(ended, ModelFacts(16)))
    velocity = part("process", "flow-matching", predict="x0").facts(FEATURES)
    assert [
        m.path for m in part("sampler", "ode", t_min=0.0).check(velocity, ModelFacts())
    ] == [("t_min",)]
    uniform, absorbing = (
        part("process", name).facts(TEXT) for name in ("uniform", "absorbing")
    )
    for name, inner, facts in (
        ("semi-autoregressive", "blocks", absorbing),
        ("self-correct", "self-correct", uniform),
    ):
        assert ("inner",) in [
            m.path
            for m in part("sampler", name, inner=inner).check(facts, ModelFacts())
        ]
    assert (
        len(
            list(
                part("sampler", "particle-gibbs").check(
                    uniform, ModelFacts(reads_known=True)
                )
            )
        )
        == 1
    )
    cached = part("sampler", "semi-autoregressive", approximate=True)
    assert [m.path for m in cached.check(absorbing, ModelFacts(cache=False))] == [
        ("approximate",)
    ]
    assert [m.path for m in cached.warn(absorbing, ModelFacts())] == [("approximate",)]
    assert not cached.traits()
    for strategy, warned in (("conf", 1), ("conf-compensated", 1), ("cap", 0)):
        assert (
            len(
                list(
                    part("sampler", "remdm", strategy=strategy).warn(
                        absorbing, ModelFacts()
                    )
                )
            )
            == warned
        )
    with pytest.raises(ValueError, match="must be below t_on"):
        part("sampler", "remdm", t_on=0.1, t_off=0.2)
    for standardised, warned in ((False, 1), (True, 0), (None, 0)):
        space = FeatureSpace(4, 5, standardised=standardised)
        assert len(list(part("process", "gaussian").warn(space))) == warned
        assert not list(part("process", "masked-region").warn(space))


def test_the_loop_of_remdm_begins_after_the_first_tokens_are_shown() -> None:
    """At t = 1 all is masked, so that the share `alpha_on` cannot be shown."""
    loop = {"use": "remdm", "strategy": "loop"}
    assert default_catalog().parse("sampler", {**loop, "t_on": 0.99}).t_on == 0.99
    with pytest.raises(ValidationError, match="t_on"):
        default_catalog().parse("sampler", {**loop, "t_on": 1.0})
