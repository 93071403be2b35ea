"""Specs of the embeddings; registers all components of this package. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from dither.registry import (
    FeatureSpace,
    Misfit,
    Slot,
    Space,
    Spec,
    TokenSpace,
    below,
    hookimpl,
    named,
)
from dither.registry.kinds import FEATURES, TOKENS, EmbeddingSpec, PositionSpec

from .condition_specs import Label, Level, NoCondition, Number, Outline, Sum
from .head_specs import (
    FeatureValues,
    Sigmoid,
    Softplus,
    TokenDiffusion,
    TokenLogits,
    check_experiment,
)
from .options import Endpoint, Init, check_groups, columns_without, is_graph
from .position_specs import (
    GenomicSinusoid,
    GridSinusoid,
    LearnedPosition,
    NoPosition,
    Sinusoid,
)

if TYPE_CHECKING:
    from .features import PatchEmbedding, RegionEmbedding
    from .graph import GraphEmbedding
    from .tokens import TokenEmbedding

__all__ = [
    "Graph",
    "PatchValues",
    "Regions",
    "Tokens",
    "check_experiment",
    "register_components",
]

MAX_TIED_STD = 0.1
"""Largest initial standard deviation of a table that a head may share."""


class Tokens(EmbeddingSpec):
    """An embedding table per field."""

    name = "tokens"
    reads_labels: ClassVar[bool] = False
    rev = 2
    serves = TOKENS
    init: Init = "normal"
    """Initialisation of the tables: normal has standard deviation 1, kaiming is uniform between
    -1/sqrt(width) and 1/sqrt(width), and a number is the standard deviation."""
    position: Slot[PositionSpec] = named("none")
    """Position embedding, added to the tokens."""
    known: bool = False
    """Add a vector to known tokens, such as a prompt, so that a model distinguishes them from
    noised ones. Train it with train.known, or with data that have known tokens."""

    def traits(self) -> frozenset[str]:
        """A head may share the tables if they start small: at 1, logits would start at sqrt(width)."""
        traits = set()
        if self.init == "kaiming" or (
            isinstance(self.init, float) and self.init <= MAX_TIED_STD
        ):
            traits.add("tables")
        if self.known:
            traits.add("known")
        return frozenset(traits) | self.position.traits()

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Require tokens, and a position embedding that fits."""
        yield from super().check(space, width)
        yield from below("position", self.position.check(space, width))

    def build(self, space: Space, width: int) -> TokenEmbedding:
        from .tokens import TokenEmbedding

        assert isinstance(space, TokenSpace)
        return TokenEmbedding(
            space,
            width,
            init=self.init,
            position=self.position.build(space, width),
            known=self.known,
        )


class Graph(EmbeddingSpec):
    """Tokens of a complete graph: nodes, then every pair of nodes, each with an embedding of its position."""

    name = "graph"
    reads_labels: ClassVar[bool] = False
    serves = TOKENS
    endpoint: Endpoint = "shared"
    """Embedding of a pair's two nodes: shared adds a vector per node from one table, directed has
    one table for the first node and one for the second, tied uses the table of the nodes."""
    init: Init = "normal"
    """Initialisation of the tables, as for tokens."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Require a graph: fields of nodes and of their pairs."""
        yield from super().check(space, width)
        if isinstance(space, TokenSpace) and not is_graph(space):
            message = (
                'embedding "graph" requires fields of n nodes and of their n(n-1)/2 pairs, and '
                f"others only of n or n(n+1)/2 tokens; a sample here is {space}"
            )
            yield Misfit(message, related=("process",))

    def build(self, space: Space, width: int) -> GraphEmbedding:
        from .graph import GraphEmbedding

        assert isinstance(space, TokenSpace)
        return GraphEmbedding(space, width, endpoint=self.endpoint, init=self.init)


class Regions(EmbeddingSpec):
    """A linear layer per position, a learned token for fully masked positions, and a class token in front (GET)."""

    name = "regions"
    reads_labels: ClassVar[bool] = False
    serves = FEATURES
    cls: bool = True
    """Whether a class token, which every position attends to, comes first."""
    elements: bool = False
    """Whether a second linear layer embeds which elements of a position are masked, or noisy next
    to clean ones. Without it a masked element looks like a 0."""
    without: list[str] = []
    """Groups of columns that are not read, such as ["expression"], which a model predicts from the
    others."""
    position: Slot[PositionSpec] = named("none")
    """Position embedding. With none, all fully masked regions look the same, and a model without
    other positions predicts the same for all of them."""

    def traits(self) -> frozenset[str]:
        """Without positions all fully masked regions have one vector."""
        traits = self.position.traits()
        return traits | {"identical-masked"} if "position-free" in traits else traits

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Require known columns of which some are read, and a position embedding that fits."""
        yield from super().check(space, width)
        yield from below("position", self.position.check(space, width))
        yield from check_groups(space, self.without, ("without",))
        if isinstance(space, FeatureSpace) and not columns_without(space, self.without):
            yield Misfit("no column is left to read", ("without",), ("task",))

    def extra(self) -> int:
        """Return 1 with a class token."""
        return int(self.cls)

    def build(self, space: Space, width: int) -> RegionEmbedding:
        from .features import RegionEmbedding

        assert isinstance(space, FeatureSpace)
        columns = None
        if self.without:
            columns = columns_without(space, self.without)
        return RegionEmbedding(
            space.width,
            width,
            columns=columns,
            cls=self.cls,
            elements=self.elements,
            position=self.position.build(space, width),
        )


class PatchValues(EmbeddingSpec):
    """A linear layer per position of a grid, such as the patches of an image (ViT, DiT).

    It reads no masks: use a process that adds noise, or the embedding "regions".
    """

    name = "patches"
    reads_labels: ClassVar[bool] = False
    serves = FEATURES
    position: Slot[PositionSpec] = named("grid-sinusoid")
    """Position embedding, added to the vectors."""

    def traits(self) -> frozenset[str]:
        """Masked values look like zeros."""
        return self.position.traits() | {"unmarked-masks"}

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Require features, and a position embedding that fits."""
        yield from super().check(space, width)
        yield from below("position", self.position.check(space, width))

    def build(self, space: Space, width: int) -> PatchEmbedding:
        from .features import PatchEmbedding

        assert isinstance(space, FeatureSpace)
        return PatchEmbedding(space.width, width, self.position.build(space, width))


@hookimpl
def register_components() -> list[type[Spec]]:
    """Return the specs of this package."""
    embeddings: list[type[Spec]] = [Tokens, Graph, Regions, PatchValues]
    positions: list[type[Spec]] = [
        NoPosition,
        Sinusoid,
        GenomicSinusoid,
        GridSinusoid,
        LearnedPosition,
    ]
    conditions: list[type[Spec]] = [Level, Label, Number, Outline, Sum, NoCondition]
    heads: list[type[Spec]] = [
        TokenLogits,
        FeatureValues,
        Sigmoid,
        Softplus,
        TokenDiffusion,
    ]
    return [*embeddings, *positions, *conditions, *heads]
