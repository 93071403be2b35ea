"""A run: start, begin at step 0 or resume from a checkpoint, fit, finish.

Exit codes: 0 done, 1 a plugin or another rank failed, 2 refused (raised as `Refused`), 3 no
intact checkpoint, 4 loss, gradient, weights, samples or the metric of evaluate.best NaN or inf, 5 disk
or memory exhausted or the run directory gone, 75 stopped by a signal with a checkpoint saved.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import join
from typing import Any, NoReturn

from rich.console import Console

from dither.registry.config.errors import NonFiniteOutput, Refused
from dither.registry.config.validation import located
from dither.registry.contracts.protocols import Tracker
from dither.registry.files.lookup import command_words
from dither.registry.plugins.status import (
    PluginError,
    describe_exception,
    details,
    is_interruption,
)

from ..checkpoints.checkpoint import (
    Checkpoints,
    Contents,
    Damaged,
    Saver,
    Scores,
    load_state,
)
from ..checkpoints.sharded_checkpoint import Shards, part_of
from ..config.component_errors import (
    annotate_build_errors,
    plugin_failure,
    title,
)
from ..config.experiment import Experiment
from ..config.load_experiment import Loaded
from ..config.plugins import governing_policy_file
from ..config.provenance import changes, provenance, recorded
from ..distributed.ranks import JOB, Ranks, is_lost_rank, join_ranks
from ..files.metrics_file import Position, damaged_lines
from ..files.mirror import CLOSE_SECONDS, STOPPED_SECONDS, Mirror
from ..files.per_sample import write_per_sample
from ..files.resource_errors import shortage, shortage_code
from ..files.run_folders import Vanished
from ..sampling.samples import make_samples, write_samples
from ..signals import STOPPED, Stop, Stopped, stop_on_signals
from ..training.device import differences, environment, git_state
from ..training.diffusion import Diffusion
from ..training.evaluation import SampleSums, evaluate
from ..training.model_summary import require_memory
from ..training.nan_guard import (
    NonFinite,
    NonFiniteData,
    NonFiniteMetric,
    describe_data,
)
from ..training.shape_check import require_shapes
from ..training.trainer import Trainer
from .events import (
    Event,
    Failed,
    Finished,
    Interrupted,
    Sampled,
    Saved,
    Started,
)
from .loading import build, load_start
from .log import Log
from .progress import Screen, say, show_result
from .run_directory import RunDirectory, now, read_manifest, resolved
from .summary import data_warnings, introduce, summarise

__all__ = ["DAMAGED", "DONE", "EXHAUSTED", "FAILED", "NON_FINITE", "Run", "run"]

DONE = 0
FAILED = 1
DAMAGED = 3
NON_FINITE = 4
EXHAUSTED = 5

LOOK_SECONDS = 1.0
"""Seconds between two checks that the run directory exists, each a file system call."""

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
    emit: Callable[[Event], object] = lambda event: None,
) -> int:
    """Train, evaluate, sample and summarise an experiment below `runs`; return the exit code.

    `argv` is the command line, for the manifest. The run directory `resume` is resumed instead of
    starting a new run, with `accept_changes` even if components, plugins or data changed. `created`
    is called with the run directory, `emit` with each event.
    """
    errors = console or Screen(stderr=True)
    console = console or Screen()
    train = loaded.experiment.train
    report = partial(say, errors, style="yellow")
    try:
        with (
            stop_on_signals() as stop,
            join_ranks(train.device, train.timeout, report) as ranks,
            located(loaded.document),
            closing_directory(
                Run(loaded, argv, console, stop, ranks, created, emit)
            ) as this,
        ):
            this.warn(report)
            # torchrun starts all ranks of a run again if one of them fails, and a cluster a job.
            again = ranks.restarts or JOB in os.environ
            if again and ranks.launch and resume is None:
                resume = _find_launched_run(runs, ranks)
            if resume is None:
                this.begin(runs)
            else:
                # A link such as `latest` may lead elsewhere before the run ends.
                this.resume(resume.resolve(), accept_changes)
            with this.recording():
                finished = this.fit()
            return this.finish() if finished else this.stopped()
    # sys.exit in a component must not look like a run that is done.
    except BaseException as error:
        if is_interruption(error):
            raise
        failed = _failure(error, train.timeout)
        _print_failure(errors, failed, error)
        emit(failed)
        return failed.exit_code


def _failure(error: BaseException, timeout: float) -> Failed:
    """Return the event of an error that a run may end with; raise any other."""
    notes = getattr(error, "__notes__", [])

    def stopped(exit_code: int, code: str, reason: object) -> Failed:
        message = "\n".join([f"stopped: {reason}", *notes])
        return Failed(exit_code=exit_code, code=code, message=message)

    # An import fails for lack of memory, too: "failed to map segment".
    resources = isinstance(error, MemoryError | RuntimeError | OSError | ImportError)
    if isinstance(error, PluginError):
        failed = stopped(FAILED, "plugin-failed", error)
    elif isinstance(error, Damaged):
        code = "damaged-checkpoint"
        failed = Failed(exit_code=DAMAGED, code=code, message=str(error))
    elif isinstance(
        error, Vanished | NonFiniteData | NonFiniteMetric | NonFiniteOutput
    ):
        problem = error.problems[0]
        failed = stopped(error.exit_code, problem.code, problem.message)
    elif isinstance(error, NonFinite):
        failed = stopped(NON_FINITE, "non-finite", error)
    elif is_lost_rank(error):
        lost = f"another rank ended, or did not respond within train.timeout = {timeout:g} s"
        reason = str(error).partition("\n")[0]
        failed = stopped(FAILED, "lost-rank", f"{lost}: {reason}")
    elif resources and (lacking := shortage(error)):
        failed = stopped(EXHAUSTED, shortage_code(lacking), lacking)
    elif found := plugin_failure(error):
        failed = stopped(FAILED, "plugin-failed", found.problems[0].message)
    else:
        _raise_unexpected(error, notes)
    return failed


def _print_failure(console: Console, failed: Failed, error: BaseException) -> None:
    # A run may have taken long, so that nobody should repeat it to see where a plugin failed.
    if failed.code == "plugin-failed":
        cause = error.__cause__ if isinstance(error, PluginError) else error
        say(console, details(cause))
    say(console, failed.message, "red")


def _raise_unexpected(error: BaseException, notes: Sequence[str]) -> NoReturn:
    """Raise Refused for an error that names a file, on which the user can act; or a program error."""
    if isinstance(error, OSError) and error.filename is not None:
        message = "\n".join([f"stopped: {error}", *notes])
        raise Refused(message, code="unwritable-file") from None
    if isinstance(error, SystemExit):
        raise RuntimeError(f"SystemExit: {error.code}") from error
    raise error


class Run:
    """A run on one rank, which hooks receive. `begin` or `resume` sets what `fit` needs.

    Attributes:
        seconds: Time spent in training steps after the first, and `cpu_seconds` of all threads.
        first: The step at which this process started.
    """

    directory: RunDirectory
    system: Diffusion
    trainer: Trainer
    saver: Saver
    scores: Scores
    log: Log

    def __init__(
        self,
        loaded: Loaded,
        argv: Sequence[str],
        console: Console,
        stop: Stop,
        ranks: Ranks,
        created: Callable[[Path], object],
        emit: Callable[[Event], object],
    ) -> None:
        self.loaded = loaded
        self.argv = list(argv)
        self.console = console
        self.stop = stop
        self.ranks = ranks
        self.created = created
        self.emit = emit
        self.plugins = loaded.plugins
        self.directory = RunDirectory(Path())

        self.mirror: Mirror | None = None
        self._metrics: dict[str, dict[str, float]] = {}
        self.seconds = 0.0
        self.cpu_seconds = 0.0
        self.first = 0
        # The end of metrics.jsonl before the evaluation of the current step, which a resumed run
        # repeats.
        self._position = Position()
        self._looked = 0.0
        # Step and `seconds` of the last line of kind "train".
        self._logged = (0, 0.0)

    @property
    def experiment(self) -> Experiment:
        return self.loaded.experiment

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The newest metrics by kind, "valid" and "sample": a copy, as hooks receive it."""
        return deepcopy(self._metrics)

    def warn(self, report: Callable[[object], object]) -> None:
        """Report warnings about experiment and plugins; only the main rank prints anything."""
        if not self.ranks.is_main:
            self.console.quiet = True
            return
        for line in (*self.loaded.warnings, *self.plugins.observe()):
            report(line)

    # --- begin or resume ---------------------------------------------------------------------

    def begin(self, runs: Path) -> None:
        """Create the directory of a new run, and everything at step 0."""
        system, notes = self._build(first=True)
        self.loaded = with_steps(self.loaded, system.task.size("train"))
        # Before the trainer shards them.
        counts = system.parameter_counts()
        trainer = self._make_trainer(system)
        if self.ranks.is_main:
            self.directory = RunDirectory.create(runs, self.experiment.name)
            self.created(self.directory.path)
            self.directory.record(self.loaded, self._manifest(trainer, counts))
        for note in notes:
            say(self.console, note, "yellow")
        self._prepare(trainer)

    def resume(self, path: Path, accept_changes: bool) -> None:
        """Open the directory of a run, and restore its newest intact checkpoint."""
        if self.ranks.is_main:
            self.directory = RunDirectory.open(path)
        manifest = read_manifest(path)
        notes = self._changes(path, manifest, accept_changes)
        newest, damaged = self._newest_checkpoint(path)
        # The weights of a checkpoint replace those of train.start_from.
        system, _ = self._build(first=newest is None)
        trainer = self._make_trainer(system)
        position = Position() if newest is None else restore(newest, trainer)
        if trainer.step > trainer.train.steps:
            message = f"the run in {path} has finished {trainer.step} steps, more than train.steps"
            raise Refused(f"{message} = {trainer.train.steps}", code="run-finished")

        if self.ranks.is_main:
            self.created(path)
            changed = damaged_lines(path / "metrics.jsonl", position)
            for warning in (*damaged.values(), *changed):
                say(self.console, warning, "yellow")
            Checkpoints(path / "checkpoints").clear(damaged)
            self.directory.clear(restarts=newest is None)
            self.directory.accept(self.loaded)
            self._record_resumption(manifest, trainer, notes)
            say(self.console, f"resuming from step {trainer.step}")
        self._prepare(trainer, position.size, None if newest is None else trainer.step)

    def _build(self, first: bool) -> tuple[Diffusion, list[str]]:
        """Build the system, at first with the weights of `train.start_from`; return warnings."""
        experiment = self.experiment
        train = experiment.train
        catalog = self.plugins.catalog
        shards = self.ranks.size if train.strategy == "fsdp" else 1
        # Before anything is allocated.
        require_memory(experiment, shards, catalog=catalog)
        system, _ = build(self.loaded, training=True)
        require_shapes(system, experiment, catalog)
        return system, load_start(experiment, system.model) if first else []

    def _make_trainer(self, system: Diffusion) -> Trainer:
        with annotate_build_errors(self.plugins.catalog):
            return Trainer(
                system, self.experiment.train, self.experiment.seed, self.ranks
            )

    def _environment(self, trainer: Trainer) -> dict[str, Any]:
        precision = trainer.system.precision
        return environment(trainer.device, trainer.optimizer, self.ranks, precision)

    def _manifest(self, trainer: Trainer, counts: Mapping[str, int]) -> dict[str, Any]:
        registry = governing_policy_file(self.loaded.path)
        return {
            "format": 1,
            "started": now(),
            "argv": self.argv,
            "seed": self.experiment.seed,
            "environment": self._environment(trainer),
            "git": git_state(Path.cwd()),
            "registry": None if registry is None else str(registry),
            **provenance(self.loaded),
            "parameters": {**counts, "total": sum(counts.values())},
            "launch": self.ranks.launch,
        }

    def _changes(
        self, path: Path, manifest: Mapping[str, Any], accepted: bool
    ) -> list[str]:
        """Return what differs from the run; Refused if it is not accepted."""
        changed = changes(manifest, self.loaded, provenance(self.loaded))
        if changed and not accepted:
            start = f"the run in {path} cannot resume unchanged: "
            raise Refused(
                [
                    replace(change, message=start + change.message, help=ACCEPT)
                    for change in changed
                ]
            )
        options = []
        if self.ranks.is_main:
            options = self.directory.changes(self.loaded, moved=accepted)
        return options + [change.message for change in changed]

    def _newest_checkpoint(self, path: Path) -> tuple[Path | None, dict[Path, str]]:
        """Return the newest intact checkpoint, or None, and messages about damaged ones. Collective."""
        newest: Path | None = None
        damaged: dict[Path, str] = {}
        if self.ranks.is_main:
            newest, damaged = Checkpoints(path / "checkpoints").newest()
        shared = self.ranks.broadcast(None if newest is None else str(newest))
        return None if shared is None else Path(shared), damaged

    def _record_resumption(
        self, manifest: Mapping[str, Any], trainer: Trainer, notes: list[str]
    ) -> None:
        """Add what is different from the run until now to its manifest, and say it."""
        for note in notes:
            say(self.console, f"changed: {note}")
        machine = self._environment(trainer)
        for difference in differences(manifest["environment"], machine):
            message = f"the environment changed, so results may differ: {difference}"
            say(self.console, message, "yellow")
        entry = {
            "argv": self.argv,
            "step": trainer.step,
            "changes": notes,
            "launch": self.ranks.launch,
        }
        for key, table in {"environment": machine, **provenance(self.loaded)}.items():
            # Only what changed, as a run may resume many times.
            if table != recorded(manifest, key):
                entry[key] = table
        resumed = [*manifest["resumed"], entry]
        self.directory.write_json("manifest.json", {**manifest, "resumed": resumed})

    def _prepare(
        self, trainer: Trainer, position: int | None = None, newest: int | None = None
    ) -> None:
        """Set everything that training needs, after `position` bytes of metrics.jsonl."""
        train = trainer.train
        is_main = self.ranks.is_main
        self.trainer = trainer
        self.system = trainer.system
        self.log = Log(
            folder=self.directory.path if is_main else None,
            console=self.console,
            total=train.steps,
            done=trainer.step,
            offset=position,
            trackers=self._trackers() if is_main else {},
            config=resolved(self.loaded),
            emit=self.emit,
        )
        self.trainer.on_skip = self.log.display.line
        self.scores = self._read_scores(position)

        checkpoints = Checkpoints(
            self.directory.path / "checkpoints", train.keep, train.keep_every
        )
        if train.keep_best:
            checkpoints.protected_step = self.scores.best
        self.saver = Saver(
            checkpoints,
            background=train.async_save,
            written=self._written,
        )
        self.saver.newest = newest
        address = self.experiment.run.mirror
        if address is not None and is_main:
            warn = partial(say, self.console, style="yellow")
            self.mirror = Mirror(self.directory.path, address, warn)

    def _written(self, step: int, path: Path) -> None:
        """Call the hook of a checkpoint on disk, and copy it to the mirror."""
        self.call("after_checkpoint", step=step, path=path)
        self.emit(Saved(step=step, path=path))
        if self.mirror is not None:
            self.mirror.update()

    def _trackers(self) -> dict[str, Tracker]:
        trackers = {}
        for spec in self.experiment.tracking.use:
            name = title(spec, self.plugins.catalog)
            try:
                trackers[name] = spec.build()
            except BaseException as error:
                if isinstance(error, Stopped):
                    raise
                say(
                    self.console,
                    f"{name} is disabled: {describe_exception(error)}",
                )
        return trackers

    def _read_scores(self, position: int | None) -> Scores:
        """Return the scores of earlier evaluations. Collective."""
        settings = self.experiment.evaluate
        scores = Scores(settings.best, settings.better, {})
        if position and self.ranks.is_main:
            # The log has dropped the lines of later steps, and `resume` has warned about damaged
            # ones.
            scores = Scores.read(
                self.directory.path, settings.best, settings.better, damaged=True
            )
        pairs = self.ranks.broadcast(list(scores.values.items()))
        scores.values = {int(step): value for step, value in pairs}
        return scores

    # --- fit ---------------------------------------------------------------------------------

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Introduce the run and call its hooks; close everything at the end, also after an error."""
        if self.ranks.is_main:
            for line in introduce(self.experiment, self.trainer, self.directory.path):
                say(self.console, line)
            for line in data_warnings(self.experiment, self.system):
                say(self.console, line, "yellow")
            self.directory.save_assets(self.system.task)
            self.emit(
                Started(
                    run=self.directory.path,
                    name=self.experiment.name,
                    step=self.trainer.step,
                    steps=self.trainer.train.steps,
                )
            )
        failure: BaseException | None = None
        try:
            self.call("before_run")
            self.log.display.start()
            yield
        except BaseException as error:
            failure = self._cause_of(error)
            self._add_notes(failure)
            raise failure from error.__cause__
        finally:
            self.saver.close()
            self.log.close(failure)

    def _cause_of(self, error: BaseException) -> BaseException:
        """Return `Vanished` if a file could not be written because the run directory is gone."""
        if isinstance(error, OSError):
            try:
                self._require_directory()
            except Vanished as vanished:
                return vanished
        return error

    def _add_notes(self, error: BaseException) -> None:
        """Add to an error what is needed to continue after it, and call the hook."""
        if isinstance(error, NonFinite | NonFiniteData):
            error.add_note(f"the data: {describe_data(self.experiment)}")
        newest = self.saver.newest
        if isinstance(error, Vanished):
            error.add_note(str(error.problems[0].help))
        elif newest is None:
            error.add_note("no checkpoint was written")
        else:
            error.add_note(f"the last checkpoint is that of step {newest}")
        try:
            self.call("on_run_error", error=error)
        except PluginError as another:
            error.add_note(str(another))

    def fit(self) -> bool:
        """Train to the last step; return False if a signal stopped it, with a checkpoint saved.

        The checkpoint of a step precedes its evaluation and samples, which a resumed run repeats.
        """
        self.first = self.trainer.step
        self._position = self.log.position
        self._logged = (self.first + 1, 0.0)
        self._require_best()
        # From here on, a signal lets the current step finish.
        self.stop.polled = True

        while not self.stopping():
            self._look()
            measured = self._save_and_measure()
            # A signal may have interrupted what takes longer than a step. Collective.
            if self._is_last() or (measured and self.stopping()):
                break
            self._train()
            self._position = self.log.position

        stopped = self.stopping()
        if stopped:
            self.save()
        self.saver.wait()
        return not stopped

    def _save_and_measure(self) -> bool:
        """Write checkpoint, evaluation and samples that are due; return whether it took long."""
        step = self.trainer.step
        if self._due(step, self.experiment.train.checkpoint_every):
            self.save()
        evaluated = self._due(step, self.experiment.evaluate.every)
        if evaluated:
            self.evaluate()
        # Patience may end with this evaluation.
        last = self._is_last()
        if last:
            self.save()
        drawn = last or self._due(step, self.experiment.sample.every)
        if drawn:
            self.draw()
        return evaluated or drawn

    def _due(self, step: int, every: int | None) -> bool:
        if step == self.experiment.train.steps:
            return True
        return every is not None and step > 0 and step % every == 0

    def _is_last(self) -> bool:
        patience = self.experiment.evaluate.patience
        impatient = patience is not None and self.scores.since >= patience
        return impatient or self.trainer.step == self.experiment.train.steps

    def _train(self) -> None:
        """Make a step, and log metrics if they are due."""
        # A write that failed in the background ends the run at the next step.
        self.saver.wait(block=False)
        began = time.perf_counter()
        cpu_began = time.process_time()
        metrics = self.trainer.advance()
        step = self.trainer.step
        self.call("after_step", step=step, metrics=metrics)
        # The first step shows that training runs, and the loss of random weights.
        due = step == 1 or self._due(step, self.experiment.train.log_every)
        # Waits for the device.
        popped = self.trainer.pop_metrics() if due else {}
        # The first step compiles and loads kernels.
        if step > self.first + 1:
            self.seconds += time.perf_counter() - began
            self.cpu_seconds += time.process_time() - cpu_began
        if due:
            self.log.log(step, "train", popped, self._rate(step))
        self.log.display.step(step)

    def _rate(self, step: int) -> float | None:
        """Return the samples per second since the last line of kind "train"."""
        last_step, last_seconds = self._logged
        self._logged = (step, self.seconds)
        samples = (step - last_step) * self.experiment.train.batch_size
        seconds = self.seconds - last_seconds
        return float(f"{samples / seconds:.4g}") if seconds and samples else None

    def _require_best(self) -> None:
        """Refuse an unknown `evaluate.best` before the first step, by the metrics of one batch."""
        settings = self.experiment.evaluate
        if settings.best == "loss" or self.scores.values:
            return
        metrics = self._measure(min(settings.samples, self._evaluation_batch), 1)
        # A metric may be undefined in a single batch.
        if metrics is not None and settings.best not in metrics:
            metrics = self._measure(settings.samples, settings.repeats)
        if metrics:
            self.scores.require(metrics)

    def evaluate(self) -> None:
        """Evaluate on the validation split, unless a signal stops it."""
        settings = self.experiment.evaluate
        trainer = self.trainer
        self.log.display.doing("evaluating")
        # NaN that only the device knows of is reported before metrics are computed from it.
        trainer.check()
        per_sample: SampleSums = {}
        metrics = self._measure(settings.samples, settings.repeats, per_sample.update)
        if metrics is None:
            return
        self._record_per_sample(per_sample)
        self._metrics["valid"] = metrics
        self.log.log(trainer.step, "valid", metrics)
        self.call("after_eval", step=trainer.step, metrics=metrics)
        best = self.scores.add(trainer.step, metrics)
        if best and self.experiment.train.keep_best:
            self.saver.checkpoints.protected_step = trainer.step
            self.save()
        self._require_finite(metrics[settings.best])

    def _require_finite(self, value: float) -> None:
        """Raise NonFiniteMetric for a value that cannot be compared with others, or only say so."""
        if math.isfinite(value):
            return
        step = self.trainer.step
        name = self.scores.metric
        if self.experiment.train.non_finite == "stop":
            raise NonFiniteMetric(step, name, value)
        self.log.display.line(f"step {step}: {name} is {value:g}, no improvement")

    def _record_per_sample(self, per_sample: SampleSums) -> None:
        """Write the values of the newest evaluation; a full disk does not end the run."""
        if not self.ranks.is_main:
            return
        self._require_directory()
        try:
            write_per_sample(
                self.directory.path,
                "valid",
                per_sample,
                step=self.trainer.step,
                seed=self.experiment.seed,
                batch_size=self._evaluation_batch,
                repeats=self.experiment.evaluate.repeats,
            )
        except OSError as error:
            self.log.display.line(f"no values per sample are stored: {error}")

    @property
    def _evaluation_batch(self) -> int:
        return self.experiment.evaluation_batch

    def _measure(
        self,
        samples: int,
        repeats: int,
        per_sample: Callable[[SampleSums], object] = lambda sums: None,
    ) -> dict[str, float] | None:
        """Return the metrics of the validation split; None if a signal stops it. Collective."""
        metrics = None
        if self._participates:
            # Batches of other sizes than in training would be compiled again.
            with self.system.eager():
                metrics = evaluate(
                    self.averaged,
                    samples=samples,
                    batch_size=self._evaluation_batch,
                    repeats=repeats,
                    seed=self.experiment.seed,
                    stopped=self._stopping_here,
                    per_sample=per_sample,
                )
        shared: dict[str, float] | None = self.ranks.broadcast(metrics)
        return shared

    def draw(self) -> None:
        """Write samples into the run directory, unless a signal stops it."""
        settings = self.experiment.sample
        step = self.trainer.step
        self.trainer.check()
        if not (settings.count and self._participates):
            return
        self.log.display.doing("sampling")
        with self.system.eager():
            samples = make_samples(
                self.averaged,
                settings.count,
                settings.seed,
                settings.batch_size,
                stopped=self._stopping_here,
                tries=settings.tries,
                pictures=self.ranks.is_main,
                warn=self.log.display.line,
            )
        if samples is not None and self.ranks.is_main:
            self._require_directory()
            folder = self.directory.path / "samples" / f"step-{step:08d}"
            write_samples(samples, folder)
            self._metrics["sample"] = samples.metrics
            self.log.log(step, "sample", samples.metrics)
            self.emit(Sampled(step=step, path=folder))
            self.log.pictures(step, samples.pictures)

    @property
    def averaged(self) -> Diffusion:
        """Return the system with the EMA weights, or with the current ones without EMA."""
        average = self.trainer.average
        if average is None:
            return self.system
        return self.system.with_model(average.module)

    @property
    def _participates(self) -> bool:
        """Whether this rank evaluates and samples: all ranks do if the model is sharded."""
        return self.ranks.is_main or self.trainer.parallel.sharded

    def stopping(self) -> bool:
        """Return whether any rank received a signal to stop. Collective."""
        return self.ranks.any(self.stop())

    def _look(self) -> None:
        """Raise `Vanished` if the run directory is gone; check every `LOOK_SECONDS` at most."""
        now = time.monotonic()
        if now - self._looked > LOOK_SECONDS:
            self._looked = now
            self._require_directory()

    def _require_directory(self) -> None:
        """Raise `Vanished` if the run directory or its metrics are gone: before a write, which would create it."""
        if self.ranks.is_main:
            self.directory.require()
            self.log.require()

    def _stopping_here(self) -> bool:
        """Return the same during evaluation and sampling, which may be on the main rank only."""
        self._look()
        return self.stopping() if self.trainer.parallel.sharded else self.stop()

    def save(self) -> None:
        """Write a checkpoint unless this step has one; NonFinite if weights contain NaN or inf."""
        trainer = self.trainer
        if self.saver.has(trainer.step):
            return
        self._require_directory()
        # A checkpoint with NaN would replace the last usable one.
        trainer.check()
        trainer.check_weights()
        contents = self._contents()
        if self.ranks.is_main:
            # The position that the checkpoint records must be on disk.
            self.log.sync()
            contents.plain["metrics_bytes"] = self._position.size
            contents.plain["metrics_crc32"] = self._position.crc32
            try:
                self.saver.save(trainer.step, contents)
            finally:
                if isinstance(contents, Shards):
                    contents.cancel()
        else:
            if isinstance(contents, Shards):
                contents.join()
            # `has` must agree on all ranks, of which others would wait in a collective.
            self.saver.newest = trainer.step

    def _contents(self) -> Contents | Shards:
        """Return shards, or the full weights and trainer state on the main rank. Collective."""
        trainer = self.trainer
        model = self.system.model
        average = None if trainer.average is None else trainer.average.module
        # Shards are written by all ranks together, which a background thread cannot do.
        shards = trainer.parallel.sharded and not self.experiment.train.async_save
        tensors, plain = trainer.state(gathered=not shards)
        if not shards:
            gather = trainer.parallel.full_weights
            return Contents(
                model=gather(model),
                average=None if average is None else gather(average),
                tensors=tensors,
                plain=plain,
            )
        parts = {"model": model.state_dict()}
        if average is not None:
            parts["ema"] = average.state_dict()
        return Shards({**parts, "optimizer": tensors}, plain, self.ranks)

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of every plugin on the main rank."""
        if self.ranks.is_main:
            for _ in self.plugins.call_each(hook, run=self, **arguments):
                pass

    # --- finish ------------------------------------------------------------------------------

    def finish(self) -> int:
        """Write and show the summary; return the exit code."""
        if not self.ranks.is_main:
            return DONE
        trainer = self.trainer
        if trainer.step < trainer.train.steps:
            since = f"{self.scores.since} evaluations without improvement"
            best = self.scores.best
            last = "the start" if best is None else f"step {best}"
            say(self.console, f"early stopping: {since} since {last}")
        # The first step is not timed; see `_train`.
        timed = trainer.step - self.first - 1
        rate = timed / self.seconds if self.seconds else None
        self._require_directory()
        summary = summarise(self.experiment, trainer, self._metrics, rate)
        # Other work of the machine has no effect on it.
        summary["cpu_seconds_per_step"] = (
            self.cpu_seconds / timed if timed > 0 else None
        )
        self.directory.write_json("summary.json", summary)
        show_result(self.console, summary, self.directory.path)
        self.emit(Finished(run=self.directory.path, summary=summary))
        self.call("after_run", summary=summary)
        return DONE

    def stopped(self) -> int:
        """Say how to continue; return the exit code."""
        reason = self.stop.requested or "another rank"
        step = self.trainer.step
        say(self.console, f"stopped by {reason} after step {step}; checkpoint saved")
        path = self.directory.path
        command = command_words("run", "--resume", path)
        say(self.console, f"resume with: {join(command)}")
        if self.ranks.is_main:
            self.emit(Interrupted(run=path, step=step, reason=reason, resume=command))
        return STOPPED


