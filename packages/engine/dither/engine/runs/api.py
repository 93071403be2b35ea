"""The functions of `import dither`: train, evaluate, sample, list components, save an experiment."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit

from dither.registry.config.validation import dump
from dither.registry.contracts.protocols import Split
from dither.registry.files.atomic import atomic_write, output_file
from dither.registry.kinds import known_kind
from dither.registry.plugins.catalog import Component
from dither.registry.plugins.manager import load_plugins

from ..config.experiment import Experiment
from ..config.load_experiment import load_experiment
from .exports import load
from .run import run
from .run_directory import link_latest
from .system import System

__all__ = ["components", "evaluate", "sample", "save_experiment", "train"]


def train(
    experiment: str | Path | Experiment,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    runs: str | Path = "runs",
    plugins: Sequence[str] | None = None,
) -> Path:
    """Train an experiment, as `dither run` does, and return the run directory; `dither.load` reads it.

    Args:
        experiment: A file, the name of one that comes with dither, or an `Experiment` made of
            Python objects.
        overrides: Values by key, such as `{"train.steps": 10}`, or `key=value` as after --set.
        runs: The parent folder of run directories.
        plugins: As after -p.

    Raises:
        Refused: With a problem for everything that is wrong.
        RuntimeError: The run did not finish; the message has its exit code.
    """
    directories: list[Path] = []

    def created(path: Path) -> None:
        directories.append(path)
        link_latest(path)

    # A run starts from a file, whose lines its messages name.
    with tempfile.TemporaryDirectory() as folder:
        if isinstance(experiment, Experiment):
            experiment = save_experiment(experiment, Path(folder) / "experiment.toml")
        loaded = load_experiment(experiment, overrides, select=plugins)
        code = run(loaded, Path(runs), ["dither.train"], created=created)
    if code:
        raise RuntimeError(
            f"the run ended with exit code {code}: {''.join(map(str, directories))}"
        )
    return directories[0]


def save_experiment(experiment: Experiment, path: str | Path) -> Path:
    """Write an experiment with every default as TOML; return the path. Loading it gives an equal one."""
    path = Path(path)
    text = tomlkit.dumps(dump(experiment, load_plugins().catalog))
    with atomic_write(output_file(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def evaluate(
    system: System | str | Path,
    split: Split = "valid",
    samples: int = 1024,
    seed: int = 0,
) -> dict[str, float]:
    """Return the metrics of a system, a run or an export on the first samples of a split."""
    return _loaded(system).evaluate(split, samples, seed)


def sample(system: System | str | Path, n: int = 1, **options: Any) -> Any:
    """Draw n samples of a system, a run or an export; options are those of `System.sample`.

    They are decoded: texts, plans, a table of regions.
    """
    system = _loaded(system)
    return system.decode(system.sample(n, **options))


def _loaded(system: System | str | Path) -> System:
    return system if isinstance(system, System) else load(system)


def components(kind: str | None = None) -> list[Component]:
    """Return the registered components of a kind, or all: `kind`, `name`, `plugin`, `summary`, and the class `spec`.

    Refused if there is no such kind.
    """
    return list(
        load_plugins().catalog.parts(None if kind is None else known_kind(kind))
    )
