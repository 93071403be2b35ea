"""The menu: bubble diagrams, and the plans they may be learnt from. No torch here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Refused
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds.task import DataSpec, TaskSpec
from dither.registry.spec.base import Slot, named
from dither.registry.spec.misfit import Misfit, below

from .constraints.table import Constraints
from .vocabulary import EDGE_MASK, EDGE_PAD, EDGE_SIZE, NODE_MASK, NODE_PAD, NODE_SIZE, ROOM_COUNTS

if TYPE_CHECKING:
    from .plans import PlanSplits
    from .task import BubbleDiagrams

__all__ = ["BubbleDiagram", "JsonPlans", "PlanFiles", "ProceduralPlans"]

LIBRARIES = 125 * 2**20
"""Bytes of scipy and matplotlib, which the task loads, and of what drawings are compared with; measured."""
HELD, MADE = 150, 3900
"""Bytes of a made-up plan: while a run has it, and most while it is made; measured."""


class BubbleDiagram(TaskSpec):
    """Which rooms a flat has, and how each lies to each other: Graph2Plan's 13 types of room and 10 relations."""

    name: ClassVar[str] = "bubble-diagram"
    exports: ClassVar[Mapping[str, str]] = MappingProxyType({
        "jsonl": 'plans.jsonl, one diagram a line, as data "plans-jsonl" reads it',
        "housegan": "a JSON file each in the layout of HouseGAN++ and HouseDiffusion, and list.txt with their names",
        "networkx": "a JSON file each, node-link data of a networkx.DiGraph",
        "graphml": "a GraphML file each, for Gephi, yEd, Cytoscape",
        "dot": "a DOT file each, for Graphviz; neato -n keeps the places of the rooms",
    })  # fmt: skip
    data: Slot[DataSpec] = named("procedural-plans")
    """Where the plans come from."""
    rooms: int = Option(8, ge=2, le=40)
    """Room slots; smaller plans are padded."""
    constraints: Constraints | None = None
    """What samples must fulfil; training does not see it."""

    def check(self) -> Iterator[Misfit]:
        """Yield a source that gives something else than plans, or plans that are too large."""
        if self.data.gives != "plans":
            yield Misfit(f'"{self.data.name}" gives {self.data.gives}, but bubble-diagram needs plans', ("data",))
        if isinstance(self.data, ProceduralPlans | JsonPlans | PlanFiles) and self.data.most > self.rooms:
            what = f"plans of up to {self.data.most} rooms do not fit into {self.rooms} slots"
            yield Misfit(what, ("data", "most"), ("task", "rooms"), help="raise rooms, or lower most")
        yield from below("data", self.data.check())
        if self.constraints is not None:
            yield from below("constraints", self.constraints.check(self.rooms))

    def space(self) -> TokenSpace:
        """Two fields: "nodes", one for each room slot, and "edges", one for each pair of slots."""
        pairs = self.rooms * (self.rooms - 1) // 2
        nodes = Field("nodes", self.rooms, NODE_SIZE, mask=NODE_MASK, pad=NODE_PAD)
        return TokenSpace((nodes, Field("edges", pairs, EDGE_SIZE, mask=EDGE_MASK, pad=EDGE_PAD)))

    def held(self) -> int:
        """The plans as tokens, and libraries."""
        return LIBRARIES + HELD * self._made()

    def reading(self) -> int:
        """What it takes to make the plans, of which the C library gives nothing back."""
        return MADE * self._made()

    def _made(self) -> int:
        """Plans that are made up; how many are read is not known before."""
        data = self.data
        return data.train + data.valid + data.test if isinstance(data, ProceduralPlans) else 0

    def filled(self) -> float:
        """Share of the slots of rooms and pairs that is not padding; known of made-up plans of the usual sizes."""
        if not isinstance(self.data, ProceduralPlans) or self.data.most > max(ROOM_COUNTS):
            return 1.0
        made = {rooms: share for rooms, share in ROOM_COUNTS.items() if rooms <= self.data.most}
        real = sum(share * rooms * (rooms + 1) / 2 for rooms, share in made.items()) / sum(made.values())
        return real / self.space().length

    def build(self) -> BubbleDiagrams:
        """Make or read the plans."""
        from .task import BubbleDiagrams

        plans: PlanSplits = self.data.build()
        return BubbleDiagrams(plans, self.space(), self.constraints)


