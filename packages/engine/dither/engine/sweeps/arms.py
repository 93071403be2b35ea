"""The arms of a comparison: products of axes and named arms, each validated with the experiment."""

from __future__ import annotations

import itertools
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dither.registry.config.document import Document, Layer
from dither.registry.config.errors import Problem, Refused, did_you_mean, dotted
from dither.registry.config.validation import validate
from dither.registry.kinds import KINDS, known_kind
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.manager import Plugins
from dither.registry.spec.base import Options
from dither.registry.spec.misfit import Path

from ..config.compare_options import Compare
from ..config.load_experiment import Loaded, check_experiment
from ..runs.run_directory import experiment_key
from .points import (
    Point,
    folder_name,
    format_value,
    iter_keys,
    key_error,
    make_point,
    short_keys,
)

__all__ = [
    "Arm",
    "Rejected",
    "arm_layers",
    "check_comparison",
    "compare_of",
    "read_arms",
    "require_arm",
    "training_key",
]

BASE = "base"
"""Name of the experiment itself, the first arm if there are no axes."""
MAX_ARMS = 1000
MISTAKES = frozenset(
    {
        "ambiguous-component",
        "invalid-value",
        "out-of-range",
        "unknown-component",
        "unknown-key",
        "unknown-value",
        "wrong-kind",
        "wrong-type",
    }
)
"""Codes of problems that are mistakes of the user, not incompatible components."""
STRING_OR_CHARACTER = re.compile(
    r"""  "(?:[^"\\]|\\.)*+" | '[^']*+' | .  """, re.DOTALL | re.VERBOSE
)
NESTING = {"[": 1, "{": 1, "]": -1, "}": -1}
UNTRAINED = ("name", "sampler", "sample", "tracking", "sweep", "compare")
"""Tables that have no effect on the weights."""
Value = tuple[Path, Any, Path | None]
"""Key, value, and its path in the document if it has one."""


class _CompareTable(Options):
    """The part of an experiment file that defines a comparison."""

    compare: Compare


@dataclass(frozen=True)
class Arm:
    """A variant of an experiment.

    Attributes:
        values: As in `Point`.
        tried: Whether the arm has a component of an axis "*", which need not be compatible.
    """

    name: str
    values: tuple[Value, ...]
    tried: bool = False

    @property
    def by_key(self) -> dict[str, Any]:
        return {dotted(path): value for path, value, _ in self.values}

    def point(self, number: str, seed: int) -> Point:
        """Return the point of a seed, in a folder with the name of the arm."""
        point = make_point(number, [*self.values, (("seed",), seed, None)])
        text = self.name.replace(", ", ",")
        return replace(point, name=folder_name(number, f"{text},seed={seed}"))


@dataclass(frozen=True)
class Rejected:
    """An arm that is left out, and why."""

    name: str
    reasons: tuple[str, ...]


def arm_layers(over: Iterable[str], arms: Iterable[str]) -> Iterator[Layer]:
    """Yield `[compare]` tables of axes `key=a,b` of --over, and arms `name: key=value ...` of --arm.

    Raises:
        Refused: A text is malformed (`usage`), or a key or name is given twice (`duplicate`).
    """
    given_before: dict[str, str] = {}

    def require_new(key: str, text: str) -> None:
        # The later layer would silently replace the earlier one.
        if key in given_before:
            message = f"{key} is given twice: {given_before[key]}; {text}"
            raise Refused(message[:500], code="duplicate")
        given_before[key] = text

    for text in over:
        given = text.partition("=")[2]
        for path, (_, values) in iter_keys(Layer.override(text).tree, ()):
            require_new(f"--over {dotted(path)}", text)
            tree = {dotted(path): _axis(given, values)}
            # Messages show the name of a layer, and the text may be long.
            yield Layer(f"--over {text}"[:100], {"compare": {"over": tree}})
    for text in arms:
        name, colon, words = text.partition(":")
        # A colon inside of a value, as in `data=a:b`, ends no name.
        if not colon or not name.strip() or "=" in name:
            message = f'--arm: expected "name: key=value ...", got "{text[:100]}"'
            raise Refused(message, code="usage")
        require_new(f"--arm {name.strip()}", text)
        changes: dict[str, Any] = {}
        for word in filter(None, _split(words, " \t\n")):
            for path, (_, value) in iter_keys(Layer.override(word).tree, ()):
                changes[dotted(path)] = value
        tree = {"compare": {"arms": {name.strip(): changes}}}
        yield Layer(f"--arm {text}"[:100], tree)


