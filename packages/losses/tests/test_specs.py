"""Specs of losses: incompatible processes are rejected without torch."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dither.losses.specs import (
    BCE,
    MSE,
    FlowKL,
    Huber,
    Hybrid,
    MaskedCE,
    Poisson,
    ScoreEntropy,
    check_experiment,
    register_components,
)
from dither.registry.contracts.spaces import FeatureSpace, Field, TokenSpace
from dither.registry.kinds import HeadSpec, ModelSpec, ProcessFacts
from dither.registry.spec.option_docs import docs_of

TEXT, REGIONS = TokenSpace((Field("text", 4, 9, mask=8),)), FeatureSpace(4, 5)
FACTS = {
    "absorbing": ProcessFacts("absorbing", TEXT, "posterior", "mask"),
    "absorbing-score": ProcessFacts("absorbing", TEXT, "score", "mask"),
    "absorbing-plug-in": ProcessFacts("absorbing", TEXT, "plug-in", "mask"),
    "uniform": ProcessFacts("uniform", TEXT, "posterior", "uniform"),
    "uniform-score": ProcessFacts("uniform", TEXT, "score", "uniform"),
    "marginal": ProcessFacts("marginal", TEXT, "score", "frequencies"),
    "gaussian": ProcessFacts("gaussian", REGIONS, "velocity", "gaussian"),
    "masked-region": ProcessFacts("masked-region", REGIONS, "x0", "hidden"),
    "learned-variance": ProcessFacts(
        "learned-variance", replace(REGIONS, outputs=2), "x0", "gaussian"
    ),
}


TOKEN_FACTS = {name for name, facts in FACTS.items() if facts.space is TEXT}


@pytest.mark.parametrize("spec", register_components(), ids=lambda spec: spec.name)
@pytest.mark.parametrize("name", FACTS)
def test_who_serves_whom(spec, name: str) -> None:
    allowed = {
        MaskedCE: {"absorbing", "absorbing-plug-in"},
        ScoreEntropy: TOKEN_FACTS,
        FlowKL: TOKEN_FACTS,
        MSE: {"gaussian", "masked-region"},
        Huber: {"gaussian", "masked-region"},
        Hybrid: {"learned-variance"},
        BCE: {"masked-region"},
        Poisson: {"masked-region"},
    }[spec]
    loss, misfits = spec(), list(spec().check(FACTS[name]))
    assert (not misfits) == (name in allowed)
    if name in allowed:
        assert callable(loss.build(FACTS[name]))
    else:
        assert len(misfits) == 1
        assert misfits[0].related == ("process",)
        assert spec.name in misfits[0].message
        if spec is MaskedCE and FACTS[name].space is TEXT:
            assert "score-entropy" in misfits[0].help
    assert docs_of(spec).keys() == spec.model_fields.keys()


@pytest.mark.parametrize("spec", [MaskedCE, ScoreEntropy, FlowKL])
def test_plain_training_needs_probabilities(spec) -> None:
    plain = spec(training="plain")
    assert next(m.path for m in plain.check(FACTS["absorbing-score"])) == ("training",)
    assert not list(plain.check(FACTS["absorbing"]))
    assert spec().build_training(FACTS["absorbing"]) is None
    assert callable(plain.build_training(FACTS["absorbing"]))


def test_the_target_follows_the_process() -> None:
    assert MSE().build(FACTS["gaussian"]).keywords["target"] == "velocity"
    assert MSE().build(FACTS["masked-region"]).keywords["target"] == "x0"
    assert MSE(target="x0").build(FACTS["gaussian"]).keywords["target"] == "x0"
    assert Huber(delta=2.0).build(FACTS["gaussian"]).keywords["target"] == "velocity"
    assert Huber(target="x0").build(FACTS["gaussian"]).keywords["target"] == "x0"


@pytest.mark.parametrize("link", ["none", "softplus", "log"])
def test_poisson_refuses_samples_that_fall_below_0(link) -> None:
    def check(standardised: bool | None) -> list:
        space = replace(REGIONS, standardised=standardised)
        return list(
            Poisson(link=link).check(replace(FACTS["masked-region"], space=space))
        )

    (misfit,) = check(True)
    assert misfit.related == ("task", "standardise")
    assert check(False) == check(None) == []


def test_min_snr_is_for_gaussian_noise() -> None:
    assert not list(MSE(min_snr=5.0).check(FACTS["gaussian"]))
    (misfit,) = MSE(min_snr=5.0).check(FACTS["masked-region"])
    assert misfit.path == ("min_snr",)


def test_cross_entropy_requires_a_head_of_probabilities() -> None:
    class Head(HeadSpec):
        name = "values"

        def build(self, space, width):
            raise NotImplementedError

    class Probabilities(Head):
        name = "shares"

        def traits(self) -> frozenset[str]:
            return frozenset({"probabilities"})

    class Model(ModelSpec):
        """A model of another package, whose head has a name of its own."""

        name = "other"
        output: HeadSpec

        def build(self, space):
            raise NotImplementedError

    def misfits(loss, head) -> list:
        model = Model(output=head())
        return list(check_experiment(SimpleNamespace(loss=loss(), model=model)))

    (misfit,) = misfits(BCE, Head)
    assert (misfit.path, misfit.related) == (("loss",), ("model", "output"))
    assert not misfits(BCE, Probabilities)
    assert not misfits(MSE, Head)
