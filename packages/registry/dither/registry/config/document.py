"""Experiment files: TOML with `extends`, overrides, and the place of every value."""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path as FilePath
from typing import Any

from ..files.limits import open_file
from ..files.lookup import exists, is_file
from ..spec.misfit import Path
from .errors import Origin, Problem, Refused, did_you_mean, dotted, nearest
from .toml_spans import STRING, Span, key_spans

__all__ = ["Document", "Layer", "find_experiment", "name_of", "shipped_experiments"]

MAX_FILES = 32
"""Files that one experiment may consist of."""
MAX_BYTES = 256 * 1024
"""Size of an experiment file."""
MAX_DEPTH = 64
"""Parts of a dotted key, and levels of nesting: tomllib takes 10 s and 1.5 GB for a key of 20,000
parts."""
SHOWN = 80
"""Characters of an override that messages show."""
TOO_LARGE = "integer too large: TOML integers have at most 64 bits"
# Possessive quantifiers (`++`) never backtrack, so that a hostile file takes linear time.
KEY_AND_EQUALS = re.compile(
    r"""(?:[^"'=]++|"(?:[^"\\]++|\\.)*+"|'[^']*+')*+=""", re.DOTALL
)
STRING_OR_COMMENT = re.compile(rf"{STRING.pattern}|#[^\n]*+", re.DOTALL)
KEY = re.compile(r"[\w-]++(?:[ \t]*+\.[ \t]*+[\w-]++)*+")
PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
# Words of tomllib's messages: "Cannot overwrite a value", "Cannot declare ... twice", "Cannot
# mutate ...".
DUPLICATE = re.compile(r"cannot (overwrite|declare|mutate)")
FIRST_KEY = re.compile(r"[ \t]*\[*[ \t]*([^\s=\]]+)")
INTEGERS = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Layer:
    """Values from one source: a file, or an override such as `--set train.lr=1`.

    `text` and `file` of an override are None.
    """

    name: str
    tree: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    file: FilePath | None = None

    @classmethod
    def read(cls, path: FilePath) -> Layer:
        """Read a file.

        Raises `Refused` if it is missing, too large, not UTF-8, invalid TOML, or nested too deeply.
        """
        text = _read_text(path)
        try:
            layer = cls(str(path), _parse(text, str(path)), text, path)
        except tomllib.TOMLDecodeError as error:
            raise Refused(_syntax_problem(error, text, str(path))) from None
        problems = []
        for key in _large_integers(layer.tree)[:3]:
            place = layer.origin(key, value=True)
            problems.append(Problem(TOO_LARGE, key, place, code="out-of-range"))
        if problems:
            raise Refused(problems)
        return layer

    @classmethod
    def override(cls, text: str) -> Layer:
        """Parse `key=value` of --set, or raise `Refused`; a value that is not TOML is a string."""
        name = _truncated(f"--set {text}")
        key, equals, given = text.partition("=")
        # The first equals sign may be inside of quotes.
        if match := KEY_AND_EQUALS.match(text):
            key = text[: match.end() - 1]
            given = text[match.end() :]
        if not equals or not key.strip():
            raise Refused(f"{name}: expected key=value", code="usage")
        path = _parse_key(key, name)
        value: Any = given
        try:
            tree = _parse(f"value = {given}", name)
        except tomllib.TOMLDecodeError:
            tree = {}
        # A text with a line break may define more keys.
        if len(tree) == 1:
            value = tree["value"]
        if _large_integers([value]):
            raise Refused(TOO_LARGE, path, Origin(name), code="out-of-range")
        for part in reversed(path):
            value = {part: value}
        return cls(name, value)

    @classmethod
    def removal(cls, key: str) -> tuple[Layer, Path]:
        """Parse the key of --unset."""
        name = _truncated(f"--unset {key}")
        return cls(name), _parse_key(key, name)

    @cached_property
    def _spans(self) -> dict[Path, Span]:
        return key_spans(self.text or "")

    def origin(self, path: Path, value: bool = False) -> Origin:
        """Return the place of a key or its value, or else of the nearest table given here."""
        if self.text is None:
            return Origin(self.name)
        for end in range(len(path), 0, -1):
            span = self._spans.get(path[:end])
            if span is None:
                continue
            # A bare name is given without `use`.
            is_exact = end == len(path) or path[end:] == ("use",)
            place = span.key
            if value and is_exact:
                place = span.value
            return Origin.within(self.name, self.text, *place)
        return Origin(self.name)


def _truncated(name: str) -> str:
    return name if len(name) <= SHOWN else name[:SHOWN] + "..."