def _axis(given: str, value: Any) -> Any:
    """Return the values of an axis: "*", a TOML array, or texts between commas."""
    if given.strip() == "*" or isinstance(value, list):
        return value
    try:
        # Commas inside of strings and tables separate nothing.
        return tomllib.loads(f"values = [{given}]")["values"]
    except tomllib.TOMLDecodeError:
        texts = [text.strip() for text in _split(given, ",")]
        return [Layer.override(f"value={text}").tree["value"] for text in texts]


def _split(text: str, separators: str) -> list[str]:
    """Split a text at separators outside of quotes and brackets."""
    parts = [""]
    depth = 0
    for piece in STRING_OR_CHARACTER.findall(text):
        depth += NESTING.get(piece, 0)
        if depth == 0 and piece in separators:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def compare_of(document: Document) -> Compare:
    """Validate the `[compare]` table alone; raise Refused if it has no arm."""
    table = document.at(("compare",))
    compare = Compare()
    if table is not None:
        # The rest of the file is checked with each arm, which may replace parts of it.
        alone = Document({"compare": table}, list(document.files), document.given)
        compare = validate(_CompareTable, alone).compare
    if not (compare.over or compare.arms):
        hint = "add --over KEY=A,B; or [compare.over] with a line such as process = "
        hint += '["absorbing", "uniform"]'
        problem = Problem("nothing to compare", help=hint, code="missing-key")
        raise Refused(problem)
    return compare


def check_comparison(
    document: Document, plugins: Plugins
) -> tuple[Compare, list[tuple[Arm, Loaded]], list[Rejected]]:
    """Return the `[compare]` table, the valid arms with their experiments, and those left out.

    Raises:
        Refused: As in `compare_of` and `read_arms`; or the reference is not a valid arm; or steps that
            `compare.equal` sets are given.
    """
    compare = compare_of(document)
    valid, rejected = read_arms(document, plugins, compare)
    if compare.against is not None:
        require_arm(compare.against, [arm.name for arm, _ in valid], "--against")
    if compare.equal is not None:
        _require_free_steps(valid)
    return compare, valid, rejected


def _require_free_steps(arms: Sequence[tuple[Arm, Loaded]]) -> None:
    """Refuse arms with steps of their own, which equal training sets."""
    for arm, loaded in arms:
        if "train.steps" in arm.by_key or loaded.experiment.train.epochs is not None:
            message = f'compare.equal sets train.steps of arm "{arm.name}"'
            hint = "remove train.steps and train.epochs from the arms, or compare.equal"
            raise Refused(Problem(message, help=hint, code="misfit"))