class ProceduralPlans(DataSpec):
    """Made-up floor plans: synthetic, RPLAN-like, not RPLAN. Nothing to fetch; about 10,000 are made in a second.

    All are drawn by themselves, so that held-out plans have the law of the others. Small plans repeat: of 2,000 for
    validation about 5 % are one of 20,000 to train on, in some order of the rooms; `novel_floor` says how many.
    """

    name: ClassVar[str] = "procedural-plans"
    gives: ClassVar[str] = "plans"
    train: int = Option(20_000, ge=1, le=10_000_000)
    """Plans to train on."""
    valid: int = Option(2_000, ge=1, le=1_000_000)
    """Plans held out for validation; they do not depend on the number of plans to train on."""
    test: int = Option(2_000, ge=1, le=1_000_000)
    """Plans held out for testing."""
    most: int = Option(8, ge=4, le=14)
    """Rooms of the largest plans; the smallest have 4. RPLAN has none with more than 8."""
    seed: int = Option(0, ge=0, lt=2**31)
    """Other seeds give other plans."""

    def build(self) -> PlanSplits:
        """Make the plans."""
        from .data.procedural import make_plans
        from .plans import PlanSplits

        held = self.valid + self.test
        made = make_plans(self.seed, 0, held + self.train, self.most)
        return PlanSplits(made[held:], made[: self.valid], made[self.valid : held])


class JsonPlans(DataSpec):
    """Plans of yours, one a line: {"types": ["Kitchen", ...], "boxes": [[x0, y0, x1, y1], ...]}, or edges for boxes."""

    name: ClassVar[str] = "plans-jsonl"
    rev: ClassVar[int] = 2
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
        from .formats.jsonl import find_file

        try:
            find_file(Path(self.path).expanduser())
        except Refused as refused:
            yield from (Misfit(problem.message, ("path",), help=problem.help) for problem in refused.problems)

    def build(self) -> PlanSplits:
        """Read the file."""
        from .data.prepare import hold_out
        from .formats.jsonl import read_plans
        from .plans import Plans

        plans = Plans.from_diagrams(read_plans(Path(self.path).expanduser(), self.most), self.most)
        return hold_out(plans, valid=self.valid, test=self.test)


class PlanFiles(DataSpec):
    """Plans as RPLAN, Graph2Plan, HouseGAN++, ResPlan or MSD keep them; converted once by `prepare plans`."""

    name: ClassVar[str] = "plans"
    gives: ClassVar[str] = "plans"
    source: str = Option(min_length=1)
    """The file, or the folder with the files, from the working directory."""
    format: Literal["auto", "rplan-png", "graph2plan", "housegan", "resplan", "msd", "jsonl"] = "auto"
    """How the plans are stored; auto goes by the endings of the files, and takes .json for HouseGAN++'s."""
    destination: str = ""
    """Folder for the converted plans; without it a folder in the cache, named after source and options."""
    most: int = Option(8, ge=2, le=40)
    """Rooms that a plan may have; larger ones are left out."""
    adjacency: Literal["proximity", "door"] = "proximity"
    """Related are rooms near each other, or those joined by a door, which only HouseGAN++'s files know."""
    bedrooms: Literal["largest-is-master", "all-second"] = "largest-is-master"
    """What bedrooms become, where the files know one sort of bedroom only."""
    duplicates: Literal["drop", "keep"] = "drop"
    """Whether one of several equal plans is taken, or all; the order of rooms does not matter."""
    pickles: bool = False
    """Read the plain data in pickles (ResPlan, MSD). Nothing in them is run: a pickle is a program, and can do harm."""
    valid: float = Option(0.1, gt=0, lt=1)
    """Share of the plans that is held out for validation; equal plans stay together."""
    test: float = Option(0.1, ge=0, lt=1)
    """Share that is held out for testing."""

    @model_validator(mode="after")
    def _fits_together(self) -> PlanFiles:
        if self.valid + self.test >= 1:
            raise ValueError(f"valid = {self.valid} and test = {self.test} leave nothing to train on")
        if self.adjacency == "door" and self.format not in ("auto", "housegan"):
            raise ValueError(f'adjacency = "door" is for HouseGAN++\'s files, {self.format} knows no doors')
        return self

    def check(self) -> Iterator[Misfit]:
        """Yield that the plans have not been prepared yet."""
        from .data.plan_files import converted_path

        if not (found := converted_path(self)).is_file():
            what = f"these plans have not been prepared: there is no {found}"
            yield Misfit(what, ("source",), help=f"run: {self.command()}")

    def command(self) -> str:
        """Return the command that prepares the plans."""
        given = self.model_dump(exclude_defaults=True, exclude={"use"})
        changes = (shlex.quote(f"{key}={json.dumps(value, ensure_ascii=False)}") for key, value in given.items())
        return " ".join(["dither prepare plans", *(f"--set {change}" for change in changes)])

    def build(self) -> PlanSplits:
        """Read the prepared plans."""
        from .data.plan_files import read_converted

        return read_converted(self)

    def prepare(self) -> str:
        """Convert the files, and say what was taken, and what was left out and why."""
        from .data.plan_files import convert_plans

        return convert_plans(self)
