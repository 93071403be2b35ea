"""Inputs and comparisons shared by the checks. Letters: B batch, L length, M features, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from itertools import chain
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import one_hot

from dither.registry import Space, TokenSpace
from dither.registry.contracts.protocols import GaussianProcess
from dither.registry.contracts.records import Clean, Noise, Noised, State

__all__ = [
    "NotApplicable",
    "as_double",
    "assert_clean",
    "assert_close",
    "assert_distinct",
    "assert_equal",
    "assert_output",
    "assert_rows_independent",
    "assert_unchanged",
    "at_positions",
    "change_values",
    "check_bfloat16",
    "check_gradients",
    "check_implements",
    "clean_ids",
    "gaussian_scales",
    "ideal_output",
    "one_value_each",
    "perturb_parameters",
    "random_output",
    "random_state",
    "replace_infinite",
    "seed_cpu",
    "snapshot",
    "tensors_of",
    "usable_ids",
    "with_variances",
    "without_truth",
]

_Mask = Bool[Tensor, "B L"]
_Ids = Int[Tensor, "B L"]

M = TypeVar("M", bound=nn.Module)
MAX_ROUNDING = 0.2
"""Largest relative error of a vector in bfloat16."""


class NotApplicable(Exception):  # noqa: N818 - not an error
    """Raised by a check that does not apply to a situation, with the reason."""


def assert_close(
    actual: Tensor,
    expected: Tensor,
    what: str,
    atol: float = 1e-4,
) -> None:
    """Assert that two tensors are close; `what` names them in the message."""
    # float32 after the sums of a few layers, in any order of summation.
    torch.testing.assert_close(
        actual, expected, atol=atol, rtol=1e-3, msg=lambda text: f"{what}: {text}"
    )


def assert_equal(actual: Tensor, expected: Tensor, what: str) -> None:
    """Assert that two tensors are bit-equal; `what` names them in the message."""
    torch.testing.assert_close(
        actual,
        expected,
        atol=0,
        rtol=0,
        equal_nan=True,
        msg=lambda text: f"{what}: {text}",
    )


def assert_distinct(vectors: Float[Tensor, "N D"], what: str) -> None:
    """Assert that all rows differ; `what` names them in the message."""
    if len(vectors) > 1:
        nearest = torch.pdist(vectors.flatten(1)).min()
        assert nearest > 1e-6, f"two {what} have the same vector"


def assert_rows_independent(run: Callable[[slice], Tensor], rows: int) -> None:
    """Assert that the first and the last sample alone give the same as in the batch.

    `run` returns the output of some of the rows.
    """
    whole = run(slice(None))
    for row in (0, rows - 1):
        alone = slice(row, row + 1)
        what = f"sample {row} alone, compared with a batch of {rows}"
        assert_close(run(alone), whole[alone], what)


def assert_unchanged(before: list[Tensor], *records: Any, what: str) -> None:
    """Assert that the tensors of some records equal their `snapshot`."""
    for old, new in zip(before, snapshot(*records), strict=True):
        assert_equal(new, old, what)


def check_implements(component: Any, protocol: type) -> None:
    """Assert that a component has every attribute of a protocol, those with defaults included."""
    names = protocol.__annotations__.keys() | vars(protocol).keys()
    missing = sorted(
        name
        for name in names
        if not name.startswith("_") and not hasattr(component, name)
    )
    assert not missing, (
        f"{type(component).__name__} has no {', '.join(missing)}: inherit from "
        f"{protocol.__module__}.{protocol.__name__}, which has defaults for optional methods"
    )


def assert_clean(space: Space, x: Tensor, clean: Clean, what: str) -> None:
    """Assert that values that are not fixed are clean ids of their field, or finite features."""
    if isinstance(space, TokenSpace):
        allowed = clean_ids(space, x)[~clean.fixed]
        assert allowed.all(), f"{what}: MASK, PAD or ids outside the vocabulary remain"
    else:
        assert x.isfinite().all(), f"{what}: values are not finite"


def assert_output(space: Space, out: Tensor, shape: torch.Size) -> None:
    """Assert that raw output is finite per feature or id, and -inf outside the vocabulary."""
    actual = tuple(out.shape)
    if isinstance(space, TokenSpace):
        usable = space.usable().expand(*shape, -1)
        assert out.shape == usable.shape, (
            f"shape {actual} instead of {tuple(usable.shape)}"
        )
        marked = (out == -torch.inf) == ~usable
        assert marked.all(), "-inf does not mark the ids outside the vocabulary"
        assert out[usable].isfinite().all(), "a logit is not finite"
    else:
        assert actual == (*shape, space.raw_width), f"shape {actual} for {space}"
        assert out.isfinite().all(), "values are not finite"


def seed_cpu(seed: int) -> None:
    """Seed torch's CPU generator.

    `torch.manual_seed` formats the call stack for every device type, which takes longer than most
    checks.
    """
    torch.default_generator.manual_seed(seed)


def perturb_parameters(module: M, seed: int = 0) -> M:
    """Move every parameter, so that gates and heads that start at zero take part."""
    # A generator of its own: a check that draws afterwards sees the same draws with any module.
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return module


def check_gradients(
    module: nn.Module, run: Callable[..., Tensor], *inputs: Tensor
) -> None:
    """Assert that parameters affect the output, and that gradients equal finite differences.

    `run(*inputs)` calls the module, which is converted to float64; the inputs get gradients, too.
    """
    named = dict(module.double().named_parameters())
    if not named:
        raise NotApplicable("there are no parameters")
    arguments: list[Tensor] = [x.double().requires_grad_() for x in inputs]
    parameters: list[Tensor] = list(named.values())
    generator = torch.Generator().manual_seed(0)

    def random(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=torch.float64)

    directions = {
        "parameters": list(map(random, parameters)),
        "input": list(map(random, arguments)),
    }
    # One random direction of inputs and of outputs tests all entries of the Jacobian at once.
    out = run(*arguments)
    weight = random(out)
    grads = torch.autograd.grad(
        (out * weight).sum(), [*parameters, *arguments], allow_unused=True
    )
    for name, grad in zip(named, grads, strict=False):
        assert grad is not None, f"{name} does not affect the output"
        assert grad.isfinite().all(), f"the gradient of {name} is not finite"

    def central_difference(tensors: list[Tensor], direction: list[Tensor]) -> Tensor:
        ends = []
        # To x + d, to x - d, and back to x. In float64 a step of 1e-6 balances the errors of
        # truncation and of rounding.
        for step in (1e-6, -2e-6, 1e-6):
            with torch.no_grad():
                for tensor, line in zip(tensors, direction, strict=True):
                    tensor.add_(line, alpha=step)
                ends.append((run(*arguments) * weight).sum())
        return (ends[0] - ends[1]) / 2e-6

    count = len(parameters)
    parts = {
        "parameters": (parameters, grads[:count]),
        "input": (arguments, grads[count:]),
    }
    for name, (tensors, gradients) in parts.items():
        along = torch.zeros(()).double()
        for grad, line in zip(gradients, directions[name], strict=True):
            if grad is not None:
                along = along + (grad * line).sum()
        expected = central_difference(tensors, directions[name])
        assert_close(along, expected, f"the gradient of the {name}", atol=1e-4)


def check_bfloat16(
    module: nn.Module, run: Callable[..., Tensor], *inputs: Tensor
) -> None:
    """Assert that the output in bfloat16 is that in float32, up to rounding.

    `run(*inputs)` calls the module under autocast, as in training, and then cast to bfloat16.
    """
    seed_cpu(0)
    expected = replace_infinite(run(*inputs).detach())
    is_random = not torch.equal(replace_infinite(run(*inputs).detach()), expected)
    seed_cpu(0)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = {"under autocast": run(*inputs)}
    # The random numbers of another type are others.
    if not is_random:
        module.bfloat16()
        outputs["of a cast module"] = run(*(x.bfloat16() for x in inputs))

    scale = expected.norm(dim=-1).mean().clamp_min(1e-6)
    for name, out in outputs.items():
        error = replace_infinite(out.detach().float()) - expected
        largest = float(error.norm(dim=-1).max() / scale)
        # Eight bits of a number, after the sums of a few layers.
        assert largest < MAX_ROUNDING, (
            f"bfloat16 {name} is off by {largest:.2g} of the length of a vector"
        )


def replace_infinite(out: Tensor) -> Tensor:
    """Replace -inf, which marks ids outside a vocabulary, by 0, so that outputs can be compared."""
    return out.masked_fill(out == -torch.inf, 0.0)


def as_double(record: Any) -> Any:
    """Return a record whose floating-point tensors are float64."""
    return record.apply(lambda x: x.double() if x.is_floating_point() else x)


def tensors_of(record: Any) -> list[Tensor]:
    """Return every tensor in a record, including nested records and dictionaries."""
    if isinstance(record, Tensor):
        return [record]
    parts: list[Any] = []
    if isinstance(record, dict):
        parts = list(record.values())
    elif is_dataclass(record):
        parts = [getattr(record, field.name) for field in fields(record)]
    return list(chain.from_iterable(map(tensors_of, parts)))


def snapshot(*records: Any) -> list[Tensor]:
    """Copy every tensor of some records, to detect later writes."""
    tensors = chain.from_iterable(map(tensors_of, records))
    return [tensor.detach().clone() for tensor in tensors]


def without_truth(clean: Clean, visible: Bool[Tensor, "B L *M"]) -> Clean:
    """Return the batch with zeros for values that are not visible."""
    x0 = torch.where(visible, clean.x0, torch.zeros_like(clean.x0))
    return replace(clean, x0=x0)


def random_state(space: Space, valid: _Mask, seed: int) -> State:
    """Return random ids of the fields, special ones included, or features with masked positions."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, TokenSpace):
        sizes = space.table(lambda field: torch.tensor(field.size))
        draws = torch.rand(valid.shape, generator=generator)
        return State.of((draws * sizes).long())
    # Whole positions are masked, as by every process of features.
    positions = torch.rand(valid.shape, generator=generator) < 0.5
    shape = (*valid.shape, space.width)
    masked = positions[..., None].expand(shape).clone()
    x = torch.randn(masked.shape, generator=generator)
    return State(x.masked_fill(masked, 0.0), masked)


