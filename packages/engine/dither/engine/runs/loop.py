"""The training loop: steps, evaluations, samples and checkpoints."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from dither.registry.contracts.protocols import Picture, Tracker
from dither.registry.plugins.manager import Plugins

from ..checkpoints.checkpoint import Contents, Damaged, Saver, Scores, load_state
from ..checkpoints.sharded_checkpoint import Shards, part_of
from ..config.experiment import Experiment
from ..distributed.ranks import Ranks
from ..files.metrics_file import BEGINNING, FilePosition, MetricsFile
from ..sampling.samples import make_samples, write_samples
from ..training.device import peak_device_memory, peak_memory
from ..training.diffusion import Diffusion
from ..training.evaluation import evaluate
from ..training.trainer import Trainer
from .progress import ProgressDisplay
from .run_directory import RunDirectory
from .signals import Stop

__all__ = ["Log", "Run", "resume_from"]


class Log:
    """Sends metrics and pictures to metrics.jsonl in `folder` (None on ranks that write none), terminal and trackers.

    `done` is the last finished step of a resumed run, and `offset` the bytes of metrics.jsonl up to
    it; None keeps all. A tracker that raises an exception is reported once and not called again.
    `config` is for the trackers.
    """

    def __init__(
        self,
        folder: Path | None,
        console: Console,
        total: int,
        done: int = 0,
        offset: int | None = None,
        trackers: Mapping[str, Tracker] | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.display = ProgressDisplay(
            console, total, done, lambda: peak_device_memory() or peak_memory()
        )
        self._file = (
            None
            if folder is None
            else MetricsFile(folder / "metrics.jsonl", offset, self.display.line)
        )
        self._trackers = dict(trackers or {})
        self._each(lambda tracker: tracker.start(folder or Path(), config or {}, done))

    @property
    def position(self) -> FilePosition:
        return BEGINNING if self._file is None else self._file.position

    def log(
        self,
        step: int,
        kind: str,
        metrics: Mapping[str, float],
        rate: float | None = None,
    ) -> None:
        """Report metrics; `kind` is "train", "valid" or "sample", `rate` the samples per second."""
        if self._file is not None:
            times = {"wall_time": round(time.time(), 3)}
            self._file.write(
                step,
                kind,
                metrics,
                times if rate is None else {**times, "samples_per_second": rate},
            )
        self.display.metrics(step, kind, metrics)
        self._each(lambda tracker: tracker.log(step, kind, metrics))

    def pictures(self, step: int, pictures: Sequence[Picture]) -> None:
        self._each(lambda tracker: tracker.log_pictures(step, pictures))

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self, error: BaseException | None = None) -> None:
        """Close all destinations; `error` is the exception that ended the run, if any."""
        self.display.stop()
        self._each(lambda tracker: tracker.finish(error))
        if self._file is not None:
            self._file.close()

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except (Exception, SystemExit) as error:
                del self._trackers[name]
                self.display.line(f'tracker "{name}" is disabled: {type(error).__name__}: {error}')


@dataclass
class Run:
    """A run, which hooks receive.

    Attributes:
        metrics: The newest metrics by kind, "valid" and "sample".
        seconds: Time spent in training steps after the first.
        first: The step at which this process started.
        position: The end of metrics.jsonl before the evaluation of the current step.
        logged: Step and `seconds` of the last line of kind "train".
    """

    experiment: Experiment
    plugins: Plugins
    directory: RunDirectory
    system: Diffusion
    trainer: Trainer
    saver: Saver
    scores: Scores
    log: Log
    stop: Stop = field(default_factory=Stop)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    first: int = 0
    position: FilePosition = BEGINNING
    logged: tuple[int, float] = (0, 0.0)

    @property
    def ranks(self) -> Ranks:
        return self.trainer.ranks

    @property
    def participates(self) -> bool:
        """Whether this rank takes part in evaluation and sampling: all ranks do if the model is sharded."""
        return self.ranks.is_main or self.trainer.parallel.sharded

    def stopping(self) -> bool:
        """Return whether any rank received a signal to stop."""
        return self.ranks.any(self.stop())

    def _stopping_here(self) -> bool:
        """Return the same during evaluation and sampling, in which only some ranks may take part."""
        return self.stopping() if self.trainer.parallel.sharded else self.stop()

    def fit(self) -> bool:
        """Train to the last step; return False if a signal stopped it, with a checkpoint saved.

        The checkpoint of a step precedes its evaluation and samples, which a resumed run repeats.
        """
        experiment = self.experiment
        trainer = self.trainer
        watched = bool(self.plugins.manager.hook.after_step.get_hookimpls())
        self.first = trainer.step
        self.position = self.log.position
        self.logged = (self.first + 1, 0.0)
        self._require_best()
        self.stop.polled = True  # from here on, a signal lets the current step finish
        with _no_pauses():
            while not self.stopping():
                step = trainer.step
                if self._due(step, experiment.train.checkpoint_every):
                    self.save()
                if measured := self._due(step, experiment.evaluate.every):
                    self.evaluate()
                patience = experiment.evaluate.patience
                last = step == experiment.train.steps or (
                    patience is not None and self.scores.since >= patience
                )
                if last:
                    self.save()
                if drawn := last or self._due(step, experiment.sample.every):
                    self.draw()
                if last or ((measured or drawn) and self.stopping()):  # collective
                    break
                self._train(watched)
                self.position = self.log.position
        stopped = self.stopping()
        if stopped:
            self.save()
        self.saver.wait()
        return not stopped

    def _due(self, step: int, every: int | None) -> bool:
        return step == self.experiment.train.steps or (
            every is not None and step > 0 and step % every == 0
        )

    def _train(self, watched: bool) -> None:
        self.saver.wait(block=False)
        began = time.perf_counter()  # the first step compiles and loads kernels
        warm = self.trainer.step > self.first
        metrics = self.trainer.advance()
        step = self.trainer.step
        if watched:
            self.call("after_step", step=step, metrics=metrics)
        due = self._due(step, self.experiment.train.log_every)
        popped = self.trainer.pop_metrics() if due else {}  # waits for the device
        self.seconds += (time.perf_counter() - began) * warm
        if due:
            samples = (step - self.logged[0]) * self.experiment.train.batch_size
            seconds = self.seconds - self.logged[1]
            self.logged = (step, self.seconds)
            self.log.log(
                step,
                "train",
                popped,
                float(f"{samples / seconds:.4g}") if seconds and samples else None,
            )
        self.log.display.step(step)

    def _require_best(self) -> None:
        """Refuse an unknown `evaluate.best` before the first step, by the metrics of one batch, or else of all."""
        settings = self.experiment.evaluate
        if settings.best == "loss" or self.scores.values:
            return
        metrics = self._measure(
            min(settings.samples, settings.batch_size or self.experiment.train.batch_size), 1
        )
        if metrics is not None and settings.best not in metrics:
            metrics = self._measure(settings.samples, settings.repeats)
        if metrics:
            self.scores.require(metrics)

    def _measure(self, samples: int, repeats: int) -> dict[str, float] | None:
        """Return the metrics of the validation split; None if a signal stops it. Collective."""
        size = self.experiment.evaluate.batch_size or self.experiment.train.batch_size
        metrics = None
        if self.participates:
            with self.system.eager():
                seed = self.experiment.seed
                stopped = self._stopping_here
                metrics = evaluate(self.averaged, samples, size, repeats, seed, stopped=stopped)
        shared: dict[str, float] | None = self.ranks.broadcast(metrics)
        return shared

    def evaluate(self) -> None:
        """Evaluate on the validation split, unless a signal stops it."""
        settings = self.experiment.evaluate
        trainer = self.trainer
        self.log.display.doing("evaluating")
        trainer.check()
        metrics = self._measure(settings.samples, settings.repeats)
        if metrics is not None:
            self.metrics["valid"] = metrics
            self.log.log(trainer.step, "valid", metrics)
            self.call("after_eval", step=trainer.step, metrics=metrics)
            best = self.scores.add(trainer.step, metrics)
            if best and self.experiment.train.keep_best:
                self.saver.checkpoints.protected_step = trainer.step
                self.save()

    def draw(self) -> None:
        """Write samples into the run directory, unless a signal stops it."""
        settings = self.experiment.sample
        step = self.trainer.step
        self.trainer.check()
        if not (settings.count and self.participates):
            return
        self.log.display.doing("sampling")
        count = settings.count
        seed = settings.seed
        size = settings.batch_size
        with self.system.eager():
            samples = make_samples(
                self.averaged,
                count,
                seed,
                size,
                self._stopping_here,
                settings.tries,
                pictures=self.ranks.is_main,
            )
        if samples is not None and self.ranks.is_main:
            write_samples(samples, self.directory.path / "samples" / f"step-{step:08d}")
            self.metrics["sample"] = samples.metrics
            self.log.log(step, "sample", samples.metrics)
            self.log.pictures(step, samples.pictures)

    @property
    def averaged(self) -> Diffusion:
        """The system with the averaged weights, or with the weights if there is no average."""
        average = self.trainer.average
        return self.system if average is None else self.system.with_model(average.module)

    def save(self) -> None:
        """Write a checkpoint unless this step has one; NonFinite if the weights contain NaN or inf."""
        trainer = self.trainer
        if self.saver.has(trainer.step):
            return
        trainer.check()
        trainer.check_weights()
        shards = (
            trainer.parallel.sharded and not self.experiment.train.async_save
        )  # all ranks write their own
        contents = self._contents(shards)
        if self.ranks.is_main:
            self.log.sync()
            contents.plain.update(
                metrics_bytes=self.position.bytes, metrics_sha256=self.position.sha256
            )
            try:
                self.saver.save(trainer.step, contents)
            finally:
                if isinstance(contents, Shards):
                    contents.cancel()
        else:
            if isinstance(contents, Shards):
                contents.join()
            self.saver.newest = trainer.step

    def _contents(self, shards: bool) -> Contents | Shards:
        """Return shards, or gather the full weights and the state of the trainer on the main rank. Collective."""
        trainer = self.trainer
        model = self.system.model
        tensors, plain = trainer.state(gathered=not shards)
        average = None if trainer.average is None else trainer.average.module
        if shards:
            weights = {"model": model.state_dict()} | (
                {} if average is None else {"ema": average.state_dict()}
            )
            return Shards({**weights, "optimizer": tensors}, plain, self.ranks)
        gather = trainer.parallel.full_weights
        return Contents(gather(model), None if average is None else gather(average), tensors, plain)

    def __post_init__(self) -> None:
        self.saver.written = lambda step, path: self.call("after_checkpoint", step=step, path=path)
        self.trainer.skips.on_skip = self.log.display.line

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of every plugin on the main rank."""
        if not self.ranks.is_main:
            return
        for _ in self.plugins.call_each(hook, run=self, **arguments):
            pass


def resume_from(checkpoint: Path, trainer: Trainer) -> FilePosition:
    """Restore a trainer from a checkpoint; return the position in metrics.jsonl."""
    try:
        trainer.parallel.load(part_of(checkpoint, "model"), trainer.system.model)
        if trainer.average is not None:
            trainer.parallel.load(part_of(checkpoint, "ema"), trainer.average.module)
        tensors, plain = load_state(checkpoint)
        trainer.load_state(tensors, plain)
        return FilePosition(int(plain["metrics_bytes"]), str(plain.get("metrics_sha256", "")))
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, OverflowError) as error:
        raise Damaged(f"{checkpoint} is intact but does not match this run: {error!r}") from error


@contextmanager
def _no_pauses() -> Iterator[None]:
    """Exclude existing objects from garbage collection, whose full passes would interrupt the loop."""
    before = gc.get_threshold()
    gc.set_threshold(
        min(before[0], 700), *before[1:]
    )  # the command line raises it, to import faster
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
