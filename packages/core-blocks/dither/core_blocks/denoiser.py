"""The model: embedding, blocks, final norm, head.

Letters: B batch, L length, K keys, M features, V vocabulary, D width, C condition width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dither.registry.contracts.records import Context, State, first_rows, true_everywhere

from .block_causal import CleanAndNoised, number_blocks
from .cpu.merge_identical import MergedPositions
from .kv_cache import KVCache
from .options import CENTRE, DOCUMENT

__all__ = ["Denoiser", "init_trunc_normal", "relative_coordinates", "tie_embeddings"]

Requested = Bool[Tensor, "B L"] | Int[Tensor, " N"]
"""Positions as a mask, or as rows of the flattened batch, whose number the host knows."""


@dataclass(frozen=True)
class _Call:
    """Arguments of the blocks in one forward pass."""

    mask: Shaped[Tensor, "B 1 #L K"] | None = None
    cache: KVCache | None = None
    keep: bool = False
    requested: Requested | None = None
    positions: Shaped[Tensor, "B L"] | None = None


class Denoiser(nn.Module):
    """A diffusion transformer over tokens or features.

    Args:
        embedding: (state, cond, start) -> (`B extra+L D`, extra): extra tokens, such as a class
            token, come first.
        condition: (level, cond) -> `B C` or `B L C`; its SiLU is applied here, once for all blocks.
        blocks: (x, c, mask=, cache=, layer=, keep=) -> x.
        final: (x, c) -> input of the head.
        head: `B L D` -> raw values per position.
        block_size: Positions per block with block-causal attention; None for full attention.
        checkpointing: Recompute each block in the backward pass instead of keeping its activations.
        skip_unrequested: Pass `State.requested` to the last block, which skips other rows; in
            static shapes if the largest number is known, and the block `accepts_rows`.
        merge_masked: Replace all fully masked positions of a sample by one; in static shapes if the
            largest number of others is known. Exact if the embedding maps them to one vector and
            the blocks are permutation-equivariant and accept a float mask.
        drop_padding: On a CPU, compute only positions that are valid in some sample of the batch:
            none is padding in a batch of one bucket. Exact if the blocks are
            permutation-equivariant.
        positions: Pass the coordinates of the condition "centre" to the blocks as `positions`.

    Attributes:
        static_shapes: Skip positions only in static shapes, as on an accelerator and in compiled
            graphs.
    """

    static_shapes = False

    def __init__(
        self,
        embedding: nn.Module,
        condition: nn.Module,
        blocks: Iterable[nn.Module],
        final: nn.Module,
        head: nn.Module,
        *,
        block_size: int | None = None,
        checkpointing: bool = False,
        skip_unrequested: bool = False,
        merge_masked: bool = False,
        drop_padding: bool = False,
        positions: bool = False,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.condition = condition
        self.blocks = nn.ModuleList(blocks)
        self.final = final
        self.head = head
        self.block_size = block_size
        self.checkpointing = checkpointing
        self.skip_unrequested = skip_unrequested
        self.merge_masked = merge_masked
        self.positions = positions
        self.drop_padding = drop_padding

    def forward(
        self,
        state: State,
        level: Float[Tensor, "B *L"],
        valid: Bool[Tensor, "B L"],
        cond: Mapping[str, Tensor],
        *,
        context: Context | None = None,
        cache: KVCache | None = None,
        keep: bool = False,
    ) -> Float[Tensor, "B L V"]:
        """Return raw values per position: `B L M` for features, logits `B L V` for tokens.

        Args:
            state: The noised sample.
            level: Noise level per sample or per position.
            valid: False on padding, which never influences valid positions.
            cond: Conditions by name.
            context: With block-causal attention, the clean sample: each block of the state attends
                to itself and to earlier blocks of the context. Equals sampling with a cache, for
                all blocks together.
            cache: Keys and values of finished positions before those of the state.
            keep: Whether to add the positions of the state to the cache.

        Raises:
            ValueError: A context is given to a model without blocks, or together with a cache.
        """
        out: Tensor = self.head(
            self.trunk(state, level, valid, cond, context=context, cache=cache, keep=keep)
        )
        return out

    def trunk(
        self,
        state: State,
        level: Float[Tensor, "B *L"],
        valid: Bool[Tensor, "B L"],
        cond: Mapping[str, Tensor],
        *,
        context: Context | None = None,
        cache: KVCache | None = None,
        keep: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Return the input of the head; takes the arguments of `forward`."""
        start = 0 if cache is None else cache.length
        h, extra = self.embedding(state, cond, start)
        positions = (
            relative_coordinates(cond, start, valid.shape[1], extra) if self.positions else None
        )
        c = functional.silu(self.condition(level, cond))
        c_all = c if c.ndim == 2 else torch.cat([c[:, :1].expand(-1, extra, -1), c], 1)
        tokens = valid
        if extra:
            whole = valid[:1, :1].expand(len(valid), extra + valid.shape[1])
            tokens = (
                whole if true_everywhere(valid) else functional.pad(valid, (extra, 0), value=True)
            )
        documents = cond.get(DOCUMENT)
        if documents is not None:
            if extra or cache is not None or context is not None:
                raise ValueError(
                    "packed documents require full attention, without a cache and extra tokens"
                )
            documents = documents.masked_fill(~valid, -1)  # padding attends to padding
        requested = self._requested(state, extra)
        if context is not None:
            if self.block_size is None or cache is not None:
                raise ValueError("a context requires block-causal attention and no cache")
            h = self._with_context(
                context, cond, h, c_all, tokens, _Call(requested=requested, positions=positions)
            )
        elif cache is None and (merged := self._merged(state, c, tokens, extra)) is not None:
            static = self._takes_rows and state.requested is not None and not self._readable(tokens)
            call = _Call(
                merged.weight,
                requested=merged.merged_rows() if static else merged.requested(requested),
            )
            h = merged.spread(self._run_blocks(merged.take(h), c, call))
        elif cache is None and (used := self._used_positions(tokens)) is not None:
            requested = None if requested is None else requested.index_select(1, used)
            documents = None if documents is None else documents[:, used]
            mask = self._mask(tokens.index_select(1, used), extra, None, documents)
            call = _Call(mask, requested=requested)
            c_used = c_all if c_all.ndim == 2 else c_all[:, used]
            out = self._run_blocks(h.index_select(1, used), c_used, call)
            h = torch.zeros_like(h).index_copy(1, used, out.to(h.dtype))
        else:
            mask = self._mask(tokens, extra, cache, documents)
            h = self._run_blocks(h, c_all, _Call(mask, cache, keep, requested, positions))
        if cache is not None and keep:
            cache.advance(tokens, extra)
        return self.final(h[:, extra:] if extra else h, c)  # type: ignore[no-any-return]

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Drop conditions of random samples for classifier-free guidance; called once per training batch."""
        drop = getattr(self.condition, "drop_conditions", None)
        return cond if drop is None else drop(cond)

    def new_cache(self) -> KVCache:
        """Return an empty cache. Sampling with it is exact with block-causal attention, in whole blocks."""
        return KVCache()

    def _requested(self, state: State, extra: int) -> Requested | None:
        """Return where the output of the last block is needed; None for everywhere."""
        requested = state.requested
        most = state.most_requested
        if not self.skip_unrequested or requested is None:
            return None
        mask = functional.pad(requested, (extra, 0))
        if self._readable(requested):
            return None if bool(requested.all()) else mask
        known = self._takes_rows and most is not None and most < requested.numel()
        return first_rows(mask.flatten(), most) if known and most is not None else None

    def _merged(
        self,
        state: State,
        c: Float[Tensor, "B *L C"],
        tokens: Bool[Tensor, "B L"],
        extra: int,
    ) -> MergedPositions | None:
        """Return which positions to merge into one, or None."""
        readable = self._readable(tokens)
        most = state.most_visible
        if not self.merge_masked or c.ndim == 3 or (most is None and not readable):
            return None
        longest = (
            None if readable or most is None else -(-(most + extra + 1) // 8) * 8
        )  # a multiple of 8 suits kernels
        return MergedPositions.of(
            tokens, functional.pad(state.masked.all(-1), (extra, 0)), c.dtype, longest
        )

    def _used_positions(self, tokens: Bool[Tensor, "B L"]) -> Int[Tensor, " K"] | None:
        """Return the positions that are not padding in every sample, or None for all."""
        if not self.drop_padding or not self._readable(tokens):
            return None
        used = tokens.any(0).nonzero()[:, 0]
        return used if 0 < len(used) < tokens.shape[1] else None

    def _with_context(
        self,
        context: Context,
        cond: Mapping[str, Tensor],
        h: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L C"],
        tokens: Bool[Tensor, "B L"],
        call: _Call,
    ) -> Float[Tensor, "B L D"]:
        """Run the blocks over the noised sample and its clean context; the last one needs only the context's keys."""
        assert self.block_size is not None
        clean, extra = self.embedding(context.state, cond, 0)
        clean_c = functional.silu(self.condition(context.level, cond))
        block = number_blocks(h.shape[1], extra, self.block_size, h.device)
        both = CleanAndNoised.of(c, clean_c, block, None if self._all_true(tokens) else tokens)
        for layer, module in enumerate(self.blocks):
            run = module if call.positions is None else partial(module, positions=call.positions)
            requested: tuple[Tensor | None, ...] = ()
            if layer == len(self.blocks) - 1:
                nothing = (
                    torch.zeros_like(tokens)
                    if self.skip_unrequested and self._readable(tokens)
                    else None
                )
                requested = (
                    (None if call.requested is None else more_requested(call.requested)),
                    nothing,
                )
            h, clean = self._run(both.layer, run, layer, h, clean, *requested)
        return h

    def _run_blocks(
        self, h: Float[Tensor, "B L D"], c: Float[Tensor, "B *L C"], call: _Call
    ) -> Float[Tensor, "B L D"]:
        options: dict[str, Any] = {"mask": call.mask, "cache": call.cache, "keep": call.keep}
        if call.positions is not None:
            options["positions"] = call.positions
        for layer, block in enumerate(self.blocks):
            if call.requested is not None and layer == len(self.blocks) - 1:
                options["requested"] = more_requested(call.requested)
            h = self._run(block, h, c, layer=layer, **options)
        return h

    def _run(self, run: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        recompute = self.checkpointing and self.training and torch.is_grad_enabled()
        return (
            checkpoint(run, *args, use_reentrant=False, **options)
            if recompute
            else run(*args, **options)
        )

    def _readable(self, mask: Bool[Tensor, "..."]) -> bool:
        """Whether reading values is free: an accelerator would synchronize, a compiled graph would break."""
        return mask.device.type == "cpu" and not (
            self.static_shapes or torch.compiler.is_compiling()
        )

    def _all_true(self, mask: Bool[Tensor, "..."]) -> bool:
        """Whether a mask is known to be True everywhere."""
        return true_everywhere(mask) or (self._readable(mask) and bool(mask.all()))

    @property
    def _takes_rows(self) -> bool:
        return self.skip_unrequested and getattr(self.blocks[-1], "accepts_rows", False)

    def _mask(
        self,
        tokens: Bool[Tensor, "B L"],
        extra: int,
        cache: KVCache | None,
        documents: Int[Tensor, "B L"] | None = None,
    ) -> Bool[Tensor, "B 1 #L K"] | None:
        """Return which valid keys each token attends to, in its own document; None for all.

        With block-causal attention these are the keys of its own block and of earlier ones, extra
        tokens included.
        """
        if documents is not None:
            return documents[:, None, :, None] == documents[:, None, None, :]
        single = self.block_size is None or tokens.shape[1] - extra <= self.block_size
        whole = self.block_size is None if cache is None else single and cache.whole
        if whole and self._all_true(tokens):
            return None
        keys = tokens if cache is None else cache.with_finished(tokens)
        mask = keys[:, None, None, :]
        if self.block_size is None:
            return mask
        extra += 0 if cache is None else cache.extra
        block = number_blocks(keys.shape[1], extra, self.block_size, keys.device)
        return mask & (block[-tokens.shape[1] :, None] >= block[None, :])


def more_requested(requested: Requested) -> Requested:
    """Request a few more positions, so that 32 numbers of rows remain: each takes memory, most in bfloat16 (oneDNN)."""
    if requested.dtype != torch.bool:
        return requested
    more = -int(requested.sum()) % math.ceil(requested.numel() / 32)
    return requested | ((~requested).flatten().cumsum(0) <= more).view_as(requested)


def init_trunc_normal(*modules: nn.Module) -> None:
    """Draw linear weights from a normal distribution of standard deviation 0.02 truncated at +-2; set biases to 0.

    Layers initialised to zero stay zero: adaLN-Zero must start as the identity.
    """
    for module in modules:
        for layer in module.modules():
            if isinstance(layer, nn.Linear) and not layer.weight.is_meta and layer.weight.any():
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


def relative_coordinates(
    cond: Mapping[str, Tensor],
    start: int,
    length: int,
    extra: int,
) -> Shaped[Tensor, "B K"]:
    """Return coordinates relative to the first position of the sample; 0 for extra tokens.

    Args:
        cond: Conditions by name; the coordinates are those of whole samples.
        start: Index of the first position.
        length: Number of positions.
        extra: Number of extra tokens before them.

    Raises:
        ValueError: Coordinates are missing.
    """
    if CENTRE not in cond:
        raise ValueError(f'the blocks require the condition "{CENTRE}"')
    coordinates = cond[CENTRE]
    return functional.pad(coordinates[:, start : start + length] - coordinates[:, :1], (extra, 0))


def tie_embeddings(embedding: Any, head: Any) -> None:
    """Share the embedding tables with the weights of the head (Press and Wolf, 2017); biases stay separate.

    Args:
        embedding: A module with `tables`, an `nn.Embedding` per field.
        head: A module with `maps`, an `nn.Linear` per field.

    Raises:
        ValueError: Their number or shapes differ.
    """
    for table, linear in zip(embedding.tables, head.maps, strict=True):
        if table.weight.shape != linear.weight.shape:
            shapes = f"{tuple(table.weight.shape)} and {tuple(linear.weight.shape)}"
            raise ValueError(f"embedding and head of shapes {shapes} cannot share weights")
        linear.weight = table.weight
