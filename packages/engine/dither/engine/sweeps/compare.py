"""Run a comparison: arms x seeds as the points of a sweep; or compare finished runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from rich.console import Console

from dither.registry.config.document import Document, Layer, find_experiment
from dither.registry.config.errors import Problem, Refused
from dither.registry.files.lookup import is_file, is_folder
from dither.registry.plugins.manager import Plugins

from ..config.compare_options import Compare
from ..config.experiment import Experiment
from ..config.load_experiment import Loaded, open_experiment, override_texts
from ..runs.api import save_experiment
from ..runs.progress import Screen, say
from ..runs.run_directory import flat, resolved_file
from ..runs.signals import STOPPED
from .arms import Arm, Rejected, check_comparison, require_arm, training_key
from .comparison import ArmRuns, Comparison, compare_arms, show_comparison
from .directory import MARK, WEIGHTS_OF, PointFolder, SweepDirectory, write_json
from .finished_runs import FinishedRun, held_out_difference, most_complete
from .known_metrics import require_measured
from .launch import Settings, run_sweep
from .points import format_value, short_keys

__all__ = [
    "Request",
    "compare",
    "compare_runs",
    "is_comparison",
    "open_comparison",
    "prepare_comparison",
    "read_comparison",
    "start_comparison",
]

NOTHING: Mapping[str, Any] = MappingProxyType({})
FACTS = "compare"
"""Key of a comparison in sweep.json."""
NO_ARM = ("name", "seed", "plugins", "sample.seed")
NO_ARM_TABLES = ("tracking.", "sweep.", "compare.")
"""Options by which runs of one arm may differ."""
MAX_KEYS = 4
"""Differing options that name an arm of finished runs."""


def compare(
    experiment: str | Path | Experiment | Sequence[str | Path],
    over: Mapping[str, Any] = NOTHING,
    arms: Mapping[str, Mapping[str, Any]] = NOTHING,
    *,
    seeds: int | None = None,
    against: str | None = None,
    metric: str | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    runs: str | Path = "runs",
    jobs: int = 1,
    plugins: Sequence[str] | None = None,
) -> Comparison:
    """Run arms of an experiment with several seeds, as `dither compare` does; or compare finished runs.

    Args:
        experiment: As in `train`; or a list of run directories, or the directory of a comparison.
        over: Key -> list of values, or "*" for every compatible component.
        arms: Name of a further arm -> its values by key.
        seeds: Runs of each arm, by default 5.
        against: Name of the reference; the default is the first arm.
        metric: kind/name, by default the first headline of the task.
        overrides: Values by key of all arms, as in `train`.
        runs: The parent folder of the comparison.
        jobs: Simultaneous runs.
        plugins: As after -p.

    Raises:
        Refused: With a problem for everything that is wrong.
        RuntimeError: A signal stopped the runs.
    """
    if isinstance(experiment, Sequence) and not isinstance(experiment, str):
        return compare_runs([Path(path) for path in experiment], metric, against)
    if not isinstance(experiment, Experiment) and is_folder(Path(experiment)):
        sweep = open_comparison(Path(experiment))
        return read_comparison(sweep, metric, against)
    given = {"seeds": seeds, "against": against, "metric": metric}
    options = {key: value for key, value in given.items() if value is not None}
    layer = Layer(
        "dither.compare", {"compare": {"over": dict(over), "arms": dict(arms)}}
    )
    with TemporaryDirectory() as folder:
        if isinstance(experiment, Experiment):
            experiment = save_experiment(experiment, Path(folder) / "experiment.toml")
        request = Request(
            path=find_experiment(Path(experiment)),
            changes=override_texts(overrides),
            layers=[layer],
            options=options,
            runs=Path(runs),
            argv=["dither.compare"],
        )
        settings = Settings(select=tuple(plugins or ()))
        prepared = prepare_comparison(request, settings, Screen())
    assert prepared is not None
    settings = Settings(
        jobs=jobs, select=tuple(plugins or ()), show=lambda sweep, console: None
    )
    code = run_sweep(prepared, settings, Screen())
    if code == STOPPED:
        raise RuntimeError(f"the comparison was stopped: {prepared.path}")
    return read_comparison(prepared)


@dataclass(frozen=True)
class Request:
    """A comparison of the arms of an experiment file, as after `dither compare`.

    Attributes:
        changes: Overrides of all arms.
        removals: Keys that all arms lack.
        layers: Those of `arm_layers`.
        options: Values that replace those of `[compare]`.
        runs: The parent folder of the comparison.
    """

    path: Path
    changes: Iterable[str] = ()
    removals: Iterable[str] = ()
    layers: Iterable[Layer] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    runs: Path = Path("runs")
    argv: Sequence[str] = ()

    def open(self, select: Sequence[str]) -> tuple[Document, Plugins]:
        """Return the file with all changes, and the selected plugins."""
        document, plugins = open_experiment(
            self.path, self.changes, self.removals, select or None
        )
        for layer in self.layers:
            document.merge(layer)
        for key, value in self.options.items():
            name = f"--{key} {value}"[:100]
            document.merge(Layer(name, {"compare": {key: value}}))
        return document, plugins


def prepare_comparison(
    request: Request, settings: Settings, console: Console
) -> SweepDirectory | None:
    """Validate all arms, and make the directory of a comparison; None for a dry run."""
    document, plugins = request.open(settings.select)
    settings.build_executor(plugins)
    compare, valid, rejected = check_comparison(document, plugins)
    for left_out in rejected:
        reasons = "; ".join(left_out.reasons)
        say(console, f"left out: {left_out.name}: {reasons}", "yellow")
    seeds = "1 seed" if compare.seeds == 1 else f"{compare.seeds} seeds"
    say(console, f"{len(valid)} arms, {seeds} each")
    if settings.dry_run:
        for arm, _ in valid:
            say(console, arm.name)
        return None

    require_measured(valid[0][1], compare.metric)
    sweep = SweepDirectory.create(request.runs, document, request.argv, kind="compare")
    _add_points(sweep, valid, compare, rejected)
    return sweep


def start_comparison(sweep: SweepDirectory, settings: Settings) -> int:
    """Run the unfinished points of a comparison, and show the table; return the exit code of a sweep.

    Raises:
        Refused: The metric is unknown (`unknown-metric`); the runs have ended.
    """
    screen = Screen()
    refusals: list[Refused] = []

    def show(sweep: SweepDirectory, console: Console) -> None:
        try:
            show_comparison(console, read_comparison(sweep))
        except Refused as refused:
            # This must not hide how the points ended.
            refusals.append(refused)

    code = run_sweep(sweep, replace(settings, show=show), screen)
    for refused in refusals:
        problem = refused.problems[0]
        if problem.code != "not-comparable" and code != STOPPED:
            command = f"dither compare {quote(str(sweep.path))} --metric NAME"
            lines = [line for line in (problem.help, command) if line]
            raise Refused(replace(problem, help="\n".join(lines)))
        say(screen, problem.message, "yellow")
    return code


def _add_points(
    sweep: SweepDirectory,
    arms: Sequence[tuple[Arm, Loaded]],
    compare: Compare,
    rejected: Sequence[Rejected],
) -> None:
    """Make the points of all arms; those with the weights of an earlier arm measure its runs."""
    first_seed = arms[0][1].experiment.seed
    digits = len(str(len(arms) * compare.seeds - 1))
    trained: dict[tuple[str, int], str] = {}
    folders: list[PointFolder] = []
    facts = []
    for arm, loaded in arms:
        key = training_key(loaded)
        points = []
        sample = loaded.experiment.sample
        for index in range(compare.seeds):
            seed = first_seed + index
            # The variance over seeds counts the randomness of sampling only if it differs.
            drawn = sample.model_copy(update={"seed": sample.seed + index})
            experiment = loaded.experiment.model_copy(
                update={"seed": seed, "sample": drawn}
            )
            point = arm.point(f"{len(folders):0{digits}}", seed)
            folder = sweep.add(
                point.name, point.by_key, replace(loaded, experiment=experiment)
            )
            source = trained.setdefault((key, seed), folder.name)
            if source != folder.name:
                write_json(folder.path / WEIGHTS_OF, {"point": source})
            folders.append(folder)
            points.append(folder.name)
        facts.append({"name": arm.name, "values": arm.by_key, "points": points})
    sweep.facts[FACTS] = {
        "arms": facts,
        "metric": compare.metric,
        "against": compare.against,
        "same_weights": len(trained) == compare.seeds,
        "rejected": {arm.name: list(arm.reasons) for arm in rejected},
    }
    sweep.record(folders)


def open_comparison(path: Path) -> SweepDirectory:
    """Open the directory of a comparison; Refused if it is another one."""
    sweep = SweepDirectory.open(path)
    if FACTS not in sweep.facts:
        message = f"{path} is a sweep, not a comparison"
        raise Refused(Problem(message, help="dither sweep --resume", code="not-a-run"))
    return sweep


def is_comparison(path: Path) -> bool:
    """Return whether a path is the directory of a comparison."""
    return is_file(path / MARK) and FACTS in SweepDirectory.open(path).facts


def read_comparison(
    sweep: SweepDirectory, metric: str | None = None, against: str | None = None
) -> Comparison:
    """Return the table of a comparison as far as its runs are finished."""
    folders = {folder.name: folder for folder in sweep.folders()}
    facts = sweep.facts[FACTS]
    arms = []
    try:
        for fact in facts["arms"]:
            runs = {}
            for name in fact["points"]:
                run = _finished(folders[name])
                if run is not None:
                    runs[run.seed] = run
            planned = len(fact["points"])
            arms.append(ArmRuns(str(fact["name"]), dict(fact["values"]), planned, runs))
        against = against or facts["against"]
        metric = metric or facts["metric"]
        rejected = dict(facts["rejected"])
        same_weights = bool(facts["same_weights"])
    except (KeyError, TypeError, ValueError) as error:
        message = f"{sweep.path / MARK} is damaged: {error!r}"
        raise Refused(message, code="damaged-file") from None
    if against is not None:
        require_arm(against, [arm.name for arm in arms], "--against")
    comparison = compare_arms(arms, metric, against, same_weights)
    comparison.rejected = rejected
    return comparison


def _finished(folder: PointFolder) -> FinishedRun | None:
    run = folder.run_directory()
    if run is None or folder.status()["state"] != "done":
        return None
    return FinishedRun.read(run)


def compare_runs(
    paths: Sequence[Path], metric: str | None = None, against: str | None = None
) -> Comparison:
    """Compare finished runs: runs that differ by their seed only are one arm.

    Raises:
        Refused: A run is unfinished, or the held-out samples of two runs differ
            (`not-comparable`).
    """
    groups: dict[str, dict[str, Any]] = {}
    members: dict[str, list[Path]] = {}
    # runs/latest is a link to a run.
    unique: dict[str, Path] = {}
    for path in paths:
        unique.setdefault(os.path.realpath(path), path)
    for path in unique.values():
        options = _options_of(path)
        key = repr(sorted(options.items()))
        groups[key] = options
        members.setdefault(key, []).append(path)
    if sum(map(len, members.values())) < 2:
        raise Refused("give two runs or more", code="usage")
    # Runs of equal options are compared one by one.
    if len(groups) == 1:
        ((options, paths),) = zip(groups.values(), members.values(), strict=True)
        groups = {str(path): options for path in paths}
        members = {str(path): [path] for path in paths}

    firsts = [of_arm[0] for of_arm in members.values()]
    names = _arm_names(list(groups.values()), firsts)
    arms = []
    for name, paths in zip(names, members.values(), strict=True):
        runs: dict[int, FinishedRun] = {}
        for path in paths:
            run = FinishedRun.read(path)
            if run.seed in runs:
                message = f"{path} and {runs[run.seed].path} are runs of the same options and seed"
                raise Refused(message, code="duplicate")
            runs[run.seed] = run
        arms.append(ArmRuns(name, {}, len(runs), runs))
    _require_same_samples(arms)
    if against is not None:
        require_arm(against, names, "--against")
    return compare_arms(arms, metric, against)


def _options_of(run: Path) -> dict[str, Any]:
    """Return the options of a run that are the same for all runs of its arm."""
    tree = flat(Document.read(resolved_file(run)).tree)
    # A comparison writes the batch size of evaluation where a run has the default.
    tree.setdefault("evaluate.batch_size", tree.get("train.batch_size"))
    return {
        key: value
        for key, value in tree.items()
        if key not in NO_ARM and not key.startswith(NO_ARM_TABLES)
    }


def _arm_names(groups: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> list[str]:
    """Return names from the options that differ, or those of the run directories."""
    keys: list[tuple[str, ...]] = []
    for key in dict.fromkeys(key for group in groups for key in group):
        values = [group.get(key) for group in groups]
        if any(value != values[0] for value in values[1:]):
            keys.append(tuple(key.split(".")))
    # Components say more than numbers.
    keys.sort(key=lambda key: key[-1] != "use")
    keys = keys[:MAX_KEYS]
    names = []
    for group in groups:
        words = []
        for parts, short in zip(keys, short_keys(keys), strict=True):
            value = format_value(group.get(".".join(parts), "none"))
            # Without provider and revision.
            plain = value.rpartition("/")[2].partition("@")[0]
            words.append(plain if parts[-1] == "use" else f"{short}={value}")
        names.append(", ".join(words))
    if len(set(names)) == len(names) and all(names):
        return names
    return [str(path) for path in paths]


def _require_same_samples(arms: Sequence[ArmRuns]) -> None:
    runs = [run for arm in arms for run in arm.runs.values()]
    complete = most_complete(runs)
    for run in runs:
        reason = held_out_difference(complete, run)
        if reason:
            message = f"{complete.path} and {run.path} were evaluated on other samples"
            raise Refused(f"{message}: {reason}", code="not-comparable")
