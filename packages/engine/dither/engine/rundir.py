"""A run directory: made once, held by one process, and enough to run again.

It is called `<utc>-<6 hex>` and holds experiment.toml and what it extends as given, resolved.toml with every default
and every name pinned, the one-file plugins, manifest.json, metrics.jsonl, summary.json, run.lock, and the folders
tensorboard, samples and checkpoints.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomlkit

from dither.registry.document import Document
from dither.registry.problems import Problem, Refused
from dither.registry.storage import sync, write_aside
from dither.registry.validation import dump, validate

from .anchoring import NAMES, anchored
from .experiment import Experiment, Loaded
from .locking import lock
from .metrics_file import as_json
from .seals import KEY, broken_table, broken_text, sealed_table, sealed_text
from .whereabouts import no_run

__all__ = ["RunDirectory", "flat", "read_manifest", "resolved", "resolved_file"]

TRIES = 100
LEFT = re.compile(r"\.(?!report-[0-9a-f]{8}\.html).+-[0-9a-f]{8}(\.[a-z]+)?")
"""Names of files that were being written aside when they were broken off; not the page of `dither report`."""


class RunDirectory:
    """A run directory whose lock this process holds. Use it as a context, which gives the lock back at the end.

    Attributes:
        path: Where it is.
    """

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self._lock = path, lock

    @classmethod
    def create(cls, runs: Path) -> Self:
        """Make a new one, named by the time and six random hex digits.

        Raises:
            Refused: It cannot be made there.
        """
        for _ in range(TRIES):
            name = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
            try:
                return cls.at(runs / name)
            except FileExistsError:
                continue
        raise Refused(f"no free name for a run directory was found in {runs}")

    @classmethod
    def at(cls, path: Path) -> Self:
        """Make a new one at a path where nothing is yet.

        Raises:
            FileExistsError: Something is there; it is left as it is.
            Refused: It cannot be made there.
        """
        try:
            str(path.absolute()).encode()
        except UnicodeEncodeError:
            what = f"the run directory {path} cannot be made: its path is no UTF-8, and safetensors could not read it"
            raise Refused(what) from None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
            sync(path.parent)
        except OSError as error:
            if error.errno == errno.EEXIST and path.parent.is_dir():
                raise
            raise Refused(f"the run directory {path} cannot be made: {error.strerror}") from None
        return cls(path, lock(path))

    @classmethod
    def open(cls, path: Path) -> Self:
        """Take hold of one that exists, to go on with its run.

        Raises:
            Refused: It is no run directory, or another process holds it.
        """
        resolved_file(path, sealed=False)
        return cls(path, lock(path))

    @classmethod
    def elsewhere(cls) -> Self:
        """Stand for one that another process holds, and writes."""
        return cls(Path(), -1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock >= 0:
            os.close(self._lock)

    def record(self, loaded: Loaded, manifest: Mapping[str, Any]) -> None:
        """Write down what is about to be run: the files as given, every default, and the manifest."""
        *parents, given = loaded.document.files
        shutil.copyfile(given, self.path / "experiment.toml")
        for number, parent in enumerate(parents, 1):
            (self.path / "extends").mkdir(exist_ok=True)
            shutil.copyfile(parent, self.path / "extends" / f"{number}-{parent.name}")
        self.write_json("manifest.json", manifest)
        self.accept(loaded)  # last: it makes this a run directory

    def changes(self, loaded: Loaded, moved: bool = False) -> list[str]:
        """Return what an experiment has otherwise than this run.

        Args:
            loaded: The experiment.
            moved: Whether its data may lie elsewhere than before.

        Raises:
            Refused: There is something among it under which a run cannot go on.
        """
        before, after = flat(self._meant(loaded)), flat(resolved(loaded))
        changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        notes = {key: f"{key}: {_shown(before.get(key))} -> {_shown(after.get(key))}" for key in changed}
        elsewhere = {key for key in changed if moved and key.rpartition(".")[2] in NAMES}
        fixed = [notes[key] for key in changed if not key.startswith(CHANGEABLE) and key not in elsewhere]
        if fixed:
            hint = f"a run may go on with other values of {', '.join(CHANGEABLE)}; for anything else start a new run"
            message = f"the run in {self.path} was started with another value of "
            raise Refused([Problem(message + note, help=hint) for note in fixed])
        return list(notes.values())

    def _meant(self, loaded: Loaded) -> dict[str, Any]:
        """Return the experiment of this run as it is read today: earlier names of parts mean the present ones."""
        document = Document.read(self.path / "resolved.toml")
        try:
            tree = dump(validate(Experiment, document, loaded.plugins.catalog), loaded.plugins.catalog)
        except Refused:  # it names what is not here any more, and which was replaced
            tree = document.tree
        return anchored(tree, Path.cwd())  # a run of before may hold relative names

    def accept(self, loaded: Loaded) -> None:
        """Go on under these values, with the one-file plugins beside them."""
        for path in loaded.plugins.files:
            copy = self.path / "plugins" / path.name
            if copy.resolve() != path:
                with write_aside(copy) as beside:
                    shutil.copyfile(path, beside)
        self._write_text("resolved.toml", sealed_text(tomlkit.dumps(resolved(loaded))))

    def clear(self, begins: bool = False) -> None:
        """Remove what this run was writing when it was broken off, and where it `begins` anew, its summary.

        Drawings of other commands are not its own.
        """
        if begins:
            (self.path / "summary.json").unlink(missing_ok=True)
        for folder in (self.path, self.path / "plugins", *self.path.glob("samples/step-" + 8 * "[0-9]")):
            for path in folder.glob(".*"):
                if LEFT.fullmatch(path.name):
                    path.unlink(missing_ok=True)

    def write_json(self, name: str, values: Mapping[str, Any]) -> None:
        """Write a JSON file with its seal, whole or not at all."""
        self._write_text(name, as_json(sealed_table(values), indent=2) + "\n")

    def _write_text(self, name: str, text: str) -> None:
        with write_aside(self.path / name) as beside:
            beside.write_text(text, encoding="utf-8")


CHANGEABLE = (
    "name",
    "plugins",
    "evaluate.",
    "sample.",
    "sampler",
    "train.steps",
    "train.log_every",
    "train.checkpoint_every",
    "train.keep",
    "train.keep_every",
    "train.keep_best",
    "train.async_save",
    "train.device",
    "train.strategy",
    "train.gather",
    "train.threads",
    "train.workers",
    "train.keep_memory",
    "train.compile",
    "train.non_finite",
    "train.skip_limit",
)
"""What a resumed run may have otherwise than before."""


def resolved(loaded: Loaded) -> dict[str, Any]:
    """Return the experiment with every default, parts pinned, one-file plugins as they lie in the run directory.

    Files that it names relative to this folder are named from the root.
    """
    tree = anchored(dump(loaded.experiment, loaded.plugins.catalog), Path.cwd())
    files = [f"plugins/{path.name}" for path in loaded.plugins.files]
    tree["plugins"] = files + loaded.plugins.asked
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of tables in tables by dotted key."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        inner = flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
        values.update(inner)
    return values


def _shown(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, default=str)


def resolved_file(run_directory: Path, sealed: bool = True) -> Path:
    """Return the experiment of a run.

    Args:
        run_directory: Of the run.
        sealed: Whether it has to be as it was written.

    Raises:
        Refused: It is no run directory, or the file was changed.
    """
    path = run_directory / "resolved.toml"
    if not path.is_file():
        raise no_run(run_directory, "resolved.toml")
    if sealed and _broken(path):
        hint = "bring it back as it was; or, if you meant the change, go on with it: --resume RUN --accept-changes"
        raise Refused(Problem(f"{path} is not what was written", help=hint))
    return path


def _broken(path: Path) -> bool:
    """Tell whether resolved.toml was changed; that it lacks its seal shows where the manifest has one."""
    try:
        broken = broken_text(path.read_text(encoding="utf-8"))
        return KEY in read_manifest(path.parent) if broken is None else broken
    except UnicodeDecodeError:
        return True
    except (OSError, Refused):  # the reader of the file says more of it
        return False


def read_manifest(run_directory: Path) -> dict[str, Any]:
    """Return manifest.json of a run, with tables where tables should be.

    Raises:
        Refused: It is missing or damaged.
    """
    path = run_directory / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise Refused(f"{path} cannot be read: {error}") from None
    if not isinstance(manifest, dict):
        raise Refused(f"{path} is damaged: it holds no table")
    if broken_table(manifest):
        raise Refused(f"{path} is damaged: it is not what was written")
    manifest = {"environment": {}, "resumed": []} | manifest
    if not isinstance(manifest["environment"], dict) or not isinstance(manifest["resumed"], list):
        raise Refused(f"{path} is damaged: environment should be a table, and resumed a list")
    return manifest
