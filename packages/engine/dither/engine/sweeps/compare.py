"""Run a comparison: arms x seeds as the points of a sweep; or compare finished runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from rich.console import Console

from dither.registry.config.document import Document, Layer, find_experiment
from dither.registry.config.errors import Problem, Refused, dotted
from dither.registry.contracts.protocols import Split
from dither.registry.files.lookup import command_line, is_file
from dither.registry.plugins.catalog import bare_name
from dither.registry.plugins.manager import Plugins

from ..config.compare_options import Currency
from ..config.experiment import Experiment
from ..config.load_experiment import (
    SAMPLING_TABLES,
    Loaded,
    open_experiment,
    open_for_sampling,
    override_texts,
)
from ..files.installed_models import model_folder
from ..runs.api import save_experiment
from ..runs.exports import anchor, trained_folder
from ..runs.progress import Screen, say
from ..runs.request_checks import experiment_file, is_export
from ..runs.run_directory import flat, resolved_file
from ..signals import STOPPED
from .arms import Arm, check_comparison, compare_of, require_arm, training_key
from .comparison import ArmRuns, Comparison, compare_arms
from .directory import MARK, WEIGHTS_OF, PointFolder, SweepDirectory, write_json
from .equal_training import equal_training
from .finished_runs import FinishedRun, held_out_difference, most_complete
from .known_metrics import require_measured
from .launch import Settings, run_sweep
from .paired_statistics import require_scipy
from .points import differing_keys, format_value, iter_keys, short_keys

__all__ = [
    "Request",
    "compare",
    "compare_runs",
    "is_comparison",
    "is_trained",
    "open_comparison",
    "prepare_comparison",
    "read_comparison",
    "start_comparison",
]

NOTHING: Mapping[str, Any] = MappingProxyType({})
FACTS = "compare"
"""Key of a comparison in sweep.json."""
NO_ARM = ("name", "seed", "plugins", "sample.seed", "train.device", "train.threads")
NO_ARM_TABLES = ("tracking.", "sweep.", "compare.")
"""Options by which runs of one arm may differ."""
SAMPLED = (*SAMPLING_TABLES, "evaluate")
"""Tables by which arms of trained weights may differ."""
ONE_TRAINING = (
    "all runs have the same weights: the interval counts the randomness of evaluation "
    "and sampling, not that of training"
)
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
    split: Split | None = None,
    equal: Currency | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    runs: str | Path = "runs",
    jobs: int = 1,
    plugins: Sequence[str] | None = None,
) -> Comparison:
    """Run arms of an experiment with several seeds, as `dither compare` does; or compare finished runs.

    Args:
        experiment: As in `train`; or what `load` takes, whose sampling differs between arms; or a
            list of these without arms, or the directory of a comparison.
        over: Key -> list of values, or "*" for every compatible component.
        arms: Name of a further arm -> its values by key.
        seeds: Runs of each arm, by default 5.
        against: Name of the reference; the default is the first arm.
        metric: kind/name, by default the first headline of the task.
        split: "valid" or "test"; finished runs are evaluated where values are missing.
        equal: What training all arms spend as much of as the first one: "steps", "samples", "flops" or
            "seconds".
        overrides: Values by key of all arms, as in `train`.
        runs: The parent folder of the comparison.
        jobs: Simultaneous runs.
        plugins: As after -p.

    Raises:
        Refused: With a problem for everything that is wrong.
        RuntimeError: A signal stopped the runs.
    """
    if isinstance(experiment, Sequence) and not isinstance(experiment, str):
        paths = [Path(path) for path in experiment]
        return compare_runs(paths, metric, against, split, Path(runs))
    if not isinstance(experiment, Experiment) and is_comparison(Path(experiment)):
        sweep = open_comparison(Path(experiment))
        return read_comparison(sweep, metric, against, split)
    given = {
        "seeds": seeds,
        "against": against,
        "metric": metric,
        "split": split,
        "equal": equal,
    }
    options = {key: value for key, value in given.items() if value is not None}
    layer = Layer(
        "dither.compare", {"compare": {"over": dict(over), "arms": dict(arms)}}
    )
    settings = Settings(
        jobs=jobs, select=tuple(plugins or ()), show=lambda sweep, console: None
    )
    # The file may go afterwards: the directory of the comparison has a copy.
    with TemporaryDirectory() as folder:
        if isinstance(experiment, Experiment):
            experiment = save_experiment(experiment, Path(folder) / "experiment.toml")
        request = Request(
            target=Path(experiment),
            changes=override_texts(overrides),
            layers=[layer],
            options=options,
            runs=Path(runs),
            argv=["dither.compare"],
        )
        prepared = prepare_comparison(request, settings, Screen())
    assert prepared is not None
    code = run_sweep(prepared, settings, Screen())
    if code == STOPPED:
        raise RuntimeError(f"the comparison was stopped: {prepared.path}")
    return read_comparison(prepared)


@dataclass(frozen=True)
class Request:
    """A comparison of the arms of an experiment, as after `dither compare`.

    Attributes:
        target: An experiment file, or a trained model, whose weights all arms have.
        changes: Overrides of all arms.
        removals: Keys that all arms lack.
        layers: Those of `arm_layers`.
        options: Values that replace those of `[compare]`.
        runs: The parent folder of the comparison.
    """

    target: Path
    changes: Iterable[str] = ()
    removals: Iterable[str] = ()
    layers: Iterable[Layer] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    runs: Path = Path("runs")
    argv: Sequence[str] = ()

    def open(self, select: Sequence[str]) -> tuple[Document, Plugins]:
        """Return the experiment with all changes, and the selected plugins."""
        if is_trained(self.target):
            document, plugins = self._open_trained(select)
        else:
            path = find_experiment(self.target)
            document, plugins = open_experiment(
                path, self.changes, self.removals, select or None
            )
        for layer in self.layers:
            document.merge(layer)
        for key, value in self.options.items():
            name = f"--{key} {value}"[:100]
            document.merge(Layer(name, {"compare": {key: value}}))
        if is_trained(self.target):
            _require_sampling_only(document)
        return document, plugins

    def _open_trained(self, select: Sequence[str]) -> tuple[Document, Plugins]:
        """Return the experiment of trained weights, from which a run of no steps starts."""
        if any(self.removals):
            raise Refused("--unset: only with an experiment file", code="usage")
        folder = model_folder(self.target)
        document, plugins = open_for_sampling(
            experiment_file(folder),
            changes=self.changes,
            select=select or None,
            tables=SAMPLED,
        )
        if is_export(folder):
            anchor(document, folder, plugins.catalog)
        weights = {"start_from": str(folder.absolute()), "start_partial": False}
        train = {**weights, "steps": 0}
        document.merge(Layer(str(self.target), {"train": train}))
        # Arms of its training are not those of its sampling.
        document.tree.pop("compare", None)
        # The names of weights are those of this model.
        for key in ("start_layout", "lora", "freeze"):
            document.at(("train",)).pop(key, None)
        return document, plugins


def is_trained(path: Path) -> bool:
    """Return whether a path is a run or export, or names an installed model."""
    return is_file(model_folder(path) / "resolved.toml") or is_export(path)


def _require_sampling_only(document: Document) -> None:
    """Refuse arms of trained weights that would be trained otherwise."""
    compare = compare_of(document)
    tables: list[tuple[tuple[str, ...], Mapping[str, Any]]]
    tables = [(("compare", "over"), compare.over)]
    for name, values in compare.arms.items():
        tables.append((("compare", "arms", name), values))
    for place, table in tables:
        for key, (inner, _) in iter_keys(table, place):
            if key[0] not in SAMPLED:
                message = f"{dotted(key)} does not affect trained weights"
                hint = f"arms of trained weights differ in {' or '.join(SAMPLED)}"
                origin = document.origin(inner)
                raise Refused(Problem(message, key, origin, hint, code="misfit"))


def prepare_comparison(
    request: Request, settings: Settings, console: Console
) -> SweepDirectory | None:
    """Validate all arms, and make the directory of a comparison; None for a dry run."""
    document, plugins = request.open(settings.select)
    # An executor that cannot be used is refused before any arm is checked.
    settings.build_executor(plugins)
    require_scipy()
    compare, valid, rejected = check_comparison(document, plugins)
    for left_out in rejected:
        reasons = "; ".join(left_out.reasons)
        say(console, f"left out: {left_out.name}: {reasons}", "yellow")
    seeds = "1 seed" if compare.seeds == 1 else f"{compare.seeds} seeds"
    say(console, f"{len(valid)} arms, {seeds} each")
    costs: dict[str, float] = {}
    if compare.equal is not None:
        with console.status(f"counting {compare.equal} of a training step"):
            valid, costs = equal_training(valid, compare.equal)
    for arm, loaded in valid:
        if compare.equal is not None:
            say(console, f"{arm.name}: {loaded.experiment.train.steps:,} steps")
        elif settings.dry_run:
            say(console, arm.name)
    if settings.dry_run:
        settings.checked([arm.name for arm, _ in valid])
        return None

    require_measured(valid[0][1], compare.metric)
    sweep = SweepDirectory.create(request.runs, document, request.argv, kind="compare")
    sweep.facts[FACTS] = {
        "metric": compare.metric,
        "against": compare.against,
        "split": compare.split,
        "equal": compare.equal,
        "trained": is_trained(request.target),
        "rejected": {arm.name: list(arm.reasons) for arm in rejected},
    }
    _add_points(sweep, valid, compare.seeds, costs)
    return sweep


def start_comparison(
    sweep: SweepDirectory,
    settings: Settings,
    screen: Console,
    show: Callable[[Comparison], object],
) -> int:
    """Run the unfinished points of a comparison, and show it; return the exit code of a sweep.

    Raises:
        Refused: The metric is unknown (`unknown-metric`); the runs have ended.
    """
    refusals: list[Refused] = []

    def show_finished(sweep: SweepDirectory, _: Console) -> None:
        try:
            show(read_comparison(sweep))
        except Refused as refused:
            # This must not hide how the points ended.
            refusals.append(refused)

    code = run_sweep(sweep, replace(settings, show=show_finished), screen)
    for refused in refusals:
        problem = refused.problems[0]
        if problem.code == "unknown-metric" and code != STOPPED:
            command = command_line("compare", sweep.path, "--metric", "NAME")
            lines = [line for line in (problem.help, command) if line]
            raise Refused(replace(problem, help="\n".join(lines)))
        say(screen, problem.message, "yellow")
    return code


def _add_points(
    sweep: SweepDirectory,
    arms: Sequence[tuple[Arm, Loaded]],
    seeds: int,
    costs: Mapping[str, float],
) -> None:
    """Make the points of all arms; those with the weights of an earlier arm measure its runs.

    `costs` are those of a training step by arm.
    """
    first_seed = arms[0][1].experiment.seed
    digits = len(str(len(arms) * seeds - 1))
    trained: dict[tuple[str, int], str] = {}
    folders: list[PointFolder] = []
    facts = []
    for arm, loaded in arms:
        key = training_key(loaded)
        points = []
        sample_seed = loaded.experiment.sample.seed
        for index in range(seeds):
            seed = first_seed + index
            # The variance over seeds counts the randomness of sampling only if it differs.
            drawn = loaded.with_options("sample", seed=sample_seed + index)
            experiment = drawn.experiment.model_copy(update={"seed": seed})
            point = arm.point(f"{len(folders):0{digits}}", seed)
            folder = sweep.add(
                point.name, point.by_key, replace(drawn, experiment=experiment)
            )
            source = trained.setdefault((key, seed), folder.name)
            if source != folder.name:
                write_json(folder.path / WEIGHTS_OF, {"point": source})
            folders.append(folder)
            points.append(folder.name)
        fact = {"name": arm.name, "values": arm.by_key, "points": points}
        facts.append({**fact, "step_cost": costs.get(arm.name)})
    sweep.facts[FACTS] |= {"arms": facts, "same_weights": len(trained) == seeds}
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
    sweep: SweepDirectory,
    metric: str | None = None,
    against: str | None = None,
    split: Split | None = None,
) -> Comparison:
    """Return the table of a comparison as far as its runs are finished."""
    folders = {folder.name: folder for folder in sweep.folders()}
    facts = sweep.facts[FACTS]
    arms = []
    try:
        compared = facts.get("split", "valid")
        split = split or compared
        equal = facts.get("equal")
        for fact in facts["arms"]:
            runs = {}
            for name in fact["points"]:
                run = _finished(folders[name], split)
                if run is not None:
                    runs[run.seed] = run
            planned = len(fact["points"])
            # Another currency costs what the runs have measured.
            step_flops = fact.get("step_cost") if equal == "flops" else None
            values = dict(fact["values"])
            arms.append(ArmRuns(str(fact["name"]), values, planned, runs, step_flops))
        against = against or facts["against"]
        # The metric of a comparison belongs to its split.
        if metric is None and split == compared:
            metric = facts["metric"]
        rejected = dict(facts["rejected"])
        same_weights = bool(facts["same_weights"])
        trained = bool(facts.get("trained"))
    except (KeyError, TypeError, ValueError) as error:
        message = f"{sweep.path / MARK} is damaged: {error!r}"
        raise Refused(message, code="damaged-file") from None
    if against is not None:
        require_arm(against, [arm.name for arm in arms], "--against")
    comparison = compare_arms(arms, metric, against, same_weights)
    comparison.rejected = rejected
    comparison.equal = equal
    if trained:
        comparison.notes.append(ONE_TRAINING)
    return comparison


def _finished(folder: PointFolder, split: Split) -> FinishedRun | None:
    run = folder.run_directory()
    if run is None or folder.status()["state"] != "done":
        return None
    return _read(run, split)


def _read(run: Path, split: Split) -> FinishedRun:
    """Read a finished run, evaluated on the split if that was not done before."""
    finished = FinishedRun.read(run, split)
    if split == "valid" or finished.per_sample is not None:
        return finished
    # It imports torch, which a table of evaluated runs does not need.
    from ..runs.evaluate_run import evaluate_run

    with Screen(stderr=True).status(f"evaluating {run} on the {split} split"):
        evaluate_run(run, split=split)
    return FinishedRun.read(run, split)


def compare_runs(
    paths: Sequence[Path],
    metric: str | None = None,
    against: str | None = None,
    split: Split | None = None,
    folder: Path = Path("runs"),
) -> Comparison:
    """Compare finished runs and exports: those that differ by their seed only are one arm.

    An export is evaluated and sampled into a run directory below `folder`, once.

    Raises:
        Refused: A run is unfinished, or the held-out samples of two runs differ
            (`not-comparable`).
    """
    groups: dict[str, dict[str, Any]] = {}
    members: dict[str, list[Path]] = {}
    # runs/latest is a link to a run.
    unique: dict[str, Path] = {}
    for path in paths:
        unique.setdefault(os.path.realpath(trained_folder(path)), path)
    if len(unique) < 2:
        raise Refused("give two runs or more", code="usage")
    require_scipy()
    _require_same_task(list(unique.values()))
    directories = {path: _measured(path, folder) for path in unique.values()}
    for path, directory in directories.items():
        options = _options_of(directory)
        key = repr(sorted(options.items()))
        groups[key] = options
        members.setdefault(key, []).append(path)
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
            run = _read(directories[path], split or "valid")
            if run.seed in runs:
                message = f"{path} and {runs[run.seed].path} are runs of the same options and seed"
                raise Refused(message, code="duplicate")
            runs[run.seed] = run
        arms.append(ArmRuns(name, {}, len(runs), runs))
    _require_same_samples(arms)
    if against is not None:
        require_arm(against, names, "--against")
    return compare_arms(arms, metric, against)


def _measured(path: Path, folder: Path) -> Path:
    """Return the directory of a run, or that of the measurement of an export."""
    trained = trained_folder(path)
    if not is_export(trained):
        return trained
    from ..runs.measure_run import measure_export

    screen = Screen(stderr=True)
    with screen.status(f"evaluating {path}"):
        return measure_export(trained, folder, lambda line: say(screen, line, "yellow"))


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
    keys = [tuple(key.split(".")) for key in differing_keys(groups)]
    # Components say more than numbers.
    keys.sort(key=lambda key: key[-1] != "use")
    keys = keys[:MAX_KEYS]
    names = []
    for group in groups:
        words = []
        for parts, short in zip(keys, short_keys(keys), strict=True):
            value = format_value(group.get(".".join(parts), "none"))
            words.append(bare_name(value) if parts[-1] == "use" else f"{short}={value}")
        names.append(", ".join(words))
    if len(set(names)) == len(names) and all(names):
        return names
    return [str(path) for path in paths]


def _require_same_task(paths: Sequence[Path]) -> None:
    """Refuse runs and exports of different tasks, before an export is evaluated."""
    first = paths[0]
    tasks = {}
    for path in paths:
        document = Document.read(experiment_file(trained_folder(path)))
        tasks[path] = document.at(("task", "use"))
        if tasks[path] != tasks[first]:
            message = f"{first} and {path} have different tasks: {tasks[first]}, {tasks[path]}"
            raise Refused(message, code="not-comparable")


def _require_same_samples(arms: Sequence[ArmRuns]) -> None:
    runs = list(chain.from_iterable(arm.runs.values() for arm in arms))
    complete = most_complete(runs)
    for run in runs:
        reason = held_out_difference(complete, run)
        if reason:
            message = f"{complete.path} and {run.path} were evaluated on other samples"
            raise Refused(f"{message}: {reason}", code="not-comparable")
