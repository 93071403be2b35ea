"""Specs of the bubble diagram task and its data sources. Read without torch and numpy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field as Option
from pydantic import model_validator

from dither.registry.config.errors import Refused
from dither.registry.contracts.spaces import Condition, Field, TokenSpace
from dither.registry.kinds import DataSpec, TaskSpec
from dither.registry.spec.base import PathStr, Slot, named
from dither.registry.spec.misfit import Misfit, below

from ..hold_out import HoldOut
from ..missing_library import MODULES, missing_libraries, require_extra
from ..prepared.manifest import Kind
from ..prepared.spec import PrepareSpec
from .constraints.table import Constraints
from .vocabulary import (
    BOUNDARY_POINTS,
    BOX_MASK,
    IDS,
    SIDES,
    Adjacency,
    Bedrooms,
    Format,
    Order,
    Orientation,
    RoomType,
    Unit,
)

if TYPE_CHECKING:
    from .data.plan_files import PlanSource
    from .formats.jsonl import LineOptions
    from .plans import PlanSplits
    from .task import BubbleDiagrams


class BubbleDiagram(TaskSpec):
    """Floor plans as graphs: room types and pairwise spatial relations, 13 types and 10 relations as in Graph2Plan."""

    name = "bubble-diagram"
    hub_task: ClassVar[str] = "graph-ml"
    rev = 2
    # Most batches have one number of rooms, and so equal padding.
    bucketed: ClassVar[bool | None] = True
    headline: ClassVar[tuple[str, ...]] = (
        "valid/nats_per_graph",
        "valid/nats_per_token",
        "sample/level_2",
        "sample/level_4",
        "sample/level_5",
        "sample/outline_iou",
        "sample/relations_shown",
        "sample/boxes_dwelling",
        "sample/unique",
        "sample/valid_unique_novel",
        "sample/type_js",
        "sample/edge_js",
        "sample/mmd_degree",
    )
    higher: ClassVar[tuple[str, ...]] = (
        "level_*",
        "outline_iou",
        "layout_met",
        "boxes_*",
        "relations_shown",
        "unique",
        "valid_unique_novel",
        "*accuracy",
    )
    lower: ClassVar[tuple[str, ...]] = (
        "*_js",
        "mmd_*",
        "area_error",
        "compatibility",
        "outline_outside",
        "plan_frechet",
        "plan_kid",
    )
    explanations: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "unigram": "each token drawn alone, with its frequency in training plans",
            "shuffled": "test plans whose relations are permuted among their pairs of rooms",
            "real": "test plans",
        }
    )
    legend: ClassVar[str] = (
        "Boxes are rooms, lines are relations. Validity, each level with those before it: L0 the tokens are a diagram; "
        "L1 one living room, all rooms connected; L2 no cycle of left-of or above; L3 some boxes show every relation; "
        "L4 and no other; L5 without overlap; L6 the layout is a dwelling."
    )
    exports: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "jsonl": 'plans.jsonl, one diagram per line, readable by data "plans-jsonl"',
            "housegan": "one JSON file each in the layout of HouseGAN++ and HouseDiffusion, "
            "and list.txt with their names",
            "svg": "one floor plan each, with walls, doors and windows",
            "geojson": "one file each: rooms, doors and windows in metres",
            "dxf": "one drawing each in metres, with layers; requires ezdxf",
            "ifc": "one building model each: spaces, walls, doors and windows; requires ifcopenshell",
        }
    )
    data: Slot[DataSpec] = named("procedural-plans")
    """Source of the plans."""
    rooms: int = Option(8, ge=2, le=40)
    """Room slots; smaller plans are padded."""
    order: Order = "given"
    """Order of the rooms: as given by the data, or from-left-to-right, which has the living room
    first and the others by their centres along x, then y. It is much easier to learn; plans without
    boxes keep their order."""
    orientation: Orientation = "given"
    """Orientation of the plans: as given by the data, or turned and mirrored so that the main
    bedroom is left, above the middle. Samples then are plans up to quarter turns and mirror images,
    which are easier to learn."""
    boundary: bool = False
    """Whether the outline and the front door of a plan are a condition, for model condition
    "outline" and `dither sample --outline`. RPLAN, Graph2Plan, ResPlan and procedural plans have
    them."""
    doors: bool = False
    """Whether samples have a token for the door of each pair of rooms, and for the front door of
    each room."""
    areas: bool = False
    """Whether samples have a token for the area of each room: 12 bins between 2 and 45 square
    metres."""
    boxes: bool = False
    """Whether samples have tokens for the box of each room: its left, top, right and bottom wall in
    64 bins of 4 pixels. Samples are drawn at these boxes instead of a layout; an experiment."""
    constraints: Constraints | None = None
    """Constraints on samples; training ignores them."""
    extractor: Slot[DataSpec] | None = None
    """Features of `plan_frechet` and `plan_kid`: a data component with `gives = "image-features"`,
    as in task images, of plans rendered in 64 x 64 pixels; by default the share of each room type
    in each cell of a 4 x 4 grid."""

    def check_export(self, form: str) -> Iterator[Misfit]:
        """Yield a missing library of a format, whose extra has the name of the format."""
        if form in MODULES:
            for problem in missing_libraries(form, form.upper()):
                yield problem.as_misfit()

    def check(self) -> Iterator[Misfit]:
        """Yield components of another kind, and plans that exceed the room slots."""
        yield from below("data", self.data.check_gives("plans"))
        yield from below("data", self.data.check())
        if self.extractor is not None:
            yield from below("extractor", self.extractor.check_gives("image-features"))
            yield from below("extractor", self.extractor.check())
        # Sources of plugins need not limit the rooms of their plans.
        most = self.data.model_dump().get("most", 0)
        if most > self.rooms:
            message = f"plans of up to {most} rooms do not fit into {self.rooms} slots"
            hint = "raise rooms, or lower most"
            yield Misfit(message, ("data", "most"), ("task", "rooms"), help=hint)
        if self.boxes:
            yield from self._without_boxes()
        if self.constraints is not None:
            misfits = self.constraints.check(
                self.rooms, doors=self.doors, areas=self.areas
            )
            yield from below("constraints", misfits)

    def _without_boxes(self) -> Iterator[Misfit]:
        """Yield options that need a layout, which samples with boxes do not get."""
        options = (
            ("boundary", self.boundary, "boxes are drawn without an outline"),
            ("doors", self.doors, "doors follow from the boxes"),
            ("areas", self.areas, "areas follow from the boxes"),
            ("constraints", self.constraints is not None, "they hold for relations"),
        )
        for option, given, reason in options:
            if given:
                message = f"boxes = true excludes {option}: {reason}"
                yield Misfit(message, (option,), ("task", "boxes"))

    def space(self) -> TokenSpace:
        """Return the fields: "nodes" by room slot, "edges" by pair, "doors" and "areas", or the sides of boxes."""
        pairs = self.rooms * (self.rooms - 1) // 2
        lengths = {"nodes": self.rooms, "edges": pairs}
        if self.doors:
            lengths["doors"] = pairs + self.rooms
        if self.areas:
            lengths["areas"] = self.rooms
        if self.boxes:
            lengths |= dict.fromkeys(SIDES, self.rooms)
        fields = []
        for name, length in lengths.items():
            ids = IDS.get(name, BOX_MASK)
            # MASK and PAD follow the ids of data.
            fields.append(Field(name, length, ids + 2, mask=ids, pad=ids + 1))
        conditions = []
        if self.boundary:
            conditions.append(
                Condition("boundary", partial=True, length=2 * BOUNDARY_POINTS)
            )
        return TokenSpace(tuple(fields), tuple(conditions))

    def build(self) -> BubbleDiagrams:
        require_extra("plans", self.name, ("task",))
        from .task import BubbleDiagrams

        plans: PlanSplits = self.data.build()
        if self.boundary:
            from .geometry.boundary import with_boundaries

            plans = with_boundaries(
                # They fill a rectangle, which their boxes determine.
                plans,
                rectangular=isinstance(self.data, ProceduralPlans),
            )
        return BubbleDiagrams(
            plans=plans,
            space=self.space(),
            constraints=self.constraints,
            order=self.order,
            orientation=self.orientation,
            extractor=None if self.extractor is None else self.extractor.build(),
        )


class ProceduralPlans(DataSpec):
    """Procedural floor plans: synthetic, RPLAN-like, not RPLAN. No download; about 10,000 plans per second.

    All plans are independent draws, so held-out plans have the training distribution. Small plans
    repeat: of 2,000 validation plans about 5 % are isomorphic to one of 20,000 training plans;
    `novel_floor` reports the exact share.
    """

    name = "procedural-plans"
    gives: ClassVar[str] = "plans"
    train: int = Option(20_000, ge=1, le=10_000_000)
    """Training plans."""
    valid: int = Option(2_000, ge=1, le=1_000_000)
    """Validation plans; independent of the number of training plans."""
    test: int = Option(2_000, ge=1, le=1_000_000)
    """Test plans."""
    most: int = Option(8, ge=4, le=14)
    """Rooms of the largest plans; the smallest have 4. RPLAN has at most 8."""
    seed: int = Option(0, ge=0, lt=2**31)
    """Seed of the generator."""

    def build(self) -> PlanSplits:
        from .data.procedural import make_plans
        from .plans import PlanSplits

        # Held-out plans are drawn first, so that they do not depend on the number of training plans.
        held = self.valid + self.test
        plans = make_plans(
            seed=self.seed,
            start=0,
            stop=held + self.train,
            most=self.most,
        )
        return PlanSplits(plans[held:], plans[: self.valid], plans[self.valid : held])


class _PlansOfFiles(HoldOut):
    """Options of plans that are divided into splits here. Not a component by itself."""

    most: int = Option(8, ge=2, le=40)
    """Largest number of rooms of a plan; larger plans are rejected."""


class JsonPlans(_PlansOfFiles):
    """Plans as JSON lines: {"types": ["Kitchen", ...], "boxes": [[x0, y0, x1, y1], ...]}, or polygons, or edges."""

    name = "plans-jsonl"
    rev = 2
    gives: ClassVar[str] = "plans"
    path: PathStr = Option(min_length=1)
    """The file, relative to the working directory; UTF-8."""
    unit: Unit = "px"
    """Unit of the boxes and polygons, unless a plan has its own; pixels are 7 cm."""
    types: Mapping[str, RoomType] = Option(default_factory=dict)
    """Room type by the name in the file, for names that are not types, such as { Bad = "Bathroom" }."""

    def check(self) -> Iterator[Misfit]:
        """Yield a file that does not exist or is empty, and invalid lines of it."""
        from .formats.jsonl import read_lines

        try:
            read_lines(Path(self.path).expanduser(), self._options())
        except Refused as refused:
            for problem in refused.problems:
                message = problem.message
                # A misfit has the place of the option; that in the file goes into the message.
                if problem.origin is not None:
                    place = f"{problem.origin.file}:{problem.origin.line}"
                    message = f"{place}: {message}"
                yield Misfit(message, ("path",), help=problem.help, code=problem.code)

    def build(self) -> PlanSplits:
        from .data.plan_files import hold_out
        from .formats.jsonl import read_lines
        from .plans import Plans

        diagrams, extra = read_lines(Path(self.path).expanduser(), self._options())
        plans = Plans.from_diagrams(diagrams, self.most)
        splits = hold_out(plans, valid=self.valid, test=self.test)
        if not extra:
            return splits
        counts = ", ".join(f"{key} ({count:,})" for key, count in sorted(extra.items()))
        return replace(
            splits, remarks=(f"{self.path}: keys that are not used: {counts}",)
        )

    def _options(self) -> LineOptions:
        from .formats.jsonl import LineOptions

        # A tuple, as these options are the key of a cache.
        return LineOptions(self.most, self.unit, tuple(sorted(self.types.items())))


class PlanFiles(_PlansOfFiles, PrepareSpec):
    """Plans in the formats of RPLAN, Graph2Plan, HouseGAN++, ResPlan or MSD; converted once by `prepare plans`."""

    name = "plans"
    rev = 3
    gives: ClassVar[str] = "plans"
    stored: ClassVar[Kind] = Kind(
        "plans",
        4,
        "dither prepare plans",
        option="destination",
    )
    source_option: ClassVar[str] = "source"
    source: PathStr = Option(min_length=1)
    """The file, or the folder with the files, relative to the working directory."""
    format: Format = "auto"
    """Format of the files; auto detects it by suffix, and reads .json as HouseGAN++."""
    destination: PathStr = ""
    """Folder for the prepared plans; by default in the cache, named after source and options."""
    adjacency: Adjacency = "proximity"
    """Whether rooms are related if they are close, or if a door joins them; doors are known to
    HouseGAN++ only."""
    bedrooms: Bedrooms = "largest-is-master"
    """Type of bedrooms, where the format has a single bedroom type."""
    force: bool = False
    """Replace plans that were prepared with other options or from another source."""

    @model_validator(mode="after")
    def _doors_are_known(self) -> PlanFiles:
        # The format of "auto" is known, and checked, when the files are read.
        if self.adjacency == "door" and self.format not in ("auto", "housegan"):
            raise ValueError(
                f'adjacency = "door" requires HouseGAN++ files; {self.format} has no doors'
            )
        return self

    def build(self) -> PlanSplits:
        from .data.plan_files import load_prepared

        return load_prepared(self, Path(self.source).expanduser(), self.format)

    def prepare(self) -> str:
        """Convert the files and report which plans were accepted and rejected."""
        source = self._source()
        from .data.plan_files import prepare_files

        return prepare_files(self, source)

    def prepare_shard(self, number: int, count: int) -> str:
        """Convert a part of the files; duplicates are found when shards are merged."""
        source = self._source()
        from ..prepared.shards import Shard
        from .data.plan_files import prepare_shard

        return prepare_shard(self, source, Shard(number, count))

    def merge_shards(self) -> str:
        """Join shards, and report which plans were accepted and rejected."""
        source = self._source()
        from .data.plan_files import merge_shards

        return merge_shards(self, source)

    def _source(self) -> PlanSource:
        require_extra("plans", self.name)
        from .data.plan_files import PlanSource
        from .formats.entries import ReadOptions

        return PlanSource(
            path=Path(self.source).expanduser(),
            form=self.format,
            options=ReadOptions(self.most, self.adjacency, self.bedrooms),
            valid=self.valid,
            test=self.test,
            force=self.force,
        )
