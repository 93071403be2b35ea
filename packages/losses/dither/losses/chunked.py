"""Losses on tokens computed from hidden states, a chunk of positions at a time.

Logits of all positions, `B L V`, never exist at once: for each chunk the logits, the loss and its
gradient are computed, and the gradients of hidden states and head are accumulated. A training step
of language_model/seed takes 2.3 times as long without.

Letters: B batch, L length, D width, V vocabulary, N rows (positions of all samples), n rows of a
chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from dither.registry.contracts.protocols import (
    FusedLoss,
    Loss,
    Process,
    TokenProcess,
)
from dither.registry.contracts.records import Measured, Noise, Noised, State, over

from .logit_losses import (
    Support,
    logit_cross_entropy,
    logit_score_entropy,
    set_entries,
    simple_prior,
)
from .tokens import cross_entropy, masked_ce, score_entropy

__all__ = [
    "ChunkedCrossEntropy",
    "ChunkedLoss",
    "ChunkedMaskedCE",
    "ChunkedScoreEntropy",
    "chunked",
]

CPU_CHUNK = 1 << 23
"""Logits in a chunk: 32 MiB of float32."""

GPU_CHUNK = 1 << 27
"""Logits in a chunk on a GPU, where each chunk costs the launch of every kernel: 512 MiB of float32."""

GPU_MULTIPLE = 64
"""The vocabulary of matrix products on a GPU is padded to a multiple of this: with GPT-2's 50,257 ids
cuBLAS takes kernels of Turing for the products of an H200, a third of the time of the LM seed's step."""

LogitLoss = Callable[
    [Float[Tensor, "n V"], Noised], tuple[Float[Tensor, " n"], Float[Tensor, "n V"]]
]
"""(logits, which may be overwritten; rows as samples of length 1) -> losses, their gradient."""


@dataclass(frozen=True)
class ChunkedLoss:
    """Any loss whose positions are independent, with autograd between logits and loss of a chunk.

    Attributes:
        loss: The loss.
    """

    loss: Loss

    def __call__(self, pred: Any, noised: Noised) -> Measured:
        return self.loss(pred, noised)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Return where the loss may differ from 0."""
        return ~noised.fixed

    def weights(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Return where the weight is 1; elsewhere it is 0."""
        return ~noised.fixed

    def closed_form(self, process: Process) -> LogitLoss | None:
        """Return the loss as a function of logits for this process; None to use autograd."""
        return None

    def fused(
        self,
        h: Float[Tensor, "B L D"],
        linear: nn.Linear,
        process: Process,
        noised: Noised,
        t: Float[Tensor, "B *L"],
        *,
        half: bool = False,
        compiled: bool = False,
        share: Float[Tensor, "B #L"] | None = None,
    ) -> Measured:
        """Compute the loss from hidden states; arguments as of `FusedLoss`."""
        # Only N rows are computed: B L -> N
        active = self.active(noised)
        rows = _rows_of(active)
        scale = active.to(torch.float64)
        if share is not None:
            scale = share.double() * active
        scale = scale.flatten()[rows]

        # The prediction is that of the model's time, the loss weighs with the noise of the record.
        samples = _select_rows(noised, rows)
        noise = _noise_of_rows(process.schedule(t), noised.x0, rows)
        head = _ChunkedHead(h.flatten(0, 1)[rows], linear, half=half)

        closed_form = self.closed_form(process)
        compute = _losses_of_products
        # Compiled, the losses of a chunk read its logits twice, and write only their gradient.
        if compiled and closed_form is not None:
            compute = _compiled()

        losses = [head.h.new_zeros(0)]
        for chunk in head.chunks():
            part = samples[chunk]
            products, logit_x0 = head.products(chunk, part.x0)
            logit_loss = closed_form
            if logit_loss is None:
                logit_loss = partial(self.by_autograd, process, noise[chunk])
            values, grads = compute(
                logit_loss=logit_loss,
                products=products,
                logit_x0=logit_x0,
                bias=head.bias,
                vocab=len(head.weight),
                part=part,
                scale=scale[chunk],
                trains_bias=head.grad_bias is not None,
            )
            head.backward(chunk, grads, part.x0)
            losses.append(values)

        # Only the sum carries a gradient: backward through single values would need the logits.
        row_values = torch.cat(losses) * scale.to(head.h.dtype)
        loss_sum = head.attach_gradients(row_values.sum())

        # N -> B L
        values = row_values.new_zeros(active.numel())
        values = values.index_copy_(0, rows, row_values).view_as(active)
        return Measured(values, self.weights(noised).to(values.dtype), loss_sum)

    @torch.enable_grad()
    def by_autograd(
        self, process: Process, noise: Noise, logits: Float[Tensor, "n V"], part: Noised
    ) -> tuple[Float[Tensor, " n"], Float[Tensor, "n V"]]:
        """Return losses and their gradient, from the graph of one chunk."""
        if part.prior is None and isinstance(process, TokenProcess):
            part = replace(part, prior=process.prior_at(part.noise))
        logits.requires_grad_()
        pred = process.read(logits[:, None], part.state, noise)
        values = self.loss(pred, part).values[:, 0]
        (grad,) = torch.autograd.grad(values.sum(), logits)
        return values.detach(), grad