@contextmanager
def closing_directory(this: Run) -> Iterator[Run]:
    """Complete the mirror and release the lock of the run directory at the end, if there is one."""
    try:
        yield this
    finally:
        try:
            if this.mirror is not None:
                is_short = this.ranks.launched and this.stop()
                seconds = STOPPED_SECONDS if is_short else CLOSE_SECONDS
                this.mirror.close(this.stop, seconds)
        finally:
            this.directory.release()


def restore(checkpoint: Path, trainer: Trainer) -> Position:
    """Restore a trainer from a checkpoint; return the end of metrics.jsonl before it."""
    try:
        trainer.parallel.load(part_of(checkpoint, "model"), trainer.system.model)
        if trainer.average is not None:
            trainer.parallel.load(part_of(checkpoint, "ema"), trainer.average.module)
        tensors, plain = load_state(checkpoint)
        trainer.load_state(tensors, plain)
        return Position(int(plain["metrics_bytes"]), int(plain["metrics_crc32"]))
    except (
        KeyError,
        TypeError,
        ValueError,
        RuntimeError,
        OSError,
        OverflowError,
    ) as error:
        raise Damaged(
            f"{checkpoint} is intact but does not match this run: {error!r}"
        ) from error


def with_steps(loaded: Loaded, size: int) -> Loaded:
    """Return an experiment whose `train.steps` replace `train.epochs` of `size` samples."""
    train = loaded.experiment.train
    if train.epochs is None:
        return loaded
    steps = max(1, math.ceil(train.epochs * size / train.batch_size))
    return loaded.with_options("train", steps=steps, epochs=None)


def _find_launched_run(runs: Path, ranks: Ranks) -> Path | None:
    """Return the run of this launch after a restart by torchrun, or None. Collective."""
    launched = None
    if ranks.is_main:
        # Names end in the time, so that the newest run is the first.
        for path in sorted(runs.glob("*-*/manifest.json"), reverse=True):
            # Another run may be damaged.
            with suppress(Refused):
                manifest = read_manifest(path.parent)
                launches = [
                    entry.get("launch") for entry in (manifest, *manifest["resumed"])
                ]
                if ranks.launch in launches:
                    launched = str(path.parent)
                    break
    launched = ranks.broadcast(launched)
    return None if launched is None else Path(launched)
