"""The training loop: steps, evaluations, samples and checkpoints."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, schedule

from dither.registry.plugins.manager import Plugins

from ..checkpoints.async_checkpoint import Saver
from ..checkpoints.best_checkpoint import Scores
from ..checkpoints.checkpoint import Contents, Damaged, load_state
from ..checkpoints.sharded_checkpoint import Shards, part_of
from ..config.experiment import Experiment
from ..distributed.ranks import Ranks
from ..files.metrics_file import BEGINNING, FilePosition
from ..sampling.samples import make_samples, write_samples
from ..training.diffusion import Diffusion
from ..training.evaluation import evaluate
from ..training.trainer import Trainer
from .log import Log
from .run_directory import RunDirectory
from .signals import Stop

__all__ = ["Run", "profiled", "resume_from"]


@dataclass
class Run:
    """A run, which hooks receive.

    Attributes:
        experiment: The experiment.
        plugins: The plugins whose hooks are called.
        directory: The locked run directory.
        system: Task, process, model, loss and sampler.
        trainer: Weights and optimizer.
        saver: Writes checkpoints.
        scores: The evaluations so far.
        log: Receives metrics and pictures.
        stop: Whether a signal requested a stop.
        metrics: The newest metrics by kind, "valid" and "sample".
        seconds: Time spent in training steps after the first.
        first: The step at which this process started.
        position: The end of metrics.jsonl before the evaluation of the current step.
        traces: Folder for a profiler trace of a few steps; None for no trace.
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
    traces: Path | None = None

    @property
    def ranks(self) -> Ranks:
        """The processes of the run."""
        return self.trainer.ranks

    @property
    def participates(self) -> bool:
        """Whether this rank takes part in evaluation and sampling: the main rank, and all ranks of a sharded model."""
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
        experiment, trainer = self.experiment, self.trainer
        watched = bool(self.plugins.manager.hook.after_step.get_hookimpls())
        self.first, self.position = trainer.step, self.log.position
        self.stop.polled = True  # from here on, a signal lets the current step finish
        with _no_pauses(), profiled(self.traces) as stepped:
            while not self.stopping():
                step = trainer.step
                if self._due(step, experiment.train.checkpoint_every):
                    self.save()
                if measured := self._due(step, experiment.evaluate.every):
                    self.evaluate()
                last = step == experiment.train.steps or self._out_of_patience()
                if last:
                    self.save()
                if drawn := last or self._due(step, experiment.sample.every):
                    self.draw()
                if last or ((measured or drawn) and self.stopping()):  # collective
                    break
                self._train(watched)
                self.position = self.log.position
                stepped()
        stopped = self.stopping()
        if stopped:
            self.save()
        self.saver.wait()
        return not stopped

    def _due(self, step: int, every: int | None) -> bool:
        return step == self.experiment.train.steps or (every is not None and step > 0 and step % every == 0)

    def _out_of_patience(self) -> bool:
        """Return whether early stopping ends the run."""
        patience = self.experiment.evaluate.patience
        return patience is not None and self.scores.since >= patience

    def _train(self, watched: bool) -> None:
        self.saver.poll()
        began, warm = time.perf_counter(), self.trainer.step > self.first  # the first step compiles and loads kernels
        metrics = self.trainer.advance()
        step = self.trainer.step
        if watched:
            self.call("after_step", step=step, metrics=metrics)
        if self._due(step, self.experiment.train.log_every):
            self.log.log(step, "train", self.trainer.pop_metrics())
        self.log.display.step(step)
        self.seconds += (time.perf_counter() - began) * warm

    def evaluate(self) -> None:
        """Evaluate on the validation split, unless a signal stops it."""
        settings, trainer = self.experiment.evaluate, self.trainer
        self.log.display.doing("evaluating")
        trainer.check()
        size = settings.batch_size or self.experiment.train.batch_size
        seed = self.experiment.seed
        metrics = None
        if self.participates:
            samples, repeats, stopped = settings.samples, settings.repeats, self._stopping_here
            with self.system.eager():
                metrics = evaluate(self.averaged, samples, size, repeats, seed, stopped=stopped)
        metrics = self.ranks.broadcast(metrics)
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
        settings, step = self.experiment.sample, self.trainer.step
        self.trainer.check()
        if not (settings.count and self.participates):
            return
        self.log.display.doing("sampling")
        count, seed, size = settings.count, settings.seed, settings.batch_size
        with self.system.eager():
            samples = make_samples(self.averaged, count, seed, size, self._stopping_here, settings.tries)
        if samples is not None and self.ranks.is_main:
            write_samples(samples, self.directory.path / "samples" / f"step-{step:08d}")
            self.metrics["sample"] = samples.figures
            self.log.log(step, "sample", samples.figures)
            self.log.pictures(step, samples.pictures)

    @property
    def averaged(self) -> Diffusion:
        """The system with the averaged weights, or with the weights if there is no average."""
        average = self.trainer.average
        return self.system if average is None else self.system.with_model(average.module)

    def save(self) -> None:
        """Write a checkpoint unless this step has one.

        Raises:
            NonFinite: The weights contain NaN or inf.
        """
        trainer = self.trainer
        if self.saver.has(trainer.step):
            return
        trainer.check()
        trainer.check_weights()
        if trainer.parallel.sharded and not self.experiment.train.async_save:
            self._save_shards()
            return
        tensors, plain = trainer.state()
        model = trainer.parallel.full_weights(self.system.model)
        average = None if trainer.average is None else trainer.parallel.full_weights(trainer.average.module)
        if not self.ranks.is_main:
            self.saver.skip(trainer.step)
            return
        self._add_progress(plain)
        self.saver.save(trainer.step, Contents(model, average, tensors, plain))

    def _save_shards(self) -> None:
        """Write a checkpoint with all ranks, each its own shards."""
        trainer = self.trainer
        tensors, plain = trainer.state(gathered=False)
        parts: dict[str, Mapping[str, Tensor]] = {"model": self.system.model.state_dict(), "optimizer": tensors}
        if trainer.average is not None:
            parts["average"] = trainer.average.module.state_dict()
        shards = Shards(parts, plain, self.ranks)
        if not self.ranks.is_main:
            shards.join()
            self.saver.skip(trainer.step)
            return
        self._add_progress(plain)
        try:
            self.saver.save(trainer.step, shards)
        finally:
            shards.cancel()

    def _add_progress(self, plain: dict[str, Any]) -> None:
        """Add the position in metrics.jsonl and the scores to the state of the trainer."""
        self.log.sync()
        end = self.position
        plain |= {"metrics_bytes": end.bytes, "metrics_sha256": end.sha256, "scores": self.scores.state()}

    def __post_init__(self) -> None:
        self.saver.written = lambda step, path: self.call("after_checkpoint", step=step, path=path)
        self.trainer.skips.on_skip = self.log.display.line

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of every plugin on the main rank."""
        if not self.ranks.is_main:
            return
        for _ in self.plugins.call_each(hook, run=self, **arguments):
            pass


def resume_from(checkpoint: Path, trainer: Trainer) -> tuple[FilePosition, Mapping[str, object]]:
    """Restore a trainer from a checkpoint; return the position in metrics.jsonl and the scores.

    Raises:
        Damaged: The checkpoint is of another version or was edited.
    """
    try:
        trainer.parallel.load(part_of(checkpoint, "model"), trainer.system.model)
        if trainer.average is not None:
            trainer.parallel.load(part_of(checkpoint, "average"), trainer.average.module)
        tensors, plain = load_state(checkpoint)
        trainer.load_state(tensors, plain)
        position = FilePosition(int(plain["metrics_bytes"]), str(plain.get("metrics_sha256", "")))
        return position, dict(plain.get("scores") or {})
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, OverflowError) as error:
        raise Damaged(f"{checkpoint} is intact but does not match this run: {error!r}") from error


@contextmanager
def _no_pauses() -> Iterator[None]:
    """Exclude existing objects from garbage collection, whose full passes would interrupt the loop."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


WARM, TRACED = 3, 5
"""Steps before the profiler trace, and steps in it."""


@contextmanager
def profiled(folder: Path | None) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each step; a trace of steps 4 to 8 is written to `folder` unless that is None."""
    if folder is None:
        yield lambda: None
        return
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    folder.mkdir(parents=True, exist_ok=True)

    def write(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / "trace.json"))
        table = profiler.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
        (folder / "operations.txt").write_text(table, encoding="utf-8")

    plan = schedule(wait=WARM - 1, warmup=1, active=TRACED, repeat=1)
    with profile(activities=activities, schedule=plan, on_trace_ready=write, profile_memory=True) as profiler:
        yield profiler.step