class LogitGradients(NamedTuple):
    """Gradients of a chunk, times the scale of its rows.

    Attributes:
        products: Those of the matrix products, in their precision; 0 at the clean ids.
        x0: Those of the logits of the clean ids.
        bias: That of the bias, if it is trained.
    """

    products: Float[Tensor, "n W"]
    x0: Float[Tensor, "n 1"]
    bias: Float[Tensor, " V"] | None


@torch.no_grad()
def _losses_of_products(
    *,
    logit_loss: LogitLoss,
    products: Float[Tensor, "n W"],
    logit_x0: Float[Tensor, "n 1"],
    bias: Float[Tensor, " V"] | None,
    vocab: int,
    part: Noised,
    scale: Float[Tensor, " n"],
    trains_bias: bool,
) -> tuple[Float[Tensor, " n"], LogitGradients]:
    """Return the losses of the rows of a chunk, and gradients.

    Args:
        logit_loss: The loss as a function of logits.
        products: Hidden states times the weight, whose rows may be padded: W >= V.
        logit_x0: The product at the clean id, in full precision.
        bias: Added to the products.
        vocab: Number of ids, V.
        part: The rows.
        scale: Factors of the losses.
        trains_bias: Whether the gradient of the bias is returned.
    """
    x0 = part.x0
    logits = products[:, :vocab].to(logit_x0.dtype)
    logits = set_entries(logits, x0, logit_x0)
    if bias is not None:
        logits = logits.add_(bias)
    values, grad = logit_loss(logits, part)
    # Where the scale is 0 a loss may be NaN, and 0 times NaN is NaN.
    values = values.to(logits.dtype).masked_fill(scale == 0, 0.0)

    # The clean ids apart: one column a row, in full precision.
    grad = grad.mul_(scale.to(grad.dtype)[:, None])
    grad_bias = grad.sum(0) if trains_bias else None
    grad_x0 = grad.gather(1, x0)
    grad = set_entries(grad, x0, 0.0).to(products.dtype)
    padding = products.shape[1] - vocab
    if padding:
        grad = functional.pad(grad, (0, padding))
    return values, LogitGradients(grad, grad_x0, grad_bias)


@cache
def _compiled() -> Callable[..., tuple[Float[Tensor, " n"], LogitGradients]]:
    """Return `_losses_of_products` for the compiler; torch.compile imports much."""
    return torch.compile(_losses_of_products)


