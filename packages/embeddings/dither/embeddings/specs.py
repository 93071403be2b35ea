"""The menu of this package: embeddings, positions, the noise level, heads. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from dither.registry import FeatureSpace, Misfit, Slot, Space, Spec, TokenSpace, below, hookimpl, named
from dither.registry.kinds import FEATURES, TOKENS, EmbeddingSpec, PositionSpec
from dither.registry.kinds.costs import Cost

from .condition_specs import Label, Level, NoCondition, Sum
from .head_specs import FeatureValues, Softplus, TokenDiffusion, TokenLogits, check_experiment
from .options import Endpoint, Layout, Start, columns_without, is_graph, misfit_groups
from .position_specs import GenomicSinusoid, LearnedPosition, NoPosition, Sinusoid

if TYPE_CHECKING:
    from .features import RegionEmbedding
    from .graph import GraphEmbedding
    from .tokens import TokenEmbedding

__all__ = [
    "GenomicSinusoid",
    "Graph",
    "Label",
    "Layout",
    "LearnedPosition",
    "Level",
    "NoCondition",
    "NoPosition",
    "Regions",
    "Sinusoid",
    "Softplus",
    "Sum",
    "Tokens",
    "check_experiment",
    "register_components",
]

MAX_TIED_STD = 0.1
"""Largest standard deviation at which a table may start that a head shares."""


class Tokens(EmbeddingSpec):
    """A table of vectors for each field."""

    name: ClassVar[str] = "tokens"
    serves = TOKENS
    init: Start = "normal"
    """How tables start: normal has standard deviation 1, kaiming is even between -1/sqrt(width) and 1/sqrt(width), and
    a number is the standard deviation."""
    position: Slot[PositionSpec] = named("none")
    """What is added to say where a token stands."""

    def traits(self) -> frozenset[str]:
        """Promise tables that a head may share, if they start small: at 1, logits would start at sqrt(width)."""
        small = self.init == "kaiming" or (isinstance(self.init, float) and self.init <= MAX_TIED_STD)
        return frozenset({"tables"} if small else ())

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Yield what does not fit, of the positions too."""
        yield from super().check(space, width)
        yield from below("position", self.position.check(space, width))

    def cost(self, space: Space, width: int) -> Cost:
        """What tables and positions take."""
        return token_tables(space, width) + self.position.cost(space, width)

    def build(self, space: Space, width: int) -> TokenEmbedding:
        """Return the tables."""
        from .tokens import TokenEmbedding

        assert isinstance(space, TokenSpace)
        return TokenEmbedding(space, width, init=self.init, position=self.position.build(space, width))


def token_tables(space: Space, width: int) -> Cost:
    """One vector per id of each field; the ids are kept, in 8 bytes each."""
    assert isinstance(space, TokenSpace)
    rows = sum(field.size for field in space.fields)
    return Cost(rows * width, 2 * space.length, space.length * width)


class Graph(EmbeddingSpec):
    """Tokens of a graph: nodes, then every pair of them; each told which node or pair it is."""

    name: ClassVar[str] = "graph"
    serves = TOKENS
    endpoint: Endpoint = "shared"
    """How a pair is told: shared adds one vector for each of its ends, from a table of its own; directed has a table
    for the first end and one for the second; tied takes the vectors of the nodes."""
    init: Start = "normal"
    """How tables start; as for tokens."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Yield a space that is no graph."""
        yield from super().check(space, width)
        if isinstance(space, TokenSpace) and not is_graph(space):
            wanted = "two fields, n nodes and then their n(n-1)/2 pairs"
            yield Misfit(f'embedding "graph" is for {wanted}, but here a sample is {space}', related=("process",))

    def cost(self, space: Space, width: int) -> Cost:
        """What the tables of ids, of nodes, of their ends, and of the two sorts of position take."""
        assert isinstance(space, TokenSpace)
        tables = {"shared": 2, "directed": 3, "tied": 1}[self.endpoint]
        places = (2 + tables * space.fields[0].length) * width
        return token_tables(space, width) + Cost(places)

    def build(self, space: Space, width: int) -> GraphEmbedding:
        """Return the tables."""
        from .graph import GraphEmbedding

        assert isinstance(space, TokenSpace)
        return GraphEmbedding(space, width, endpoint=self.endpoint, init=self.init)


class Regions(EmbeddingSpec):
    """A linear map of each position, a learned token for the hidden ones, and a class token in front (GET)."""

    name: ClassVar[str] = "regions"
    serves = FEATURES
    cls: bool = True
    """Whether a class token leads, which every position sees."""
    elements: bool = False
    """Whether positions are told which of their elements are hidden, or noisy beside clean ones, by another linear map.
    Without it a hidden element looks like a 0."""
    without: list[str] = []
    """Groups of columns that are not read, such as ["expression"], which a model predicts from the others."""
    position: Slot[PositionSpec] = named("none")
    """What is added to say where a region stands. With none, all regions that are hidden as a whole look the same, and
    a model without positions of its own gives them one and the same prediction."""

    def traits(self) -> frozenset[str]:
        """Promise one vector for all regions that are hidden as a whole, if nothing says where they stand."""
        return frozenset({"alike"} if isinstance(self.position, NoPosition) else ())

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Yield what does not fit, of the positions and of the columns too."""
        yield from super().check(space, width)
        yield from below("position", self.position.check(space, width))
        yield from misfit_groups(space, self.without, ("without",))
        if isinstance(space, FeatureSpace) and not columns_without(space, self.without):
            yield Misfit("no column is left to be read", ("without",), ("task",))

    def extra(self) -> int:
        """The class token."""
        return int(self.cls)

    def cost(self, space: Space, width: int) -> Cost:
        """What maps, tokens and positions take; what goes into a map is kept."""
        assert isinstance(space, FeatureSpace)
        maps, tokens, state = 1 + self.elements, 1 + self.cls, space.length * width
        read = len(columns_without(space, self.without))
        own = Cost((maps * read + 1 + tokens) * width, maps * space.length * read, 3 * state)
        return own + self.position.cost(space, width)

    def build(self, space: Space, width: int) -> RegionEmbedding:
        """Return the map."""
        from .features import RegionEmbedding

        assert isinstance(space, FeatureSpace)
        columns = columns_without(space, self.without) if self.without else None
        options: dict[str, Any] = {"cls": self.cls, "elements": self.elements, "columns": columns}
        return RegionEmbedding(space.width, width, position=self.position.build(space, width), **options)


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer what this package makes."""
    embeddings: list[type[Spec]] = [Tokens, Graph, Regions]
    positions: list[type[Spec]] = [NoPosition, Sinusoid, GenomicSinusoid, LearnedPosition]
    heads: list[type[Spec]] = [TokenLogits, FeatureValues, Softplus, TokenDiffusion]
    return [*embeddings, *positions, Level, Label, Sum, NoCondition, *heads]
