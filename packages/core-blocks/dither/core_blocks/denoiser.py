"""The model: embedding, blocks, final norm, head.

Letters: B batch, L length, T tokens (extra ones and positions), K keys, M features, V vocabulary,
D width, C condition width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dither.registry.contracts.protocols import DropsConditions
from dither.registry.contracts.records import Context, State
from dither.registry.contracts.times import as_levels

from .attention import with_keys
from .block_causal import CleanAndNoised, number_blocks
from .kv_cache import KVCache
from .merge_identical import MergedPositions
from .options import CENTRE, DOCUMENT
from .patches import Patches, UnpatchedHead

__all__ = ["Denoiser", "init_trunc_normal", "relative_coordinates", "tie_embeddings"]


@dataclass(frozen=True)
class _Tokens:
    """The sequence that enters the blocks: extra tokens, such as a class token, then the positions.

    Attributes:
        h: Embedded tokens.
        c: Condition of the blocks, its SiLU applied.
        valid: False on padding.
        extra: Number of extra tokens.
        positions: Coordinates for RoPE by the trait of blocks that takes them.
        documents: Number of each token's document, -1 on padding; None for a single document.
        requested: Tokens whose output is used; None for all.
        unpadded: Whether the host knows that all tokens are valid.
    """

    h: Float[Tensor, "B T D"]
    c: Float[Tensor, "B *T C"]
    valid: Bool[Tensor, "B T"]
    extra: int
    positions: dict[str, Shaped[Tensor, "B T *axes"]]
    documents: Int[Tensor, "B T"] | None
    requested: Bool[Tensor, "B T"] | None
    unpadded: bool


class Denoiser(nn.Module):
    """A diffusion transformer over tokens or features (DiT; Peebles and Xie, 2023).

    Args:
        embedding: (state, cond, start) -> (`B extra+L D`, extra): extra tokens, such as a class
            token, come first.
        condition: (level, cond) -> `B C` or `B L C`; its SiLU is applied here, once for all blocks.
        blocks: (x, c, mask=, cache=, layer=, keep=) -> x.
        final: (x, c) -> input of the head.
        head: `B L D` -> raw values per position.
        block_size: Positions per block with block-causal attention; None for full attention.
        checkpointing: Recompute each block in the backward pass instead of keeping its activations.
        skip_unrequested: Pass `State.requested` to the last block, which may compute keys and values
            alone at other positions.
        merge_masked: Replace all fully masked positions of a sample by one. Exact if the embedding
            maps them to one vector and the blocks are permutation-equivariant and accept a float
            mask.
        drop_padding: Compute only positions that are valid in some sample of the batch. Exact if
            the blocks are permutation-equivariant.
        positions: The coordinates that each block takes as `positions`: "positions" for those of the
            condition "centre", "grid-positions" for column and row; none by default.
        columns: Columns of the grid of positions, if a block takes them.
        reads_previous: Return at each position but the first the output of the one before it.
        id_before_first: Input of the first position of a model that predicts each id from those before
            it, which are the input of the others (autoregressive); None for other models. Such a
            model has blocks of one position and no noise level, and of a noised sample with a context
            reads the context only.
        patches: Division of the grid into patches, which all components then take for positions;
            None for none. Excludes caches and contexts.
        previous: `State.previous` -> vectors added to the embedded positions; None without
            self-conditioning.
    """

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
        positions: Sequence[str | None] = (),
        columns: int = 1,
        reads_previous: bool = False,
        id_before_first: int | None = None,
        patches: Patches | None = None,
        previous: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.condition = condition
        self.blocks = nn.ModuleList(blocks)
        self.final = final
        self.head = head if patches is None else UnpatchedHead(head, patches)
        self.block_size = block_size
        self.checkpointing = checkpointing
        self.skip_unrequested = skip_unrequested
        self.merge_masked = merge_masked
        self.drop_padding = drop_padding
        self.positions = positions
        self.columns = columns
        self.reads_previous = reads_previous
        self.id_before_first = id_before_first
        self.patches = patches
        self.previous = previous

    def forward(
        self,
        state: State,
        level: float | Float[Tensor, "B *L"],
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
            level: Noise level, of all samples, per sample or per position.
            valid: False on padding, which never influences valid positions.
            cond: Conditions by name.
            context: With block-causal attention, the clean sample: each block of the state attends
                to itself and to earlier blocks of the context. Equals sampling with a cache, for
                all blocks together.
            cache: Keys and values of finished positions before those of the state.
            keep: Whether to add the positions of the state to the cache.

        Raises:
            ValueError: A context is given to a model without blocks, or together with a cache; the
                level has another shape, or is NaN (see `as_levels`).
        """
        h = self.trunk(
            state, level, valid, cond, context=context, cache=cache, keep=keep
        )
        out: Tensor = self.head(h)
        return out

    def trunk(
        self,
        state: State,
        level: float | Float[Tensor, "B *L"],
        valid: Bool[Tensor, "B L"],
        cond: Mapping[str, Tensor],
        *,
        context: Context | None = None,
        cache: KVCache | None = None,
        keep: bool = False,
    ) -> Float[Tensor, "B L D"]:
        """Return the input of the head, with one row per patch if there are patches.

        Takes the arguments of `forward`. With `skip_unrequested`, rows that are not in
        `state.requested` are arbitrary.
        """
        level = as_levels(level, valid)
        if self.patches is not None:
            state, level, valid, cond = self.patches.inputs(state, level, valid, cond)
        if self.id_before_first is not None:
            state = self._ids_before(state, valid, context, cond, cache, keep)
            context = None
        # Tokens of the positions, after extra ones such as a class token: B T D
        start = 0 if cache is None else cache.length
        h, extra = self.embedding(state, cond, start)
        if DOCUMENT in cond and (extra or cache is not None):
            raise ValueError("packed documents exclude a cache and extra tokens")
        h = self._add_previous(h, state, extra)
        # adaLN reads silu(c) in every block, so that it is applied once: B C or B L C
        c = functional.silu(self.condition(level, cond))
        requested = None
        # Rows can be chosen where reading the mask is free.
        if self.skip_unrequested and _reads_are_free(valid):
            requested = state.requested
        tokens = self._tokens(
            h=h,
            c=c,
            extra=extra,
            valid=valid,
            cond=cond,
            start=start,
            requested=requested,
            unpadded=state.unpadded,
        )

        h = self._through_blocks(tokens, state, cond, context, cache, keep)

        # Extra tokens have no output: B T D -> B L D
        out: Tensor = self.final(h[:, extra:], c)
        if self.reads_previous:
            # Output i predicts token i + 1. The spec excludes a cache and `requested` then.
            out = torch.cat([out[:, :1], out[:, :-1]], 1)
        return out

    def drop_conditions(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Drop conditions of random samples for classifier-free guidance, in a training batch."""
        if isinstance(self.condition, DropsConditions):
            return self.condition.drop_conditions(cond)
        return cond

    def new_cache(self) -> KVCache:
        """Return an empty cache, exact for whole blocks under block-causal attention."""
        return KVCache()

    def finish(
        self, x: Int[Tensor, "B L"], valid: Bool[Tensor, "B L"], cache: KVCache
    ) -> bool:
        """Add finished positions to a cache by what the last call wrote; False if that is not possible.

        The keys and values of one position of an autoregressive model do not depend on its id, so
        that they are the same before and after the id is drawn.
        """
        if self.id_before_first is None or cache.written is None:
            return False
        written, extra = cache.written
        # Of several positions, each but the first depends on the id before it.
        if x.shape[1] != 1 or written.shape[1] - extra != 1:
            return False
        cache.keep_ids(x.masked_fill(~valid, self.id_before_first))
        cache.advance(written, extra)
        return True

    def _ids_before(
        self,
        state: State,
        valid: Bool[Tensor, "B L"],
        context: Context | None,
        cond: Mapping[str, Tensor],
        cache: KVCache | None,
        keep: bool,
    ) -> State:
        """Return the state with clean ids shifted right by one; a cache that grows keeps the ids."""
        assert self.id_before_first is not None
        x = state.x if context is None else context.state.x
        # Padding is replaced, for the next position reads it.
        x = x.masked_fill(~valid, self.id_before_first)
        first = x.new_full((len(x), 1), self.id_before_first)
        if cache is not None and cache.length:
            first = cache.last_ids
        before = torch.cat([first, x[:, :-1]], 1)
        if cache is not None and keep:
            cache.keep_ids(x)
        if DOCUMENT in cond:
            # A document does not see the last id of the one before it.
            begins = cond[DOCUMENT].diff(dim=1) != 0
            begins = functional.pad(begins, (1, 0), value=True)
            before = before.masked_fill(begins, self.id_before_first)
        return replace(state, x=before, noisy=None)

    def _add_previous(
        self, h: Float[Tensor, "B T D"], state: State, extra: int
    ) -> Float[Tensor, "B T D"]:
        """Add the previous prediction under self-conditioning; extra tokens have none."""
        if self.previous is None or state.previous is None:
            return h
        return h + functional.pad(self.previous(state.previous), (0, 0, extra, 0))

    def _tokens(
        self,
        h: Float[Tensor, "B T D"],
        c: Float[Tensor, "B *L C"],
        extra: int,
        valid: Bool[Tensor, "B L"],
        cond: Mapping[str, Tensor],
        start: int,
        requested: Bool[Tensor, "B L"] | None,
        *,
        unpadded: bool,
    ) -> _Tokens:
        """Extend everything that is given per position to the extra tokens."""
        # An extra token is conditioned on the level of the first position.
        if c.ndim == 3:
            c = torch.cat([c[:, :1].expand(-1, extra, -1), c], 1)

        positions = {}
        length = valid.shape[1]
        if "positions" in self.positions:
            coordinates = relative_coordinates(cond, start, length, extra)
            positions["positions"] = coordinates
        if "grid-positions" in self.positions:
            numbers = torch.arange(start, start + length, device=valid.device)
            places = torch.stack([numbers % self.columns, numbers // self.columns], -1)
            places = functional.pad(places, (0, 0, extra, 0))
            positions["grid-positions"] = places.expand(len(valid), -1, -1)

        documents = cond.get(DOCUMENT)
        if documents is not None:
            # Padding attends to padding, so that every query has a key.
            documents = documents.masked_fill(~valid, -1)

        if requested is not None:
            requested = functional.pad(requested, (extra, 0))

        return _Tokens(
            h=h,
            c=c,
            valid=functional.pad(valid, (extra, 0), value=True),
            extra=extra,
            positions=positions,
            documents=documents,
            requested=requested,
            unpadded=unpadded,
        )

    def _through_blocks(
        self,
        tokens: _Tokens,
        state: State,
        cond: Mapping[str, Tensor],
        context: Context | None,
        cache: KVCache | None,
        keep: bool,
    ) -> Float[Tensor, "B T D"]:
        # Block diffusion trains with the clean sample as context, sampling has it in a cache.
        if context is not None:
            return self._with_context(tokens, context, cond, cache)
        if cache is not None:
            return self._with_cache(tokens, cache, keep)
        return self._without_cache(tokens, state)

    def _without_cache(self, tokens: _Tokens, state: State) -> Float[Tensor, "B T D"]:
        """Attend within the sequence; on a CPU, of as few tokens as give the same result."""
        if _reads_are_free(tokens.valid):
            # 2x of a training step of the get-region seed model, half of whose regions are masked.
            if self.merge_masked and tokens.c.ndim == 2:
                identical = functional.pad(state.masked.all(-1), (tokens.extra, 0))
                merged = MergedPositions.of(tokens.valid, identical, tokens.c.dtype)
                if merged is not None:
                    return self._with_merged(tokens, merged)

            # 1.36x of a training step of bubble_diagram/quick, whose batches have one length each.
            if self.drop_padding:
                used = tokens.valid.any(0).nonzero()[:, 0]
                if 0 < len(used) < tokens.valid.shape[1]:
                    return self._with_some(tokens, used)

        return self._run_blocks(tokens, self._mask(tokens))

    def _with_merged(
        self, tokens: _Tokens, merged: MergedPositions
    ) -> Float[Tensor, "B T D"]:
        """Compute one token for each set of identical ones, which counts as that many keys."""
        # The trait requires full attention without RoPE, so that no token has a position.
        remaining = replace(
            tokens,
            h=merged.take(tokens.h),
            requested=merged.requested(tokens.requested),
        )
        return merged.spread(self._run_blocks(remaining, merged.weight))

    def _with_some(
        self, tokens: _Tokens, used: Int[Tensor, " K"]
    ) -> Float[Tensor, "B T D"]:
        """Compute only some tokens; the others, padding in every sample, become zeros."""
        selected = replace(
            tokens,
            h=tokens.h.index_select(1, used),
            c=tokens.c if tokens.c.ndim == 2 else tokens.c[:, used],
            valid=tokens.valid[:, used],
            documents=None if tokens.documents is None else tokens.documents[:, used],
            requested=None if tokens.requested is None else tokens.requested[:, used],
        )
        h = self._run_blocks(selected, self._mask(selected))
        return torch.zeros_like(tokens.h).index_copy(1, used, h.to(tokens.h.dtype))

    def _with_cache(
        self, tokens: _Tokens, cache: KVCache, keep: bool
    ) -> Float[Tensor, "B T D"]:
        """Attend to the cached tokens as well, and add these tokens to the cache if `keep`."""
        h = self._run_blocks(tokens, self._mask(tokens, cache), cache=cache, keep=keep)
        # Without `keep` the next call writes to the same places.
        cache.written = (tokens.valid, tokens.extra)
        if keep:
            cache.advance(*cache.written)
        return h

    def _with_context(
        self,
        tokens: _Tokens,
        context: Context,
        cond: Mapping[str, Tensor],
        cache: KVCache | None,
    ) -> Float[Tensor, "B T D"]:
        """Run [x_t | x_0] through the blocks: a noised block attends to earlier clean ones."""
        if self.block_size is None or cache is not None:
            raise ValueError("a context requires block-causal attention and no cache")

        # The clean sample at t = 0, with a condition of its own: B T D, B C
        clean, extra = self.embedding(context.state, cond, 0)
        clean_c = functional.silu(self.condition(context.level, cond))
        block = number_blocks(clean.shape[1], extra, self.block_size, clean.device)
        keys = tokens.valid[:, None]
        if tokens.documents is not None:
            keys = _same_document(tokens.documents)
        both = CleanAndNoised.of(tokens.c, clean_c, block, keys)

        requested = tokens.requested
        # Given any requested positions, the last layer leaves out the clean output, which nothing reads.
        if self.skip_unrequested and requested is None:
            requested = tokens.valid if _reads_are_free(tokens.valid) else None
        h = tokens.h
        last = len(self.blocks) - 1
        for layer, module in enumerate(self.blocks):
            options = self._block_options(tokens, layer)
            chosen = requested if layer == last else None
            h, clean = self._run(both.layer, module, layer, h, clean, chosen, **options)
        return h

    def _run_blocks(
        self,
        tokens: _Tokens,
        mask: Shaped[Tensor, "#B 1 #T K"] | None,
        *,
        cache: KVCache | None = None,
        keep: bool = False,
    ) -> Float[Tensor, "B T D"]:
        h = tokens.h
        for layer, block in enumerate(self.blocks):
            options: dict[str, Any] = self._block_options(tokens, layer)
            # The last block passes on nothing but its output: 0.87x of the CPU time of an ancestral
            # step of the language seed model.
            if tokens.requested is not None and layer == len(self.blocks) - 1:
                options["requested"] = tokens.requested
            h = self._run(
                block,
                h,
                tokens.c,
                mask=mask,
                cache=cache,
                layer=layer,
                keep=keep,
                **options,
            )
        return h

    def _block_options(self, tokens: _Tokens, layer: int) -> dict[str, Tensor]:
        """Return the argument that only blocks with the traits of positions accept."""
        kind = self.positions[layer] if self.positions else None
        return {} if kind is None else {"positions": tokens.positions[kind]}

    def _run(self, block: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        """Call a block, with activation checkpointing if that is on."""
        if self.checkpointing and self.training and torch.is_grad_enabled():
            return checkpoint(block, *args, use_reentrant=False, **options)
        return block(*args, **options)

    def _mask(
        self, tokens: _Tokens, cache: KVCache | None = None
    ) -> Bool[Tensor, "B 1 #T K"] | None:
        """Return which keys each token attends to, valid ones of its document; None for all.

        With block-causal attention these are the keys of its own block and of earlier ones, extra
        tokens included.
        """
        keys = tokens.valid if cache is None else cache.with_finished(tokens.valid)
        # With a mask that hides nothing a training step of bubble_diagram/quick takes 1.06 times as
        # long, and one of get_region/seed on an H200 1.16 times.
        unpadded = tokens.unpadded and cache is None
        if _reads_are_free(keys):
            unpadded = bool(keys.all())
        mask = None if unpadded else keys[:, None, None, :]
        if tokens.documents is not None:
            mask = _same_document(tokens.documents)[:, None]
        if self.block_size is None:
            return None if mask is None else with_keys(mask)

        extra = tokens.extra
        first = 0
        if cache is not None:
            extra += cache.extra
            first = cache.dropped
        block = number_blocks(
            tokens=keys.shape[1],
            extra=extra,
            size=self.block_size,
            device=keys.device,
            first=first,
        )
        # The queries are the last tokens: T K
        earlier = block[-tokens.valid.shape[1] :, None] >= block
        # One mask of all samples where none has padding: 1.03x of an autoregressive likelihood
        return earlier[None, None] if mask is None else with_keys(mask & earlier)


def _same_document(documents: Int[Tensor, "B T"]) -> Bool[Tensor, "B T T"]:
    """Return which keys are of the document of each query."""
    return documents[:, :, None] == documents[:, None, :]


def _reads_are_free(mask: Bool[Tensor, "..."]) -> bool:
    """Whether Python may read values of a mask at no cost: on a CPU, outside a compiled graph.

    Reading from an accelerator waits for all work that is queued there, and a shape that depends on
    values breaks a compiled graph.
    """
    return mask.device.type == "cpu" and not torch.compiler.is_compiling()


def init_trunc_normal(*modules: nn.Module) -> None:
    """Draw linear weights from a normal distribution of standard deviation 0.02 truncated at +-2; set biases to 0.

    Layers initialised to zero stay zero: adaLN-Zero must start as the identity.
    """
    for module in modules:
        for layer in module.modules():
            # A model on the meta device has no values to draw.
            if (
                isinstance(layer, nn.Linear)
                and not layer.weight.is_meta
                and layer.weight.any()
            ):
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
    return functional.pad(
        coordinates[:, start : start + length] - coordinates[:, :1], (extra, 0)
    )


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
            raise ValueError(
                f"embedding and head of shapes {shapes} cannot share weights"
            )
        linear.weight = table.weight
