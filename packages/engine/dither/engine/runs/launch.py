"""Start or resume a run.

Exit codes: 0 done, 1 a plugin hook or another rank failed, 2 refused (raised as `Refused`), 3 no
intact checkpoint, 4 loss or gradient NaN or inf, 5 disk or memory exhausted, 75 stopped by a signal
with a checkpoint saved.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from operator import index
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import located
from dither.registry.contracts.protocols import DataWarnings, Split
from dither.registry.files.limits import TABLE_BYTES, read_bytes, read_text
from dither.registry.plugins.status import PluginError, describe_exception

from ..checkpoints.checkpoint import Checkpoints, Damaged, Saver, Scores
from ..config.component_errors import annotate_build_errors
from ..config.experiment import Experiment
from ..config.load_experiment import Loaded
from ..config.plugins import governing_policy_file
from ..config.provenance import changes, provenance, recorded
from ..distributed.ranks import Ranks, is_lost_rank, join_ranks
from ..files.metrics_file import BEGINNING, changed_lines
from ..files.resource_errors import shortage
from ..training.device import differences, environment, git_state, peak_device_memory, peak_memory
from ..training.diffusion import Diffusion, choose_precision
from ..training.evaluation import has_targets, require_shapes
from ..training.model_summary import require_memory
from ..training.nan_guard import NonFinite, describe_data
from ..training.trainer import Trainer
from .loading import build, start_from
from .loop import Log, Run, resume_from
from .progress import Screen, say, show_result
from .run_directory import RunDirectory, read_manifest, resolved
from .signals import STOPPED, Stop, stop_on_signals

__all__ = ["DAMAGED", "DONE", "EXHAUSTED", "FAILED", "NON_FINITE", "data_warnings", "run"]

DONE = 0
FAILED = 1
DAMAGED = 3
NON_FINITE = 4
EXHAUSTED = 5
ACCEPT = (
    "resume with --accept-changes, which keeps the options of the run and gives new options their defaults; "
    "or start a new run; or restore the former components and data"
)


def run(
    loaded: Loaded,
    runs: Path,
    argv: Sequence[str] = (),
    resume: Path | None = None,
    console: Console | None = None,
    accept_changes: bool = False,
    created: Callable[[Path], object] = lambda path: None,
) -> int:
    """Train, evaluate, sample and summarise an experiment in a new directory below `runs`; return the exit code.

    `argv` is the command line, for the manifest. The run directory `resume` is resumed instead of
    starting a new run, with `accept_changes` even if components, plugins or data changed. `created`
    is called with the run directory.
    """
    errors = console or Screen(stderr=True)
    console = console or Screen()
    try:
        train = loaded.experiment.train
        report = partial(say, errors, style="yellow")
        joined = join_ranks(train.device, train.timeout, report)
        with stop_on_signals() as stop, joined as ranks, located(loaded.document):
            if ranks.is_main:
                for line in (*loaded.warnings, *loaded.plugins.observe()):
                    say(errors, line, "yellow")
            else:
                console.quiet = True
            if ranks.restarts and resume is None:
                resume = _find_launched_run(runs, ranks)
            launch = Launch(loaded, list(argv), console, stop, ranks, created)
            return (
                launch.begin(runs)
                if resume is None
                else launch.resume(resume.resolve(), accept_changes)
            )
    except PluginError as error:
        say(errors, error.detail)
        say(errors, _reason(error), "red")
        return FAILED
    except Damaged as error:
        say(errors, error, "red")
        return DAMAGED
    except NonFinite as error:
        say(errors, _reason(error), "red")
        return NON_FINITE
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        lost = (
            f"another rank ended, or did not respond within train.timeout = {train.timeout:g} s: "
        )
        lost += str(error).partition("\n")[0]
        if reason := lost if is_lost_rank(error) else shortage(error):
            say(errors, _reason(error, reason), "red")
            return FAILED if reason == lost else EXHAUSTED
        if isinstance(error, OSError) and error.filename is not None:
            raise Refused(_reason(error)) from None
        raise


def _reason(error: BaseException, message: str = "") -> str:
    return "\n".join([f"stopped: {message or error}", *getattr(error, "__notes__", ())])


@dataclass(frozen=True)
class Launch:
    """Starts or resumes a run on one rank."""

    loaded: Loaded
    argv: list[str]
    console: Console
    stop: Stop
    ranks: Ranks
    created: Callable[[Path], object] = lambda path: None

    def begin(self, runs: Path) -> int:
        """Run from step 0 in a new directory."""
        system, notes = self._build(first=True)
        return replace(self, loaded=with_steps(self.loaded, system.task.size("train")))._begin(
            runs, system, notes
        )

    def _begin(self, runs: Path, system: Diffusion, notes: Sequence[str]) -> int:
        loaded = self.loaded
        ranks = self.ranks
        counts = system.parameter_counts()
        trainer = self._trainer(system)
        with (
            RunDirectory.create(runs, loaded.experiment.name)
            if ranks.is_main
            else RunDirectory(Path()) as directory
        ):
            if ranks.is_main:
                self.created(directory.path)
                directory.record(loaded, self._manifest(trainer, counts))
            for note in notes:
                say(self.console, note, "yellow")
            return self._train(directory, trainer)

    def resume(self, path: Path, accept_changes: bool) -> int:
        """Resume the run of a directory from its newest intact checkpoint."""
        loaded = self.loaded
        ranks = self.ranks
        console = self.console
        with RunDirectory.open(path) if ranks.is_main else RunDirectory(Path()) as directory:
            before = read_manifest(path)
            now = provenance(loaded)
            found = changes(before, loaded, now)
            if found and not accept_changes:
                start = f"the run in {path} cannot resume unchanged: "
                raise Refused(
                    [
                        replace(change, message=start + change.message, help=ACCEPT)
                        for change in found
                    ]
                )
            notes = directory.changes(loaded, moved=accept_changes) if ranks.is_main else []
            notes += [change.message for change in found]
            newest, damaged = (
                Checkpoints(path / "checkpoints").newest() if ranks.is_main else (None, {})
            )
            shared = ranks.broadcast(None if newest is None else str(newest))
            newest = None if shared is None else Path(shared)
            if newest is None and ranks.is_main and not accept_changes:
                _require_never_saved(path, before)
            system, _ = self._build(first=newest is None)
            trainer = self._trainer(system)
            position = BEGINNING if newest is None else resume_from(newest, trainer)
            if trainer.step > trainer.train.steps:
                message = (
                    f"the run in {path} has finished {trainer.step} steps, more than train.steps"
                )
                raise Refused(f"{message} = {trainer.train.steps}", code="run-finished")
            if ranks.is_main:
                self.created(path)
                metrics = path / "metrics.jsonl"
                reason = changed_lines(metrics, position)
                for warning in (*damaged.values(), *([f"{metrics} {reason}"] if reason else [])):
                    say(console, warning, "yellow")
                for note in notes:
                    say(console, f"changed: {note}")
                Checkpoints(path / "checkpoints").clear(damaged)
                directory.clear(restarts=newest is None)
                directory.accept(loaded)
                entry = {
                    "argv": self.argv,
                    "step": trainer.step,
                    "changes": notes,
                    "launch": ranks.launch,
                }
                machine = environment(
                    trainer.device, trainer.optimizer, ranks, trainer.system.precision
                )
                for difference in differences(before["environment"], machine):
                    message = f"the environment changed, so results may differ: {difference}"
                    say(console, message, "yellow")
                tables = {"environment": machine, **now}.items()
                entry |= {key: table for key, table in tables if table != recorded(before, key)}
                directory.write_json(
                    "manifest.json", {**before, "resumed": [*before["resumed"], entry]}
                )
                say(console, f"resuming from step {trainer.step}")
            return self._train(
                directory, trainer, position.bytes, None if newest is None else trainer.step
            )

    def _trainer(self, system: Diffusion) -> Trainer:
        loaded = self.loaded
        with annotate_build_errors(loaded.plugins.catalog):
            return Trainer(system, loaded.experiment.train, loaded.experiment.seed, self.ranks)

    def _build(self, first: bool) -> tuple[Diffusion, list[str]]:
        """Build the system, with the weights of `train.start_from` at first; return warnings about these."""
        experiment = self.loaded.experiment
        train = experiment.train
        model = experiment.model
        shards = self.ranks.size if train.strategy == "fsdp" else 1
        require_memory(experiment, shards, catalog=self.loaded.plugins.catalog)
        system, _ = build(self.loaded, training=True)
        require_shapes(system, experiment, self.loaded.plugins.catalog)
        if not first or train.start_from is None:
            return system, []
        rename = None if train.start_layout is None else partial(model.rename, train.start_layout)
        return system, start_from(system.model, Path(train.start_from), train.start_partial, rename)

    def _manifest(self, trainer: Trainer, counts: Mapping[str, int]) -> dict[str, Any]:
        registry = governing_policy_file(self.loaded.path)
        return {
            "format": 1,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "argv": self.argv,
            "seed": self.loaded.experiment.seed,
            "environment": environment(
                trainer.device, trainer.optimizer, self.ranks, trainer.system.precision
            ),
            "git": git_state(Path.cwd()),
            "registry": None if registry is None else str(registry),
            **provenance(self.loaded),
            "parameters": {**counts, "total": sum(counts.values())},
            "launch": self.ranks.launch,
        }

    def _train(
        self,
        directory: RunDirectory,
        trainer: Trainer,
        offset: int | None = None,
        newest: int | None = None,
    ) -> int:
        run = self._run(directory, trainer, offset)
        run.saver.newest = newest
        failure: BaseException | None = None
        if self.ranks.is_main:
            for line in introduce(run):
                say(self.console, line)
            for line in data_warnings(run.experiment, run.system):
                say(self.console, line, "yellow")
            directory.save_assets(run.system.task)
        try:
            run.call("before_run")
            run.log.display.start()
            finished = run.fit()
        except BaseException as error:
            failure = error
            if isinstance(error, NonFinite):
                error.add_note(f"the data: {describe_data(run.experiment)}")
            saved = run.saver.newest
            last = (
                "no checkpoint was written"
                if saved is None
                else f"the last checkpoint is that of step {saved}"
            )
            error.add_note(last)
            try:
                run.call("on_run_error", error=error)
            except PluginError as another:
                error.add_note(str(another))
            raise
        finally:
            run.saver.close()
            run.log.close(failure)
        if not finished:
            reason = run.stop.requested or "another rank"
            say(self.console, f"stopped by {reason} after step {trainer.step}; checkpoint saved")
            say(self.console, f"resume with --resume {directory.path}")
            return STOPPED
        if self.ranks.is_main:
            if trainer.step < trainer.train.steps:
                message = f"{run.scores.since} evaluations without improvement since step {run.scores.best}"
                say(self.console, f"early stopping: {message}")
            summary = summarise(run)
            directory.write_json("summary.json", summary)
            show_result(self.console, summary, directory.path)
            run.call("after_run", summary=summary)
        return DONE

    def _run(self, directory: RunDirectory, trainer: Trainer, offset: int | None) -> Run:
        loaded = self.loaded
        is_main = self.ranks.is_main
        train = trainer.train
        settings = loaded.experiment.evaluate
        trackers = {}
        for spec in loaded.experiment.tracking.use if is_main else ():
            try:
                trackers[spec.name] = spec.build()
            except (Exception, SystemExit) as error:
                say(self.console, f'tracker "{spec.name}" is disabled: {describe_exception(error)}')
        folder = directory.path if is_main else None
        log = Log(
            folder, self.console, train.steps, trainer.step, offset, trackers, resolved(loaded)
        )
        scores = Scores(settings.best, settings.better, {})
        if offset and is_main:  # the log has dropped the lines of later steps
            scores = Scores.read(
                directory.path, settings.best, settings.better, damaged=True
            )  # `resume` has warned
        scores.values = {
            int(step): value for step, value in self.ranks.broadcast(list(scores.values.items()))
        }
        checkpoints = Checkpoints(directory.path / "checkpoints", train.keep, train.keep_every)
        checkpoints.protected_step = scores.best if train.keep_best else None
        saver = Saver(checkpoints, train.async_save)
        return Run(
            loaded.experiment,
            loaded.plugins,
            directory,
            trainer.system,
            trainer,
            saver,
            scores,
            log,
            self.stop,
        )


def with_steps(loaded: Loaded, size: int) -> Loaded:
    """Return an experiment in which `train.steps` replaces `train.epochs`, given the samples of the training split."""
    train = loaded.experiment.train
    if train.epochs is None:
        return loaded
    steps = max(1, math.ceil(train.epochs * size / train.batch_size))
    train = train.model_copy(update={"steps": steps, "epochs": None})
    return replace(loaded, experiment=loaded.experiment.model_copy(update={"train": train}))


def _find_launched_run(runs: Path, ranks: Ranks) -> Path | None:
    """Return the run of this launch after torchrun restarted its ranks; None if it had not started."""
    found = None
    if ranks.is_main:
        for path in sorted(runs.glob("*-*/manifest.json"), reverse=True):
            with suppress(Refused):
                before = read_manifest(path.parent)
                if ranks.launch in (
                    before.get("launch"),
                    *(entry.get("launch") for entry in before["resumed"]),
                ):
                    found = str(path.parent)
                    break
    found = ranks.broadcast(found)
    return None if found is None else Path(found)


def _require_never_saved(path: Path, before: Mapping[str, Any]) -> None:
    """Refuse to restart a run that saved checkpoints which are lost: that would overwrite all that it has done."""
    train = tomllib.loads(read_text(path / "resolved.toml"))["train"]
    due = train["checkpoint_every"] * (
        2 if train.get("async_save") else 1
    )  # the last write may have been interrupted
    resumed = before["resumed"][-1].get("step") if before["resumed"] else None
    done = 0
    with suppress(OSError):
        for line in read_bytes(path / "metrics.jsonl", TABLE_BYTES).splitlines():
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                done = max(done, index(json.loads(line)["step"]))
    if (path / "summary.json").exists() or resumed or done > due:
        hint = "restore the checkpoints; or restart at step 0 with --accept-changes, which overwrites metrics.jsonl"
        message = f"the run in {path} has lost its checkpoints: it was resumed or has trained for {done} steps"
        raise Damaged(Problem(message, help=hint, code="missing-checkpoint"))


def introduce(run: Run) -> list[str]:
    """Return lines with the components, parameters, data and device of a run."""
    experiment = run.experiment
    system = run.system
    ranks = run.ranks
    components = (
        experiment.task,
        experiment.process,
        experiment.model,
        experiment.loss,
        experiment.sampler,
    )
    counts = system.parameter_counts()
    strategy = experiment.train.strategy
    trained = sum(
        parameter.numel() for parameter in system.model.parameters() if parameter.requires_grad
    )
    trainable = f"; {trained:,} trainable" if trained < sum(counts.values()) else ""
    sizes = {split: system.task.size(split) for split in ("train", "valid", "test")}
    many = f"{ranks.size} ranks ({strategy}), " if ranks.size > 1 else ""
    lines = [
        f"{experiment.name}: " + ", ".join(f"{part.kind} {part.name}" for part in components),
        f"{sum(counts.values()):,} parameters: "
        + ", ".join(f"{name} {n:,}" for name, n in counts.items())
        + trainable,
        "samples: " + ", ".join(f"{size:,} {split}" for split, size in sizes.items()),
        f"each sample: {system.task.space}",
        f"{many}{run.trainer.device}, {torch.get_num_threads()} threads; {run.directory.path}",
    ]
    if run.trainer.compiled and experiment.train.compile is None:
        lines.append(
            "compiling the model: the first step may take a minute; train.compile = false avoids it"
        )
    option = experiment.train.precision
    best = choose_precision("auto", system.model, run.trainer.device.type)
    if option == "auto":
        lines.append(f'precision {system.precision} (train.precision = "auto")')
    elif option not in (best, "tf32") and run.trainer.device.type == "cpu":
        lines.append(
            f'train.precision = "{best}" is usually faster than "{option}" for a model of this size on this CPU'
        )
    if strategy == "fsdp" and ranks.size == 1:
        lines.append(
            'train.strategy = "fsdp" has no effect with one process; start the run with torchrun'
        )
    return lines


def summarise(run: Run) -> dict[str, Any]:
    """Return the content of summary.json: metrics, baselines, speed and memory."""
    done = run.trainer.step - run.first - 1
    return {
        "name": run.experiment.name,
        "step": run.trainer.step,
        "steps": run.experiment.train.steps,
        "headline": list(run.experiment.task.headline),
        "legend": run.experiment.task.legend,
        "figures": run.metrics,
        "baselines": run.system.task.baselines("valid", run.experiment.evaluate.samples),
        "steps_per_second": done / run.seconds if run.seconds else None,
        "peak_memory_bytes": peak_memory(),
        "peak_device_memory_bytes": peak_device_memory(),
    }


NO_TARGETS: dict[Split, str] = {
    "train": "nothing is learned",
    "valid": "loss and metrics are undefined",
}
"""Consequence of a split in which no position is masked."""


def data_warnings(experiment: Experiment, system: Diffusion) -> Iterator[str]:
    """Yield the warnings of a task about its data, and splits in which the process masks no position."""
    task = system.task
    settings = experiment.evaluate
    if isinstance(task, DataWarnings):
        yield from task.data_warnings()
    size = settings.batch_size or experiment.train.batch_size
    for split, consequence in NO_TARGETS.items():
        count = min(settings.samples, task.size(split))
        if count and not has_targets(system, count, size, experiment.seed, split):
            yield f"no position is masked in the first {count:,} samples of the {split} split: {consequence}"
