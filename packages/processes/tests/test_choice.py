"""Temperature, top_k and top_p: closed forms, exact draws, and one mechanism for every sampler of tokens."""

from typing import Any

import pytest
import torch
from torch import Tensor

from dither.processes.tokens import temperature as choice
from dither.processes.tokens.process import TokenProcess
from dither.processes.tokens.temperature import warp_log_probs, warp_prediction
from dither.registry.contracts.records import Clean
from dither.registry.contracts.spaces import Field, TokenSpace

LAW = torch.tensor([0.1, 0.4, 0.2, 0.3, 0.0], dtype=torch.float64)


def sharpened(**options: Any) -> Tensor:
    return warp_log_probs(LAW.log(), **options).exp()


def test_closed_forms() -> None:
    torch.testing.assert_close(sharpened(temperature=0.5), LAW**2 / (LAW**2).sum())
    for temperature in (0.0, 1e-300, 1e-39, 1e-12):
        torch.testing.assert_close(
            sharpened(temperature=temperature), torch.tensor([0.0, 1, 0, 0, 0]).double()
        )
        warped = warp_log_probs(LAW.log().float(), temperature)
        assert warped.argmax() == 1
        assert warped.exp().sum() == 1
    torch.testing.assert_close(
        sharpened(top_k=2), torch.tensor([0, 4, 0, 3, 0]).double() / 7
    )
    torch.testing.assert_close(sharpened(top_k=9), LAW)
    squares = LAW[[1, 3]] ** 2
    both = sharpened(temperature=0.5, top_k=2)
    torch.testing.assert_close(both[[1, 3]], squares / squares.sum())


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.01, [1]),
        (0.39, [1]),
        (0.41, [1, 3]),
        (0.71, [1, 2, 3]),
        (0.999, [0, 1, 2, 3]),
    ],
)
def test_the_nucleus_is_the_least_set_of_that_chance(
    top_p: float, kept: list[int]
) -> None:
    law = torch.zeros_like(LAW)
    law[kept] = LAW[kept]
    torch.testing.assert_close(sharpened(top_p=top_p), law / law.sum())


@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
@pytest.mark.parametrize(
    "options",
    [{"top_k": 7}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.3}, {"temperature": 0.5}],
)
def test_of_many_ids_the_same_are_kept_as_by_sorting_all(
    monkeypatch, spread: float, options: dict[str, Any]
) -> None:
    """Also where the likeliest 8 are not nearly enough."""
    log_p = (
        (spread * torch.randn(3, 2, 900, dtype=torch.float64))
        .add(torch.arange(900) * 1e-6)
        .log_softmax(-1)
    )
    log_p[0, 0, 5:] = -torch.inf
    log_p = log_p.log_softmax(-1)
    whole = warp_log_probs(log_p, **options)
    monkeypatch.setattr(choice, "FEW", 8)
    torch.testing.assert_close(warp_log_probs(log_p, **options), whole)


@pytest.mark.parametrize(
    ("kind", "sampler"),
    [
        ("absorbing", {"use": "ancestral", "steps": 3}),
        ("absorbing", {"use": "first-hitting"}),
        ("absorbing", {"use": "ordered", "steps": 2}),
        ("absorbing", {"use": "remdm", "steps": 3}),
        ("absorbing", {"use": "predictor-corrector", "steps": 2}),
        ("absorbing", {"use": "euler", "steps": 3}),
        ("uniform", {"use": "ancestral", "steps": 60}),
        ("marginal", {"use": "predictor-corrector", "steps": 40}),
    ],
)
def test_every_sampler_draws_from_the_sharpened_law(
    part, likely, oracle, kind: str, sampler: dict[str, Any]
) -> None:
    """With independent positions the belief is the law itself, so that samples have the sharpened one."""
    options = {"frequencies": {"text": [1.0, 2, 3, 4]}} if kind == "marginal" else {}
    process: TokenProcess = part(
        "process", kind, schedule="log-linear", **options
    ).build(TokenSpace((Field("text", 2, 4),)))
    law, n = LAW[:4], 4_000
    walk = part(
        "sampler",
        sampler["use"],
        temperature=0.5,
        top_k=3,
        **{k: v for k, v in sampler.items() if k != "use"},
    )
    (*_, x) = walk.build()(
        process, oracle(process, law[:, None] * law), Clean.of(torch.zeros(n, 2).long())
    )
    expected = warp_log_probs(law.log(), 0.5, 3).exp()
    for place in range(2):
        assert likely(x[:, place], expected) > 1e-3
        assert likely(x[:, place], law) < 1e-6


def test_a_foreign_prediction_cannot_be_warped(part) -> None:
    foreign = object()
    assert warp_prediction(foreign, part("sampler", "ancestral")) is foreign
    with pytest.raises(TypeError, match="CategoricalPrediction"):
        warp_prediction(foreign, part("sampler", "ancestral", top_p=0.9))
