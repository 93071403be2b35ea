"""The menu: bubble diagrams, and the plans they may be learnt from. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.problems import Refused
from dither.registry.spaces import Field, TokenSpace
from dither.registry.spec import Misfit, Slot, below, named

from .vocabulary import EDGE_MASK, EDGE_PAD, EDGE_SIZE, NODE_MASK, NODE_PAD, NODE_SIZE

if TYPE_CHECKING:
    from .plans import PlanSplits
    from .task import BubbleDiagrams

__all__ = ["BubbleDiagram", "JsonPlans", "ProceduralPlans"]


class BubbleDiagram(TaskSpec):
    """Which rooms a flat has, and how each lies to each other: Graph2Plan's 13 types of room and 10 relations."""

    name: ClassVar[str] = "bubble-diagram"
    data: Slot[DataSpec] = named("procedural-plans")
    """Where the plans come from."""
    rooms: int = Option(8, ge=2, le=40)
    """Room slots; smaller plans are padded."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source that gives something else than plans, or plans that are too large."""
        if self.data.gives != "plans":
            yield Misfit(f'"{self.data.name}" gives {self.data.gives}, but bubble-diagram needs plans', ("data",))
        if isinstance(self.data, ProceduralPlans | JsonPlans) and self.data.most > self.rooms:
            what = f"plans of up to {self.data.most} rooms do not fit into {self.rooms} slots"
            yield Misfit(what, ("data", "most"), ("task", "rooms"), help="raise rooms, or lower most")
        yield from below("data", self.data.check())

    def space(self) -> TokenSpace:
        """Two fields: "nodes", one for each room slot, and "edges", one for each pair of slots."""
        pairs = self.rooms * (self.rooms - 1) // 2
        nodes = Field("nodes", self.rooms, NODE_SIZE, mask=NODE_MASK, pad=NODE_PAD)
        return TokenSpace((nodes, Field("edges", pairs, EDGE_SIZE, mask=EDGE_MASK, pad=EDGE_PAD)))

    def build(self) -> BubbleDiagrams:
        """Make or read the plans."""
        from .task import BubbleDiagrams

        plans: PlanSplits = self.data.build()
        return BubbleDiagrams(plans, self.space())


class ProceduralPlans(DataSpec):
    """Made-up floor plans: synthetic, RPLAN-like, not RPLAN. Nothing to fetch; about 10,000 are made in a second."""

    name: ClassVar[str] = "procedural-plans"
    gives: ClassVar[str] = "plans"
    train: int = Option(20_000, ge=1, le=10_000_000)
    """Plans to train on."""
    valid: int = Option(2_000, ge=1, le=1_000_000)
    """Plans held out for validation; they do not depend on the number of plans to train on."""
    test: int = Option(2_000, ge=1, le=1_000_000)
    """Plans held out for testing."""
    most: int = Option(8, ge=4, le=8)
    """Rooms of the largest plans; the smallest have 4."""
    seed: int = Option(0, ge=0, lt=2**31)
    """Other seeds give other plans."""

    def build(self) -> PlanSplits:
        """Make the plans."""
        from .generator import make_plans
        from .plans import PlanSplits

        held = self.valid + self.test
        made = make_plans(self.seed, 0, held + self.train, self.most)
        return PlanSplits(made[held:], made[: self.valid], made[self.valid : held])


class JsonPlans(DataSpec):
    """Plans of yours, one a line: {"types": ["Kitchen", ...], "boxes": [[x0, y0, x1, y1], ...]}, or edges for boxes."""

    name: ClassVar[str] = "plans-jsonl"
    gives: ClassVar[str] = "plans"
    path: str = Option(min_length=1)
    """The file, from the working directory; UTF-8."""
    most: int = Option(8, ge=2, le=40)
    """Rooms that a plan may have; a larger one is an error."""
    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the plans that is held out for validation; equal plans stay together."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share that is held out for testing."""

    @model_validator(mode="after")
    def _leaves_some(self) -> JsonPlans:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid = {self.valid} and test = {self.test} leave nothing to train on")
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield a file that is not there."""
        from .jsonl import find_file

        try:
            find_file(Path(self.path).expanduser())
        except Refused as refused:
            yield from (Misfit(problem.message, ("path",), help=problem.help) for problem in refused.problems)

    def build(self) -> PlanSplits:
        """Read the file."""
        from .jsonl import read_plans
        from .plans import Plans
        from .splits import hold_out

        plans = Plans.from_diagrams(read_plans(Path(self.path).expanduser(), self.most), self.most)
        return hold_out(plans, valid=self.valid, test=self.test)