def read_arms(
    document: Document, plugins: Plugins, compare: Compare
) -> tuple[list[tuple[Arm, Loaded]], list[Rejected]]:
    """Return the valid arms with their experiments, and those left out.

    Raises:
        Refused: A mistake in a key or value, names that occur twice, or fewer than two valid arms.
    """
    arms = [
        *_products(document, plugins.catalog, compare),
        *_named_arms(document, compare),
    ]
    arms = [_with_overrides(arm, document) for arm in arms]
    names = [arm.name for arm in arms]
    repeated = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if repeated:
        message = f"arms of the same name: {', '.join(repeated)}"
        raise Refused(message, code="duplicate")

    valid = []
    rejected = []
    problems: dict[str, Problem] = {}
    mistakes: dict[str, Problem] = {}
    for arm in arms:
        try:
            point = Point("", arm.values)
            valid.append((arm, check_experiment(point.document(document), plugins)))
        except Refused as refused:
            reasons = [problem.message for problem in refused.problems]
            rejected.append(Rejected(arm.name, tuple(dict.fromkeys(reasons))))
            named = {str(problem): problem for problem in refused.problems}
            problems |= named
            # The axis "*" tries every component, also those that cannot fit.
            if not arm.tried:
                mistakes |= _mistakes(named)
    # What is wrong in all arms is wrong in the file.
    if not valid:
        mistakes = _mistakes(problems) or problems
    if mistakes:
        raise Refused([*mistakes.values()])
    if len(valid) < 2:
        reasons = [f"{arm.name}: {'; '.join(arm.reasons)}" for arm in rejected]
        hint = "\n".join(["a comparison needs two arms or more", *reasons])
        message = f"only one arm is valid: {valid[0][0].name}"
        raise Refused(Problem(message, help=hint, code="misfit"))
    _require_different(valid)
    return _with_equal_batches(valid), rejected


def _with_overrides(arm: Arm, document: Document) -> Arm:
    """Return an arm with the overrides of all arms in the tables of its components.

    Another component has none of the options of the file, but `--set sampler.steps=8` is for all arms.
    """
    own = {path for path, _, _ in arm.values}
    values = list(arm.values)
    for path in own:
        table_path = path[:-1] if path[-1] == "use" else path
        table = document.at(table_path)
        if not isinstance(table, dict):
            continue
        for key, (place, value) in iter_keys(table, table_path, table_path):
            layers = document.given.get(place)
            is_override = layers and layers[-1].file is None
            if is_override and key not in own and key[-1] != "use":
                values.append((key, value, place))
    # Outer keys first: a component is replaced before its options are set.
    values.sort(key=lambda value: len(value[0]))
    return replace(arm, values=tuple(values))


def _require_different(arms: Sequence[tuple[Arm, Loaded]]) -> None:
    """Refuse two arms of the same experiment, or of which no metric can differ."""
    experiments: dict[str, str] = {}
    unsampled: dict[str, str] = {}
    for arm, loaded in arms:
        same = experiments.setdefault(experiment_key(loaded), arm.name)
        if same != arm.name:
            message = f'arms "{same}" and "{arm.name}" are the same experiment'
            raise Refused(message, code="duplicate")
        # Arms that differ in sampling only can differ in metrics of samples.
        if loaded.experiment.sample.count > 0:
            continue
        key = training_key(loaded) + loaded.experiment.evaluate.model_dump_json()
        same = unsampled.setdefault(key, arm.name)
        if same != arm.name:
            message = f'arms "{same}" and "{arm.name}" differ in sampling only, '
            message += "but sample.count = 0"
            hint = "--set sample.count=64"
            raise Refused(Problem(message, help=hint, code="no-effect"))


def _mistakes(problems: Mapping[str, Problem]) -> dict[str, Problem]:
    return {
        text: problem for text, problem in problems.items() if problem.code in MISTAKES
    }


def _products(document: Document, catalog: Catalog, compare: Compare) -> Iterator[Arm]:
    """Yield an arm for each combination of the axes, the last one fastest; or the experiment itself."""
    if not compare.over:
        yield Arm(BASE, ())
        return
    axes: list[list[tuple[Value, bool]]] = []
    paths = _axis_places(compare.over, document)
    for path, (place, given) in paths.items():
        _require_key(path, place, document)
        axes.append(list(_axis_values(path, place, given, document, catalog)))
    # Counted before they are enumerated.
    count = math.prod(map(len, axes))
    if count > MAX_ARMS:
        message = f"{count:,} arms; at most {MAX_ARMS:,} are allowed"
        raise Refused(message, code="too-large")

    keys = short_keys(list(paths))
    for combination in itertools.product(*axes):
        words = []
        for key, axis, ((path, value, _), _) in zip(
            keys, axes, combination, strict=True
        ):
            # An axis of one value is the same in all arms.
            if len(axis) == 1 and count > 1:
                continue
            is_component = path[-1] in KINDS
            text = format_value(value)
            words.append(text if is_component else f"{key}={text}")
        values = tuple(value for value, _ in combination)
        tried = any(tried for _, tried in combination)
        yield Arm(", ".join(words), values, tried)


