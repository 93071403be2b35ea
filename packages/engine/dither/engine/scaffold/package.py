"""What a new plugin, its package and its part are called, and which names cannot be."""

from __future__ import annotations

import importlib.metadata
import keyword
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.kinds import KINDS

__all__ = ["Names", "check_kind", "check_names", "render", "write_package"]

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 40


@dataclass(frozen=True)
class Names:
    """The names that follow from that of a plugin.

    Attributes:
        name: Of the plugin and of its part, in kebab-case.
        kind: Of the part.
    """

    name: str
    kind: str

    @property
    def distribution(self) -> str:
        """What pip installs, and the folder that is written."""
        return f"dither-{self.name}"

    @property
    def module(self) -> str:
        """What Python imports."""
        return self.distribution.replace("-", "_")

    @property
    def part(self) -> str:
        """The class of the Spec: `WaveletBlock` for the block "wavelet", and for the block "wavelet-block"."""
        words, kind = self.name.split("-"), self.kind.split("-")
        if len(words) > len(kind) and words[-len(kind) :] == kind:
            kind = []
        return "".join(word.capitalize() for word in [*words, *kind])


def check_kind(kind: str) -> str:
    """Return a kind, or refuse what is none.

    Raises:
        Refused: It is no kind; the message has the nearest one.
    """
    if kind not in KINDS:
        close = nearest(kind, KINDS)
        hint = f'did you mean "{close}"? ' if close else ""
        raise Refused(Problem(f'"{kind}" is no kind of part', help=f"{hint}kinds: {', '.join(KINDS)}"))
    return kind


def check_names(names: Names, plugins: Collection[str], parts: Collection[str]) -> None:
    """Refuse names that cannot be, or that are taken.

    Args:
        names: What is asked for.
        plugins: Plugins that are installed, whatever became of them.
        parts: Parts of the kind that are registered.

    Raises:
        Refused: With everything that is wrong.
    """
    problems = list(_wrong_form(names.name)) or list(_taken(names, plugins, parts))
    if problems:
        raise Refused(problems)


def _wrong_form(name: str) -> Iterator[Problem]:
    folded = re.sub(r"[^a-z0-9]+", "-", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()).strip("-")
    folded = folded.removeprefix("dither-")
    if not NAME.fullmatch(name):
        message = f"{name!r} is no name for a plugin: lower-case words, joined by -, that begin with a letter"
        yield Problem(message, help=f"write {folded}" if name.isascii() and NAME.fullmatch(folded) else None)
    elif name == "dither" or name.startswith("dither-"):
        help_text = f"write {folded}" if folded and folded != "dither" else None
        yield Problem(f'the package is called "dither-NAME" anyway: leave the prefix out of "{name}"', help=help_text)
    elif keyword.iskeyword(name) or keyword.iskeyword(name.capitalize()) or keyword.issoftkeyword(name):
        yield Problem(f'"{name}" is a keyword of Python, and makes a poor name for a plugin')
    elif len(name) > LONGEST:
        yield Problem(f"a name has at most {LONGEST} letters, this one has {len(name)}")


def _taken(names: Names, plugins: Collection[str], parts: Collection[str]) -> Iterator[Problem]:
    if names.name in plugins:
        yield Problem(f'a plugin named "{names.name}" is installed already', help="see: dither plugins")
    elif names.name in parts:
        message = (
            f'a {names.kind} named "{names.name}" is registered already, and short names of both would be ambiguous'
        )
        yield Problem(message, help=f"see: dither describe {names.kind} {names.name}")
    elif _is_installed(names.distribution):
        yield Problem(f'a distribution named "{names.distribution}" is installed already')


def _is_installed(distribution: str) -> bool:
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


SUFFIX = ".template"
NEEDED = ("dither-registry>=0.1", "jaxtyping>=0.2.28", "pydantic>=2.8,<3", "torch>=2.11")
"""What most parts import."""
NEEDED_BY = {
    "data": ("dither-registry>=0.1", "dither-tasks>=0.1", "pydantic>=2.8,<3"),
    "lr-schedule": ("dither-registry>=0.1", "pydantic>=2.8,<3"),
}
"""What other parts import."""


def render(names: Names) -> dict[str, str]:
    """Return the text of each file by its path in the package."""
    folder = files(__package__) / "templates" / names.kind
    (work,) = {path.name for path in folder.iterdir()} - {f"specs.py{SUFFIX}", f"experiment.toml{SUFFIX}"}
    work = work.removesuffix(f".py{SUFFIX}")
    values = {
        "name": names.name,
        "kind": names.kind,
        "distribution": names.distribution,
        "module": names.module,
        "part": names.part,
        "work": work,
        "dependencies": ", ".join(f'"{pin}"' for pin in NEEDED_BY.get(names.kind, NEEDED)),
    }
    templates = {
        "pyproject.toml": "package/pyproject.toml",
        "README.md": "package/README.md",
        ".gitignore": "package/gitignore",
        "experiment.toml": f"{names.kind}/experiment.toml",
        f"{names.module}/__init__.py": "package/init.py",
        f"{names.module}/specs.py": f"{names.kind}/specs.py",
        f"{names.module}/{work}.py": f"{names.kind}/{work}.py",
        "tests/test_conformance.py": "package/tests/test_conformance.py",
    }
    texts = {path: Template(_read(template)).substitute(values) for path, template in templates.items()}
    return {**texts, f"{names.module}/py.typed": ""}


def write_package(names: Names, into: Path) -> Path:
    """Write the package into a folder of its own, and return that; what exists is never touched.

    Args:
        names: What it is called.
        into: An existing folder.

    Raises:
        Refused: Something is in the way, or the folder cannot be written to.
    """
    target = into / names.distribution
    if not into.is_dir():
        raise Refused(f"{into} is no folder")
    if target.exists() or target.is_symlink():
        raise Refused(f"{target} exists already, and nothing is overwritten")
    beside = into / f".{names.distribution}-{secrets.token_hex(4)}"
    try:
        for path, text in render(names).items():
            (beside / path).parent.mkdir(parents=True, exist_ok=True)
            (beside / path).write_text(text, encoding="utf-8")
        beside.rename(target)
    except OSError as error:
        raise Refused(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return target


def _read(template: str) -> str:
    return (files(__package__) / "templates").joinpath(f"{template}{SUFFIX}").read_text(encoding="utf-8")