def _parse_key(key: str, option: str) -> Path:
    """Return the parts of `table.key`, each bare or quoted as in TOML."""
    try:
        # tomllib parses the key itself, so that quoted parts follow the rules of a file.
        tree: Any = _parse(f"{key}=0", option)
    except tomllib.TOMLDecodeError:
        tree = {}
    path: Path = ()
    # tomllib nests the parts of a dotted key.
    while isinstance(tree, dict) and len(tree) == 1:
        ((part, tree),) = tree.items()
        path = (*path, part)
    if tree != 0 or "\n" in key:
        raise Refused(
            f'{option}: "{key[:SHOWN]}" is not a key; write table.key', code="usage"
        )
    return path


def _read_text(path: FilePath) -> str:
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            # One byte more than allowed shows that a file is too large, without reading all of it.
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        message = f"file {path} does not exist"
        hint = _similar_files(path)
        raise Refused(message, help=hint, code="file-not-found") from None
    except IsADirectoryError:
        raise Refused(
            f"{path} is a folder, not a file", code="unreadable-file"
        ) from None
    except (OSError, ValueError) as error:
        # ValueError: the path contains a null byte.
        reason = error.strerror if isinstance(error, OSError) else error
        raise Refused(
            f"cannot read {str(path)!r}: {reason}", code="unreadable-file"
        ) from None
    if len(content) > MAX_BYTES:
        text = f"{path} has {size:,} bytes; an experiment file may have at most {MAX_BYTES:,}"
        raise Refused(text, code="too-large")
    try:
        # tomllib rejects the byte order mark that editors on Windows write.
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = f"{path}:{line}: not UTF-8 (byte {error.start})"
        raise Refused(text, code="unreadable-file") from None


def _similar_files(path: FilePath) -> str:
    """Return a help text with the file or experiment that is most similar to a missing one."""
    neighbours: list[str] = []
    with suppress(OSError):
        files = islice(path.parent.iterdir(), 1000)
        neighbours = [file.name for file in files if file.suffix == ".toml"]
    shipped = shipped_experiments()
    same_stem = [name for name in shipped if name.endswith(f"/{path.stem}")]
    # A file next to it first: a typing error is likelier than a wrong folder.
    close = nearest(path.name, neighbours) or nearest(name_of(path), shipped)
    close = close or '" or "'.join(same_stem)
    if close:
        return f'did you mean "{close}"?'
    return '"dither run" lists the experiments that come with dither'


def _parse(text: str, name: str) -> dict[str, Any]:
    """Parse a TOML text, called `name` in messages.

    `_syntax_problem` locates a `tomllib.TOMLDecodeError`.
    """
    _check_keys(text, name)
    try:
        tree = tomllib.loads(text)
        _check_depth(tree)
    except RecursionError:
        message = f"{name}: nested more than {MAX_DEPTH} levels deep"
        raise Refused(message, code="too-large") from None
    except tomllib.TOMLDecodeError:
        # It is a ValueError, too, but `_syntax_problem` knows its place in the file.
        raise
    except ValueError as error:
        # Python converts integers of at most 4,300 digits.
        raise Refused(f"{name}: {error}", code="out-of-range") from None
    return tree


def _check_keys(text: str, name: str) -> None:
    """Refuse a dotted key of too many parts before tomllib reads it."""
    # Nearly all files end here, at little cost.
    if all(line.count(".") < MAX_DEPTH for line in text.split("\n")):
        return
    # Dots in strings and comments are masked by letters, so that offsets stay.
    masked = STRING_OR_COMMENT.sub(_mask, text)
    for key in KEY.finditer(masked):
        parts = key[0].count(".") + 1
        if parts > MAX_DEPTH:
            message = f"a key has {parts:,} parts; at most {MAX_DEPTH} are allowed"
            origin = Origin.within(name, text, *key.span())
            raise Refused(message, origin=origin, code="too-large")


def _mask(match: re.Match[str]) -> str:
    letter = "#" if match[0].startswith("#") else "q"
    return letter * len(match[0])