def _axis_places(
    over: Mapping[str, Any], document: Document
) -> dict[Path, tuple[Path, Any]]:
    """Return place and values of each axis; a later layer replaces an axis in another notation."""
    places: dict[Path, tuple[Path, Any]] = {}
    for path, (place, given) in iter_keys(over, ("compare", "over")):
        if path in places:
            origin = document.origin(place)
            before = document.origin(places[path][0])
            if origin and before and origin.file == before.file:
                message = f"{dotted(path)} is given twice"
                raise Refused(Problem(message, place, origin, code="duplicate"))
        places[path] = (place, given)
    return places


def _axis_values(
    path: Path, place: Path, given: Any, document: Document, catalog: Catalog
) -> Iterator[tuple[Value, bool]]:
    """Yield the values of an axis, and whether they come from "*"."""
    if given == "*":
        for part in catalog.parts(known_kind(str(path[-1]))):
            yield (path, _component(path, part.name, document), None), True
        return
    if not isinstance(given, list) or not given:
        message = f'expected a list of values or "*", got {given!r}'
        origin = document.origin(place)
        raise Refused(Problem(message, place, origin, code="wrong-type"))
    for index, value in enumerate(given):
        yield (path, _component(path, value, document), (*place, index)), False


def _component(path: Path, value: Any, document: Document) -> Any:
    """Return a component as a table, so that one of the experiment keeps its options."""
    current = document.at(path)
    if isinstance(current, dict) and "use" in current and isinstance(value, str):
        return {"use": value}
    return value


def _named_arms(document: Document, compare: Compare) -> Iterator[Arm]:
    for name, table in compare.arms.items():
        place: Path = ("compare", "arms", name)
        # "a.b" of the command line replaces the table a of the file.
        values: dict[Path, Value] = {}
        for path, (inner, value) in iter_keys(table, place):
            _require_key(path, inner, document)
            values[path] = (path, _component(path, value, document), inner)
        yield Arm(name, tuple(values.values()))


def _require_key(path: Path, place: Path, document: Document) -> None:
    reason = key_error(path)
    if path == ("seed",):
        reason = "every arm has the same seeds: --seeds N"
    if reason:
        problem = Problem(reason, path, document.origin(place), code="invalid-value")
        raise Refused(problem)


def _with_equal_batches(
    arms: Sequence[tuple[Arm, Loaded]],
) -> list[tuple[Arm, Loaded]]:
    """Return arms of one batch size of evaluation, of which the noise is a function."""
    size = arms[0][1].experiment.evaluation_batch
    equal = []
    for arm, loaded in arms:
        own = loaded.experiment.evaluate.batch_size
        equal.append((arm, loaded.with_options("evaluate", batch_size=own or size)))
    return equal


def training_key(loaded: Loaded) -> str:
    """Return a text that is the same for experiments with the same weights."""
    ignored = set(UNTRAINED)
    # An evaluation may end the run.
    if loaded.experiment.evaluate.patience is None:
        ignored.add("evaluate")
    return experiment_key(loaded, ignored)


def require_arm(name: str, names: Sequence[str], option: str) -> None:
    """Refuse the name of an arm that does not exist."""
    if name not in names:
        hint = did_you_mean(name, names, f"known: {'; '.join(names)}")
        message = f'{option}: unknown arm "{name}"'
        raise Refused(Problem(message, help=hint, code="unknown-value"))