def at_positions(state: State, part: slice) -> State:
    """Return the state of some positions."""
    return State(state.x[:, part], state.masked[:, part])


def random_output(space: Space, valid: _Mask, seed: int) -> Float[Tensor, "B L V"]:
    """Return random raw output of a model: logits, -inf outside a field's vocabulary, or features."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(space, TokenSpace):
        raw = torch.randn(*valid.shape, space.vocab, generator=generator)
        return raw.masked_fill(~space.usable(), -torch.inf)
    return torch.randn(*valid.shape, space.raw_width, generator=generator)


def gaussian_scales(process: Any, noise: Noise, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of x_0 and eps in x_t.

    Their squares add up to 1, or they do (`linear_path`).
    """
    a = noise.alpha(like).sqrt()
    b = noise.one_minus_alpha(like).sqrt()
    if isinstance(process, GaussianProcess) and process.linear_path:
        return a / (a + b), b / (a + b)
    return a, b


def ideal_output(predict: str, noised: Noised, vocab: int) -> Float[Tensor, "B L V"]:
    """Return the raw output of a model that knows x_0.

    Raises:
        NotApplicable: The prediction target is unknown.
    """
    alpha = noised.noise.alpha(noised.x0)
    noise = noised.noise.one_minus_alpha(noised.x0)
    if noised.prior is not None and predict in ("posterior", "plug-in"):
        # The probability of any other id, exp(-30), is below the resolution of float32.
        return 30.0 * one_hot(noised.x0, vocab).float()
    if noised.prior is not None and predict == "score":
        # score = q(y | x_0) / q(x_t | x_0) for each id y.
        same = one_hot(noised.x0, vocab)
        unchanged = alpha[..., None] * same
        q = unchanged + noise[..., None] * noised.prior
        current = q.gather(-1, noised.state.x[..., None])
        scores = q.log() - current.log()
        return scores.clamp_min(-30.0).float()

    eps = noised.eps
    if eps is None:
        eps = torch.zeros_like(noised.x0)
    outputs = {
        "x0": noised.x0,
        "eps": eps,
        "velocity": alpha.sqrt() * eps - noise.sqrt() * noised.x0,
        "flow-velocity": eps - noised.x0,
    }
    if predict not in outputs:
        raise NotApplicable(f'the ideal output is unknown for predict = "{predict}"')
    return outputs[predict].float()