def _check_depth(tree: Any, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise RecursionError
    for _, value in _items(tree):
        if isinstance(value, dict | list):
            _check_depth(value, depth + 1)


def _large_integers(tree: Any, path: Path = ()) -> list[Path]:
    """Return the paths of integers that do not fit into 64 bits, as TOML requires."""
    found: list[Path] = []
    for key, value in _items(tree):
        if isinstance(value, dict | list):
            found += _large_integers(value, (*path, key))
        elif type(value) is int and value not in INTEGERS:
            found.append((*path, key))
    return found


def _syntax_problem(error: tomllib.TOMLDecodeError, text: str, name: str) -> Problem:
    """Return the message of tomllib with its place in the text, which is called `name`."""
    # The place is shown with the line below the message.
    message = PLACE.sub("", str(error))
    message = f"invalid TOML: {message[:1].lower()}{message[1:]}"
    place = PLACE.search(str(error))
    if place is None or place[1] is None:
        message += " at the end of the file"
        start = len(text.rstrip())
    else:
        lines_before = text.split("\n", int(place[1]) - 1)[:-1]
        start = sum(len(line) + 1 for line in lines_before) + int(place[2]) - 1
    end = start + 1

    # tomllib reports the end of a statement that defines a key again.
    if DUPLICATE.search(message):
        key = FIRST_KEY.match(text, text.rfind("\n", 0, start) + 1)
        if key is not None:
            start, end = key.span(1)
    return Problem(
        message, origin=Origin.within(name, text, start, end), code="syntax-error"
    )


@dataclass
class Document:
    """Values of all layers, merged.

    Attributes:
        tree: The values.
        files: The files in reading order.
        given: Layers with a value at a path, the newest last.
    """

    tree: dict[str, Any] = field(default_factory=dict)
    files: list[FilePath] = field(default_factory=list)
    given: dict[Path, tuple[Layer, ...]] = field(default_factory=dict)

    @classmethod
    def load(
        cls, path: FilePath, overrides: Iterable[str] = (), removals: Iterable[str] = ()
    ) -> Document:
        """Read a file with those it extends, then apply `a.b=VALUE` of --set and `a.b` of --unset.

        A VALUE that is not TOML is a string. Raises `Refused` for every mistake in files and
        options.
        """
        document = cls._of([*_layers(path, [], set()), *map(Layer.override, overrides)])
        for removal in removals:
            document._unset(removal)
        return document

    @classmethod
    def read(cls, path: FilePath) -> Document:
        """Read one file without the files it extends; raise `Refused` if it is not a TOML file."""
        return cls._of([Layer.read(path)])

    @classmethod
    def from_overrides(cls, overrides: Iterable[str]) -> Document:
        """Make a document of overrides only; raise `Refused` if one is not `key=value`."""
        return cls._of(map(Layer.override, overrides))

    @classmethod
    def _of(cls, layers: Iterable[Layer]) -> Document:
        document = cls()
        for layer in layers:
            document.merge(layer)
        return document

    def merge(self, layer: Layer) -> None:
        self._merge(self.tree, layer.tree, (), layer)
        if layer.file is not None:
            self.files.append(layer.file)

    def _merge(
        self,
        old: dict[str, Any],
        new: Mapping[str, Any],
        path: Path,
        layer: Layer,
    ) -> None:
        for key, value in new.items():
            place = (*path, key)
            before = old.get(key)
            if isinstance(before, str) and isinstance(value, dict):
                # A table adds options to a component that was given by its bare name.
                before = {"use": before}
                old[key] = before
                self.given[*place, "use"] = self.given.get(place, ())
            if isinstance(before, dict) and not _same_component(before, value):
                # Options of another component do not apply to the new one.
                self._drop_origins(before, place, keep_use=isinstance(value, dict))
                before = None

            self.given[place] = (*self.given.get(place, ()), layer)
            if isinstance(value, dict):
                if not isinstance(before, dict):
                    before = {}
                old[key] = before
                self._merge(before, value, place, layer)
            else:
                old[key] = value

    def _drop_origins(self, value: Any, path: Path, keep_use: bool = False) -> None:
        """Drop the origins of values that are replaced.

        The name of a replaced component may stay in the history.
        """
        for inner in _paths(value, path):
            if not (keep_use and inner == (*path, "use")):
                self.given.pop(inner, None)

    def _unset(self, key: str) -> None:
        layer, path = Layer.removal(key)
        # A key that is not there is a typing error, not a success.
        table = self.at(path[:-1])
        if not isinstance(table, dict) or path[-1] not in table:
            hint = did_you_mean(key, map(dotted, _paths(self.tree)))
            raise Refused(f"{layer.name}: no such key", help=hint, code="unknown-key")
        value = table.pop(path[-1])
        self._drop_origins(value, path)
        # A later message, such as one about the missing value, then names --unset as its place.
        self.given[path] = (*self.given.get(path, ()), layer)

    @staticmethod
    def value_of(tree: Any, path: Iterable[str | int]) -> Any:
        """Return the value at a path of a tree, or None."""
        for part in path:
            if isinstance(tree, dict):
                tree = tree.get(part)
            elif isinstance(tree, list) and isinstance(part, int) and part < len(tree):
                tree = tree[part]
            else:
                return None
        return tree

    def at(self, path: Path) -> Any:
        return self.value_of(self.tree, path)

    def origin(self, path: Path, value: bool = False) -> Origin | None:
        """Return where the key at a path was given, or its value; else where its table was."""
        for end in range(len(path), 0, -1):
            if layers := self.given.get(path[:end]):
                return layers[-1].origin(path, value)
        return Origin(str(self.files[-1])) if self.files else None

    def history(self, path: Path) -> list[Origin]:
        """Return where a value was given: the effective place, then those it overrides."""
        for end in range(len(path), 0, -1):
            layers = self.given.get(path[:end])
            if not layers:
                continue
            # The path may lead into a list, or to the name in a bare name.
            value = self.at(path[:end])
            is_bare_name = isinstance(value, str) and path[end:] == ("use",)
            if end < len(path) and not isinstance(value, list) and not is_bare_name:
                return []
            return [layer.origin(path, value=True) for layer in reversed(layers)]
        return []


def _same_component(before: Mapping[str, Any], value: Any) -> bool:
    """Return whether a value changes options of a table, and does not replace its component."""
    if not isinstance(value, dict):
        return False
    name = before.get("use")
    return bool(value.get("use", name) == name)


def _paths(tree: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of every key, table and array element of a tree."""
    for key, value in _items(tree):
        yield (*path, key)
        yield from _paths(value, (*path, key))


def _items(tree: Any) -> Iterable[tuple[str | int, Any]]:
    """Return keys and values of a table, or indices and values of an array."""
    if isinstance(tree, dict):
        return tree.items()
    return enumerate(tree) if isinstance(tree, list) else ()


def _layers(path: FilePath, opened: list[FilePath], done: set[str]) -> Iterator[Layer]:
    """Read a file after the files it extends, without those that are done.

    `opened` are the files that extend it.
    """
    layer = Layer.read(path)
    opened = [*opened, path]
    # Files may extend several others, so their number can grow without a circle.
    if len(done) + len(opened) > MAX_FILES:
        raise Refused(
            f"{opened[0]} extends more than {MAX_FILES} files in total",
            code="too-large",
        )
    for origin, parent in _parents(layer):
        try:
            _check_circle(opened, parent)
            # Two names of one file, such as a link and its target, are read once.
            if os.path.realpath(parent) not in done:
                yield from _layers(parent, opened, done)
        except ValueError as error:
            # The name contains a null byte.
            text = f"cannot read {str(parent)!r}: {error}"
            raise Refused(text, ("extends",), origin, code="unreadable-file") from None
        except Refused as refused:
            # A missing file has the place where it is named; mistakes inside have their own.
            problems = []
            for problem in refused.problems:
                placed = replace(problem, path=("extends",), origin=origin)
                problems.append(problem if problem.origin else placed)
            raise Refused(problems) from None
    done.add(os.path.realpath(path))
    yield layer


def _check_circle(opened: Sequence[FilePath], parent: FilePath) -> None:
    real = [os.path.realpath(path) for path in opened]
    if os.path.realpath(parent) in real:
        first = real.index(os.path.realpath(parent))
        chain = " extends ".join(map(str, (*opened[first:], parent)))
        text = f"experiment files extend each other in a circle: {chain}"
        raise Refused(text, code="extends-cycle")


def _parents(layer: Layer) -> Iterator[tuple[Origin, FilePath]]:
    """Yield the files that a file extends, each with the place of its name."""
    value = layer.tree.pop("extends", [])
    names = value
    key: Path = ("extends",)
    if isinstance(value, str):
        names = [value]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        origin = layer.origin(("extends",), value=True)
        text = "expected the name of a file, or a list of names"
        raise Refused(text, ("extends",), origin, given=value, code="wrong-type")
    folder = FilePath()
    if layer.file is not None:
        folder = layer.file.parent
    for index, name in enumerate(names):
        # The name in a list has a place of its own.
        if names is value:
            key = ("extends", index)
        file = folder / name
        if not exists(file):
            # A file next to this one takes precedence over a shipped experiment of the same name.
            file = shipped_experiments().get(name_of(FilePath(name)), file)
        yield layer.origin(key, value=True), file


def shipped_experiments() -> dict[str, FilePath]:
    """Return the experiment files by name, such as `bubble_diagram/quick`."""
    places = [FilePath(folder) for folder in sys.modules["dither"].__path__]
    # In a checkout the experiments are at its root, in a wheel inside of the package.
    checkouts = [
        place.parents[2] for place in places if place.parents[1].name == "packages"
    ]
    folders = [folder / "experiments" for folder in (*checkouts, *places)]
    files: list[FilePath] = []
    for folder in folders:
        files += sorted(folder.glob("*/*.toml"))
    return {f"{file.parent.name}/{file.stem}": file for file in files}


def name_of(path: FilePath) -> str:
    """Return `bubble_diagram/quick` for `experiments/bubble_diagram/quick.toml`."""
    return path.as_posix().removesuffix(".toml").removeprefix("experiments/")


def find_experiment(path: FilePath) -> FilePath:
    """Return the file of an experiment, given by its path or as in `shipped_experiments`.

    `.toml` may be omitted. A path that names nothing is returned as it is.
    """
    if exists(path) or path.is_absolute():
        return path
    file = FilePath(f"{path}.toml")
    return file if is_file(file) else shipped_experiments().get(name_of(path), path)
