"""The model: embed, blocks, final norm, head.

Letters: B batch, L length, K keys, M features, V vocabulary, D width, C condition width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from dither.registry.flow.records import Context, State

from .block_causal import CleanAndNoised, number_blocks
from .cpu.merge_identical import MergedPositions
from .cpu.pad_to_eight import pad_to_eight
from .kv_cache import KVCache
from .options import CENTRE

__all__ = ["Denoiser", "init_trunc_normal", "relative_coordinates", "tie_embeddings"]

MAX_PADDING_PATTERNS = 8
"""Up to so many patterns of padding, a batch is taken apart by them."""


class Denoiser(nn.Module):
    """A diffusion transformer over tokens or features.

    Args:
        embedding: (state, cond, start) -> (`B extra+L D`, extra): extra tokens, such as a class token, come first.
        condition: (level, cond) -> `B C` or `B L C`; its SiLU is applied here, once for all blocks.
        blocks: (x, c, mask=, cache=, layer=, keep=) -> x.
        final: (x, c) -> what the head reads.
        head: `B L D` -> raw values per position.
        block_size: With block-causal attention, the number of positions per block.
        checkpointing: Compute each block again in the backward pass instead of keeping its activations.
        skip_padding: On a CPU, leave padding out of the blocks instead of masking it. Exact for blocks that know no
            positions: rows of one pattern of real positions are taken together, and only these positions.
        skip_unrequested: On a CPU, pass `requested` to the last block, whose positions do not see its output, so that
            it computes only these.
        join_hidden: On a CPU, take the positions of a sample that are hidden as a whole as one. Exact where the
            embedding gives them one vector, and the blocks know no positions and can weigh keys.
        positions: Tell the blocks where positions lie (positions=), as the condition "centre" has it.
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
        skip_padding: bool = False,
        skip_unrequested: bool = False,
        join_hidden: bool = False,
        positions: bool = False,
    ) -> None:
        super().__init__()
        self.embedding, self.condition, self.blocks = embedding, condition, nn.ModuleList(blocks)
        self.final, self.head = final, head
        self.block_size, self.checkpointing = block_size, checkpointing
        self.skip_padding, self.skip_unrequested, self.join_hidden = skip_padding, skip_unrequested, join_hidden
        self.positions = positions

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
        """Return raw values per position: `B L M` for features, one number per id `B L V` for tokens.

        Args:
            state: What is seen of the sample.
            level: What the process says of the noise, per sample or per position.
            valid: True on real positions. What stands elsewhere reaches no real position.
            cond: Conditions by name.
            context: Under block-causal attention, the clean sample: each block of the state sees of other blocks the
                earlier ones of the context, and none of the state. It is what a cache gives, for all blocks at once.
            cache: Finished positions, which stand before those of the state.
            keep: Whether to add the positions of the state to the cache.

        Raises:
            ValueError: A context is given to a model without blocks, or beside a cache.
        """
        out: Tensor = self.head(self.trunk(state, level, valid, cond, context=context, cache=cache, keep=keep))
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
        """Return what the head reads; the arguments are those of `forward`."""
        start = 0 if cache is None else cache.length
        h, extra = self.embedding(state, cond, start)
        places = relative_coordinates(cond, start, valid.shape[1], extra) if self.positions else None
        c = functional.silu(self.condition(level, cond))
        c_all = c if c.ndim == 2 else torch.cat([c[:, :1].expand(-1, extra, -1), c], 1)
        tokens = functional.pad(valid, (extra, 0), value=True)
        if context is not None:
            if self.block_size is None or cache is not None:
                raise ValueError("a context is for block-causal attention without a cache")
            h = self._beside(context, cond, h, c_all, self._asked(state, extra), tokens, places)
            return self._read(h, c, extra)
        requested, alike = self._asked(state, extra), self._alike(state, c, tokens, extra, cache)
        if alike is not None:
            h = self._layers(alike.take(h), c, alike.requested(requested), alike.weight, None, False)
            return self._read(alike.spread(h), c, extra)
        groups = self._groups(tokens, requested, cache)
        if groups is None:
            h = self._layers(h, c_all, requested, self._mask(tokens, extra, cache), cache, keep, places)
        elif groups:
            h = self._without_padding(h, c_all, requested, groups)
        else:
            h = pad_to_eight(self._layers, h, c_all, requested, places)
        if cache is not None and keep:
            cache.advance(tokens, extra)
        return self._read(h, c, extra)

    def _read(self, h: Float[Tensor, "B L D"], c: Float[Tensor, "B *L C"], extra: int) -> Float[Tensor, "B L D"]:
        out: Tensor = self.final(h[:, extra:], c)
        return out

    def leave_out(self, cond: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Leave out of some samples what the condition leaves out in training, drawn anew: once for each batch."""
        leave_out = getattr(self.condition, "leave_out", None)
        return cond if leave_out is None else leave_out(cond)

    def new_cache(self) -> KVCache:
        """Return an empty cache. Sampling with one is exact under block-causal attention, whole blocks at a time."""
        return KVCache()

    def _asked(self, state: State, extra: int) -> Bool[Tensor, "B L"] | None:
        """Return where the last block is to look at single positions; None for everywhere."""
        requested = state.requested
        if not self.skip_unrequested or requested is None or not _readable(requested) or bool(requested.all()):
            return None
        return functional.pad(requested, (extra, 0))

    def _alike(
        self,
        state: State,
        c: Float[Tensor, "B *L C"],
        tokens: Bool[Tensor, "B L"],
        extra: int,
        cache: KVCache | None,
    ) -> MergedPositions | None:
        """Return which positions are to be taken as one; None to take each by itself."""
        if not self.join_hidden or c.ndim == 3 or self.block_size is not None or cache is not None:
            return None
        if not _readable(tokens):
            return None
        return MergedPositions.of(tokens, functional.pad(state.masked.all(-1), (extra, 0)), c.dtype)

    def _groups(
        self, tokens: Bool[Tensor, "B L"], requested: Bool[Tensor, "B L"] | None, cache: KVCache | None
    ) -> list[tuple[Tensor, Tensor]] | None:
        """Return rows and real positions of each pattern of padding; [] where nothing is padded, None to mask it.

        Rows of which nothing is asked are in no group, unless that is so of all. On an accelerator, looking at the
        pattern would make the host wait, and shapes would change from step to step.
        """
        if self.block_size is not None or cache is not None or not _readable(tokens):
            return None
        heard = (
            torch.ones(len(tokens), dtype=torch.bool) if requested is None or not requested.any() else requested.any(1)
        )
        if bool(tokens.all()) and (bool(heard.all()) or not self.skip_padding):
            return []
        patterns, which = torch.unique(tokens, dim=0, return_inverse=True)
        if not self.skip_padding or len(patterns) > MAX_PADDING_PATTERNS or not bool(patterns.any(1).all()):
            return None
        groups = [(torch.where((which == number) & heard)[0], real) for number, real in enumerate(patterns)]
        return [(rows, torch.where(real)[0]) for rows, real in groups if len(rows)]

    def _without_padding(
        self,
        h: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L C"],
        requested: Bool[Tensor, "B L"] | None,
        groups: list[tuple[Tensor, Tensor]],
    ) -> Float[Tensor, "B L D"]:
        """Run the blocks over each group of rows by itself, on its real positions; the others come out as zeros."""
        length, parts = h.shape[1], []
        real = torch.cat([(rows[:, None] * length + places).flatten() for rows, places in groups])
        sizes = [len(rows) * len(places) for rows, places in groups]
        taken = torch.split(h.flatten(0, 1).index_select(0, real), sizes)
        for (rows, places), group in zip(groups, taken, strict=True):
            index = rows[:, None], places
            c_group = c[rows] if c.ndim == 2 else c[index]
            asked_group = None if requested is None else requested[index]
            out = self._layers(group.view(len(rows), len(places), -1), c_group, asked_group, None, None, False)
            parts.append(out.flatten(0, 1))
        return torch.zeros_like(h).flatten(0, 1).index_copy(0, real, torch.cat(parts)).view_as(h)

    def _beside(
        self,
        context: Context,
        cond: Mapping[str, Tensor],
        h: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L C"],
        requested: Bool[Tensor, "B L"] | None,
        tokens: Bool[Tensor, "B L"],
        places: Shaped[Tensor, "B L"] | None,
    ) -> Float[Tensor, "B L D"]:
        """Run the blocks over the noised sample and the clean one, of which the last layer needs only the keys."""
        assert self.block_size is not None
        clean, extra = self.embedding(context.state, cond, 0)
        clean_c = functional.silu(self.condition(context.level, cond))
        block = number_blocks(h.shape[1], extra, self.block_size, h.device)
        halves = CleanAndNoised.of(c, clean_c, block, None if _all(tokens) else tokens)
        for layer, module in enumerate(self.blocks):
            run = module if places is None else partial(module, positions=places)
            told: tuple[Tensor | None, ...] = ()
            if layer == len(self.blocks) - 1:
                told = requested, torch.zeros_like(tokens) if self.skip_unrequested and _readable(tokens) else None
            h, clean = self._run(halves.layer, run, layer, h, clean, *told)
        return h

    def _layers(
        self,
        h: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L C"],
        requested: Bool[Tensor, "B L"] | None,
        mask: Shaped[Tensor, "B 1 #L K"] | None,
        cache: KVCache | None,
        keep: bool,
        places: Shaped[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        told = {} if places is None else {"positions": places}
        for layer, block in enumerate(self.blocks):
            last = {"requested": requested} if requested is not None and layer == len(self.blocks) - 1 else {}
            h = self._run(block, h, c, mask=mask, cache=cache, layer=layer, keep=keep, **last, **told)
        return h

    def _run(self, run: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        again = self.checkpointing and self.training and torch.is_grad_enabled()
        return checkpoint(run, *args, use_reentrant=False, **options) if again else run(*args, **options)

    def _mask(self, tokens: Bool[Tensor, "B L"], extra: int, cache: KVCache | None) -> Bool[Tensor, "B 1 #L K"] | None:
        """A token looks at real ones, and under block-causal attention at none of a later block than its own.

        Extra tokens stand in the first block, so that all see them. A single block behind a cache sees all there is;
        on a CPU, where looking costs nothing, it has no mask if nothing is padded.
        """
        single = self.block_size is None or tokens.shape[1] - extra <= self.block_size
        if cache is not None and single and cache.whole and _all(tokens):
            return None
        keys = tokens if cache is None else cache.with_finished(tokens)
        mask = keys[:, None, None, :]
        if self.block_size is None:
            return mask
        extra += 0 if cache is None else cache.extra
        block = number_blocks(keys.shape[1], extra, self.block_size, keys.device)
        return mask & (block[-tokens.shape[1] :, None] >= block[None, :])


def _readable(mask: Bool[Tensor, "..."]) -> bool:
    """Whether a mask may be looked at: on an accelerator the host would wait, and a graph would break."""
    return mask.device.type == "cpu" and not torch.compiler.is_compiling()


def _all(mask: Bool[Tensor, "..."]) -> bool:
    """Whether a mask is known to be True everywhere."""
    return _readable(mask) and bool(mask.all())


def init_trunc_normal(*parts: nn.Module) -> None:
    """Start linear maps from a normal distribution of standard deviation 0.02 cut at +-2, and their biases at 0.

    A map that starts at zero is left alone: an adaLN-Zero modulation must stay the identity.
    """
    for part in parts:
        for layer in part.modules():
            if isinstance(layer, nn.Linear) and not layer.weight.is_meta and layer.weight.any():
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)


def relative_coordinates(cond: Mapping[str, Tensor], start: int, length: int, extra: int) -> Shaped[Tensor, "B K"]:
    """Return how far tokens lie from the first position of their sample; extra tokens lie where that does.

    Args:
        cond: Conditions by name; that of places is of whole samples.
        start: The first position of the tokens.
        length: Number of their positions.
        extra: Tokens before them that belong to no position.

    Raises:
        ValueError: It is not told where positions lie.
    """
    if CENTRE not in cond:
        raise ValueError(f'the blocks need the condition "{CENTRE}", which is not told')
    places = cond[CENTRE]
    return functional.pad(places[:, start : start + length] - places[:, :1], (extra, 0))


def tie_embeddings(embedding: Any, head: Any) -> None:
    """Let each map of a head read with the rows of a table from now on (Press and Wolf, 2017); its bias stays its own.

    The tables keep their values, and get both gradients.

    Args:
        embedding: A module with `tables`, an `nn.Embedding` for each field.
        head: A module with `maps`, an `nn.Linear` for each field.

    Raises:
        ValueError: They are not as many, or differ in shape.
    """
    for table, linear in zip(embedding.tables, head.maps, strict=True):
        if table.weight.shape != linear.weight.shape:
            shapes = f"{tuple(table.weight.shape)} and {tuple(linear.weight.shape)}"
            raise ValueError(f"an embedding and a head of shapes {shapes} cannot share their weights")
        linear.weight = table.weight