def with_variances(space: Space, raw: Float[Tensor, "B L M"]) -> Tensor:
    """Add the smallest variance to a raw output if the process has the model predict it."""
    if isinstance(space, TokenSpace) or space.outputs == 1:
        return raw
    return torch.cat([raw, torch.full_like(raw, -1.0)], -1)


def clean_ids(space: TokenSpace, x: _Ids) -> _Mask:
    """Return where ids may occur in clean data."""
    return _allowed(space.clean(), x)


def usable_ids(space: TokenSpace, x: _Ids) -> _Mask:
    """Return where ids are in the vocabulary of their field."""
    return _allowed(space.usable(), x)


def _allowed(table: Bool[Tensor, "rows V"], x: _Ids) -> _Mask:
    # gather needs valid indices; ids out of range are rejected by `in_range`.
    in_range = (x >= 0) & (x < table.shape[-1])
    index = torch.where(in_range, x, 0)[..., None]
    allowed = table.expand(*x.shape, -1).gather(-1, index)
    return in_range & allowed.squeeze(-1)


def one_value_each(space: Space, x: Shaped[Tensor, "L *M"]) -> Shaped[Tensor, "N L *M"]:
    """Return copies of a sample that differ in one value of their first position.

    Each has another id; or is the sample itself, and then has another value of each feature.
    """
    if isinstance(space, TokenSpace):
        ids = torch.arange(space.fields[0].size)
        copies = x.repeat(len(ids), 1)
        copies[:, 0] = ids
        return copies
    copies = x.repeat(space.width + 1, 1, 1)
    features = torch.arange(space.width)
    copies[features + 1, 0, features] += 1.0
    return copies


def change_values(space: Space, x: Tensor, where: _Mask) -> Tensor:
    """Replace the values at some positions by others of the space, if it has others."""
    if isinstance(space, TokenSpace):
        sizes = space.table(lambda field: torch.tensor(field.size))
        return torch.where(where, (x + 1) % sizes, x)
    return torch.where(where[..., None], x + 1.0, x)