class ChunkedScoreEntropy(ChunkedLoss):
    """Score entropy; in closed form for predicted scores and a prior uniform or all on one id.

    With autograd a training step of language_model/seed takes 1.5 times as long.
    """

    def __init__(self) -> None:
        super().__init__(score_entropy)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        """Return where the prior can produce the id, and nothing is fixed."""
        if noised.prior is None:
            raise TypeError("score entropy requires a token process")
        return noised.target_mask

    def closed_form(self, process: Process) -> LogitLoss | None:
        support = _support(process, "score")
        if support is None or not isinstance(process, TokenProcess):
            return None
        if not simple_prior(process.prior_probs("cpu"), support("cpu")):
            return None
        return partial(
            logit_score_entropy, support=support, absorbing=process.absorbing
        )


class ChunkedMaskedCE(ChunkedLoss):
    """Masked cross-entropy; only masked positions are computed."""

    def __init__(self) -> None:
        super().__init__(masked_ce)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        return noised.target_mask

    def closed_form(self, process: Process) -> LogitLoss | None:
        """At MASK, "posterior" and "plug-in" are the same."""
        support = _support(process, "posterior", "plug-in")
        if support is None:
            return None
        return partial(logit_cross_entropy, support=support, weighted=True)


class ChunkedCrossEntropy(ChunkedLoss):
    """Unweighted cross-entropy of target tokens."""

    def __init__(self) -> None:
        super().__init__(cross_entropy)

    def active(self, noised: Noised) -> Bool[Tensor, "B L"]:
        return noised.target_mask

    weights = active

    def closed_form(self, process: Process) -> LogitLoss | None:
        support = _support(process, "posterior")
        if support is None:
            return None
        return partial(logit_cross_entropy, support=support, weighted=False)


def _support(process: Process, *meanings: str) -> Support | None:
    """Return where logits in one of these meanings are used as they are; None if the process has others."""
    if not isinstance(process, TokenProcess) or process.predict not in meanings:
        return None
    if process.support("cpu") is None:
        return None
    return cast(Support, process.support)


def chunked(loss: Loss) -> FusedLoss:
    """Return the chunked form of a loss per token: itself if it has one."""
    return loss if isinstance(loss, FusedLoss) else ChunkedLoss(loss)


