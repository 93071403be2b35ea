"""What checks share: inputs, and comparisons that say what was compared.

Letters: B batch, L length, M features, V vocabulary.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dither.registry import Space, TokenSpace
from dither.registry.flow.records import Noised, State

__all__ = [
    "NotApplicable",
    "assert_close",
    "assert_equal",
    "change_values",
    "check_gradients",
    "clean_ids",
    "ideal_output",
    "perturb_parameters",
    "random_output",
    "random_state",
    "seed_cpu",
    "snapshot",
    "tensors_of",
    "usable_ids",
]

M = TypeVar("M", bound=nn.Module)


class NotApplicable(Exception):  # noqa: N818 - it is no error
    """Raised by a check where its question has no meaning; says why."""


def assert_close(actual: Tensor, expected: Tensor, what: str, atol: float = 1e-4) -> None:
    """Refuse two tensors that differ, and say what they are."""
    torch.testing.assert_close(actual, expected, atol=atol, rtol=1e-3, msg=lambda text: f"{what}: {text}")


def assert_equal(actual: Tensor, expected: Tensor, what: str) -> None:
    """Refuse two tensors that differ in a single bit."""
    torch.testing.assert_close(actual, expected, atol=0, rtol=0, equal_nan=True, msg=lambda text: f"{what}: {text}")


def seed_cpu(seed: int) -> None:
    """Seed torch's generator on the CPU.

    `torch.manual_seed` formats the stack for every sort of device there might be, and takes longer than most checks.
    """
    torch.default_generator.manual_seed(seed)


def perturb_parameters(module: M, seed: int = 0) -> M:
    """Move every parameter away from its initial value, so that gates and heads that start at zero take part."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return module


def check_gradients(module: nn.Module, out: Tensor) -> None:
    """Refuse a weight that takes no part in the output, or whose gradient is not finite."""
    weights = dict(module.named_parameters())
    if not weights:
        raise NotApplicable("it has no weights")
    slopes = torch.autograd.grad((out * torch.randn_like(out)).sum(), list(weights.values()), allow_unused=True)
    for name, slope in zip(weights, slopes, strict=True):
        assert slope is not None, f"{name} takes no part in the output"
        assert slope.isfinite().all(), f"the gradient of {name} is not finite"


def tensors_of(record: Any) -> list[Tensor]:
    """Return every tensor in a record, inner records and dictionaries included."""
    if isinstance(record, Tensor):
        return [record]
    if isinstance(record, dict):
        return [tensor for value in record.values() for tensor in tensors_of(value)]
    if is_dataclass(record):
        return [tensor for f in fields(record) for tensor in tensors_of(getattr(record, f.name))]
    return []


def snapshot(*records: Any) -> list[Tensor]:
    """Copy every tensor of some records, to see later that nothing wrote to them."""
    return [tensor.detach().clone() for record in records for tensor in tensors_of(record)]


def random_state(space: Space, valid: Bool[Tensor, "B L"], seed: int) -> State:
    """Return a random state: any id of the field, specials included; features with some positions hidden."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, TokenSpace):
        sizes = space.table(lambda field: torch.tensor(field.size))
        return State.of((torch.rand(valid.shape, generator=generator) * sizes).long())
    hidden = (torch.rand(valid.shape, generator=generator) < 0.5)[..., None].expand(-1, -1, space.width).clone()
    return State(torch.randn(hidden.shape, generator=generator).masked_fill(hidden, 0.0), hidden)


def random_output(space: Space, valid: Bool[Tensor, "B L"], seed: int) -> Float[Tensor, "B L V"]:
    """Return what a model of the space might say: numbers per id, -inf outside a field's vocabulary; or features."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, TokenSpace):
        raw = torch.randn(*valid.shape, space.vocab, generator=generator)
        return raw.masked_fill(~space.usable(), -torch.inf)
    return torch.randn(*valid.shape, space.width, generator=generator)


def ideal_output(predict: str, noised: Noised, vocab: int) -> Float[Tensor, "B L V"]:
    """Return the raw output of a model that knows x_0, under what raw output means.

    Raises:
        NotApplicable: The meaning is none of the house's.
    """
    alpha, lost = noised.noise.alpha(noised.x0), noised.noise.one_minus_alpha(noised.x0)
    if predict in ("posterior", "plug-in") and noised.prior is not None:
        return 30.0 * one_hot(noised.x0, vocab).float()
    if predict == "score" and noised.prior is not None:
        q = alpha[..., None] * one_hot(noised.x0, vocab) + lost[..., None] * noised.prior
        scores = q.log() - q.gather(-1, noised.state.x[..., None]).log()
        return scores.clamp_min(-30.0).float()
    if predict in ("x0", "eps", "velocity"):
        eps = torch.zeros_like(noised.x0) if noised.eps is None else noised.eps
        velocity = alpha.sqrt() * eps - lost.sqrt() * noised.x0
        return {"x0": noised.x0, "eps": eps, "velocity": velocity}[predict].float()
    raise NotApplicable(f'what would be true is not known for predict = "{predict}"')


def clean_ids(space: TokenSpace, x: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
    """Return where ids are those that clean data may hold."""
    return _among(space.clean(), x)


def usable_ids(space: TokenSpace, x: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
    """Return where ids are inside the vocabulary of their field."""
    return _among(space.usable(), x)


def _among(table: Bool[Tensor, "rows V"], x: Int[Tensor, "B L"]) -> Bool[Tensor, "B L"]:
    known = (x >= 0) & (x < table.shape[-1])
    return known & table.expand(*x.shape, -1).gather(-1, torch.where(known, x, 0)[..., None])[..., 0]


def change_values(space: Space, x: Tensor, where: Bool[Tensor, "B L"]) -> Tensor:
    """Change the values at some positions to others that the space allows, where it has others."""
    if isinstance(space, TokenSpace):
        sizes = space.table(lambda field: torch.tensor(field.size))
        return torch.where(where, (x + 1) % sizes, x)
    return torch.where(where[..., None], x + 1.0, x)