class _ChunkedHead:
    """The last linear layer over chunks of rows, with gradients that accumulate.

    With `half`, products are rounded to bfloat16, as under autocast, except those at the clean id,
    which dominate loss and gradient.
    """

    def __init__(
        self, h: Float[Tensor, "N D"], linear: nn.Linear, *, half: bool
    ) -> None:
        self.source = h
        self.linear = linear
        # Detached, for the gradients are computed by hand.
        dtype = torch.promote_types(h.dtype, linear.weight.dtype)
        self.h = h.detach().to(dtype)
        self.weight = linear.weight.detach().to(dtype)
        self.grad_h = _gradient_of(h, self.h)
        self.grad_weight = _gradient_of(linear.weight, self.weight)

        self.bias: Tensor | None = None
        self.grad_bias: Tensor | None = None
        if linear.bias is not None:
            self.bias = linear.bias.detach().to(dtype)
            self.grad_bias = _gradient_of(linear.bias, self.bias)

        # The weight as a factor of matrix products, cast once for all chunks
        self.product_dtype = torch.bfloat16 if half else dtype
        self.factor = self.weight.to(self.product_dtype)
        self.chunk = CPU_CHUNK
        if h.device.type == "cuda":
            self.chunk = GPU_CHUNK
            padding = -len(self.weight) % GPU_MULTIPLE
            self.factor = functional.pad(self.factor, (0, 0, 0, padding))

    def chunks(self) -> Iterator[slice]:
        size = max(self.chunk // len(self.weight), 1)
        for start in range(0, len(self.h), size):
            yield slice(start, min(start + size, len(self.h)))

    @torch.no_grad()
    def products(
        self, chunk: slice, x0: Int[Tensor, "n 1"]
    ) -> tuple[Float[Tensor, "n W"], Float[Tensor, "n 1"]]:
        """Return h W', W the padded vocabulary, and those at the clean id, never rounded to bfloat16."""
        # n D @ D W
        h = self.h[chunk]
        products = h.to(self.product_dtype) @ self.factor.T
        weight_x0 = self.weight[x0[:, 0]]
        return products, (h * weight_x0).sum(-1, keepdim=True)

    @torch.no_grad()
    def backward(
        self, chunk: slice, grads: LogitGradients, x0: Int[Tensor, "n 1"]
    ) -> None:
        """Accumulate gradients, given those of the logits of a chunk."""
        h = self.h[chunk]
        ids = x0[:, 0]
        # db = sum of g
        if self.grad_bias is not None and grads.bias is not None:
            self.grad_bias.add_(grads.bias)

        # dh = g W: n W @ W D
        if self.grad_h is not None:
            self.grad_h[chunk] = (grads.products @ self.factor).to(h.dtype)
            self.grad_h[chunk].addcmul_(grads.x0, self.weight[ids])
        # dW = g' h: W n @ n D
        if self.grad_weight is not None:
            products = grads.products.T @ h.to(self.product_dtype)
            self.grad_weight.add_(products[: len(self.weight)])
            self.grad_weight.index_add_(0, ids, grads.x0 * h)

    def attach_gradients(self, loss_sum: Float[Tensor, ""]) -> Float[Tensor, ""]:
        """Return the sum as a function of h, W and b with these gradients."""
        grads = [self.grad_h, self.grad_weight, self.grad_bias]
        # In evaluation the loss has no graph at all.
        if all(grad is None for grad in grads):
            return loss_sum
        attached: Tensor = _WithGradients.apply(
            loss_sum, grads, self.source, self.linear.weight, self.linear.bias
        )  # type: ignore[no-untyped-call]
        return attached


class _WithGradients(torch.autograd.Function):
    """A number with precomputed gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        number: Float[Tensor, ""],
        grads: list[Tensor | None],
        *inputs: Tensor | None,
    ) -> Float[Tensor, ""]:
        ctx.grads = grads
        ctx.dtypes = [None if x is None else x.dtype for x in inputs]
        return number.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *upstream: Float[Tensor, ""]) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("backward through a chunked loss works only once")
        # Released here, so that a gradient becomes `.grad` without a copy.
        grads = ctx.grads
        ctx.grads = None
        typed: list[Tensor | None] = []
        for grad, dtype in zip(grads, ctx.dtypes, strict=True):
            typed.append(None if grad is None else grad.mul_(upstream[0]).to(dtype))
        return None, None, *typed


def _gradient_of(tensor: Tensor, like: Tensor) -> Tensor | None:
    needs_grad = torch.is_grad_enabled() and tensor.requires_grad
    return torch.zeros_like(like) if needs_grad else None


def _rows_of(active: Bool[Tensor, "B L"]) -> Int[Tensor, " N"]:
    """Return the rows to compute; on a GPU all, as reading their number would synchronise."""
    if active.device.type == "cpu":
        return active.flatten().nonzero()[:, 0]
    return torch.arange(active.numel(), device=active.device)


def _select_rows(noised: Noised, rows: Int[Tensor, " N"]) -> Noised:
    """Return chosen positions as samples of length 1.

    A prior per sample is left out: those of all rows together are as large as their logits.
    """
    prior = noised.prior
    if prior is not None and prior.ndim > 2:
        prior = None

    def select(value: Shaped[Tensor, "B L"]) -> Shaped[Tensor, "N 1"]:
        return value.flatten()[rows][:, None]

    return Noised(
        x0=select(noised.x0),
        state=State(select(noised.state.x), select(noised.state.masked)),
        noise=_noise_of_rows(noised.noise, noised.x0, rows),
        target_mask=select(noised.target_mask),
        valid=select(noised.valid),
        fixed=select(noised.fixed),
        prior=prior,
    )


def _noise_of_rows(
    noise: Noise, x0: Int[Tensor, "B L"], rows: Int[Tensor, " N"]
) -> Noise:
    """Return the noise of chosen positions, `N 1`."""
    return noise.apply(
        lambda value: over(value, x0).expand_as(x0).flatten()[rows][:, None]
    )
