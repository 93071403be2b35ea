"""A run: the loop from the first step to the last, and what happens in between."""

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
from ..checkpoints.sharded_checkpoint import Pieces, part_of
from ..config.experiment import Experiment
from ..distributed.ranks import Ranks
from ..files.metrics_file import BEGINNING, Place
from ..sampling.samples import make_samples, write_samples
from ..training.diffusion import Diffusion
from ..training.evaluation import evaluate
from ..training.trainer import Trainer
from .log import Log, SilentLog
from .run_directory import RunDirectory
from .signals import Stop

__all__ = ["Run", "profiled", "resume_from"]


@dataclass
class Run:
    """All that a run consists of; hooks are given it.

    Attributes:
        experiment: What is run.
        plugins: Whose hooks are called.
        directory: Of this run, locked.
        system: Task, process, model, loss and sampler.
        trainer: Weights and optimizer.
        saver: Writes the checkpoints.
        scores: The evaluations so far, and which was best.
        log: Where figures go.
        stop: Whether a signal has asked to stop.
        figures: The newest figures by kind: valid, sample.
        seconds: Time spent in training steps after the first.
        first: The step at which this process began.
        mark: The place in metrics.jsonl before the evaluation of the present step.
        traces: The folder in which a trace of a few steps is written; None for no trace.
    """

    experiment: Experiment
    plugins: Plugins
    directory: RunDirectory
    system: Diffusion
    trainer: Trainer
    saver: Saver
    scores: Scores
    log: Log | SilentLog
    stop: Stop = field(default_factory=Stop)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    first: int = 0
    mark: Place = BEGINNING
    traces: Path | None = None

    @property
    def ranks(self) -> Ranks:
        """The processes that run it together."""
        return self.trainer.ranks

    @property
    def works(self) -> bool:
        """Whether this process takes part in evaluation and drawing: the chief, and all that hold a part of a model."""
        return self.ranks.is_main or self.trainer.parallel.sharded

    def stopping(self) -> bool:
        """Tell whether any of the processes was asked to stop."""
        return self.ranks.any(self.stop())

    def _stopping_here(self) -> bool:
        """Tell the same where only those processes ask that take part."""
        return self.stopping() if self.trainer.parallel.sharded else self.stop()

    def fit(self) -> bool:
        """Train to the last step; False if a signal asked to stop before, with a checkpoint saved.

        A checkpoint comes before the evaluation and the drawing of the same step, and a resumed run makes these anew.
        """
        experiment, trainer = self.experiment, self.trainer
        watched = bool(self.plugins.manager.hook.after_step.get_hookimpls())
        self.first, self.mark = trainer.step, self.log.metrics.place
        self.stop.polled = True  # from here on there is something to save
        with _no_pauses(), profiled(self.traces) as stepped:
            while not self.stopping():
                step = trainer.step
                if self._due(step, experiment.train.checkpoint_every):
                    self.save()
                if measured := self._due(step, experiment.evaluate.every):
                    self.evaluate()
                last = step == experiment.train.steps or self._no_better()
                if last:
                    self.save()
                if drawn := last or self._due(step, experiment.sample.every):
                    self.draw()
                if last or ((measured or drawn) and self.stopping()):  # to ask takes all ranks
                    break
                self._train(watched)
                self.mark = self.log.metrics.place
                stepped()
        stopped = self.stopping()
        if stopped:
            self.save()
        self.saver.wait()
        return not stopped

    def _due(self, step: int, every: int | None) -> bool:
        return step == self.experiment.train.steps or (every is not None and step > 0 and step % every == 0)

    def _no_better(self) -> bool:
        """Tell whether the evaluations have not become better for as long as they are given."""
        patience = self.experiment.evaluate.patience
        return patience is not None and self.scores.since >= patience

    def _train(self, watched: bool) -> None:
        self.saver.poll()
        began, warm = time.perf_counter(), self.trainer.step > self.first  # the first step loads kernels and more
        figures = self.trainer.advance()
        step = self.trainer.step
        if watched:
            self.call("after_step", step=step, metrics=figures)
        if self._due(step, self.experiment.train.log_every):
            self.log.figures(step, "train", self.trainer.pop_metrics())
        self.log.display.step(step)
        self.seconds += (time.perf_counter() - began) * warm

    def evaluate(self) -> None:
        """Measure the validation split, unless a signal asks to stop meanwhile."""
        settings, trainer = self.experiment.evaluate, self.trainer
        self.log.display.doing("evaluating")
        trainer.check()
        size = settings.batch_size or self.experiment.train.batch_size
        seed = self.experiment.seed
        figures = None
        if self.works:
            samples, repeats, stopped = settings.samples, settings.repeats, self._stopping_here
            with self.system.eager():
                figures = evaluate(self.averaged, samples, size, repeats, seed, stopped=stopped)
        figures = self.ranks.broadcast(figures)
        if figures is not None:
            self.figures["valid"] = figures
            self.log.figures(trainer.step, "valid", figures)
            self.call("after_eval", step=trainer.step, metrics=figures)
            best = self.scores.add(trainer.step, figures)
            if best and self.experiment.train.keep_best:
                self.saver.checkpoints.spared = trainer.step
                self.save()

    def draw(self) -> None:
        """Draw samples into the run directory, unless a signal asks to stop meanwhile."""
        settings, step = self.experiment.sample, self.trainer.step
        self.trainer.check()
        if not (settings.count and self.works):
            return
        self.log.display.doing("drawing")
        count, seed, size = settings.count, settings.seed, settings.batch_size
        with self.system.eager():
            drawing = make_samples(self.averaged, count, seed, size, self._stopping_here, settings.tries)
        if drawing is not None and self.ranks.is_main:
            write_samples(drawing, self.directory.path / "samples" / f"step-{step:08d}")
            self.figures["sample"] = drawing.figures
            self.log.figures(step, "sample", drawing.figures)
            self.log.pictures(step, drawing.pictures)

    @property
    def averaged(self) -> Diffusion:
        """The system around the averaged weights, or around the weights where no average is kept."""
        average = self.trainer.average
        return self.system if average is None else self.system.with_model(average.module)

    def save(self) -> None:
        """Write a checkpoint, unless the newest one is of this step.

        Raises:
            NonFinite: The weights are no numbers.
        """
        trainer = self.trainer
        if self.saver.has(trainer.step):
            return
        trainer.check()
        trainer.check_weights()
        if trainer.parallel.sharded and not self.experiment.train.async_save:
            self._save_in_pieces()
            return
        tensors, plain = trainer.state()
        model = trainer.parallel.full_weights(self.system.model)
        average = None if trainer.average is None else trainer.parallel.full_weights(trainer.average.module)
        if not self.ranks.is_main:
            self.saver.leave(trainer.step)
            return
        self._note(plain)
        self.saver.save(trainer.step, Contents(model, average, tensors, plain))

    def _save_in_pieces(self) -> None:
        """Write a checkpoint with all ranks at once, each its own pieces of the weights."""
        trainer = self.trainer
        tensors, plain = trainer.state(gathered=False)
        parts: dict[str, Mapping[str, Tensor]] = {"model": self.system.model.state_dict(), "optimizer": tensors}
        if trainer.average is not None:
            parts["average"] = trainer.average.module.state_dict()
        pieces = Pieces(parts, plain, self.ranks)
        if not self.ranks.is_main:
            pieces.attend()
            self.saver.leave(trainer.step)
            return
        self._note(plain)
        try:
            self.saver.save(trainer.step, pieces)
        finally:
            pieces.call_off()

    def _note(self, plain: dict[str, Any]) -> None:
        """Note beside the state of the trainer what else belongs to this step: lines of metrics, and scores."""
        self.log.metrics.sync()
        plain |= {"metrics_bytes": self.mark.bytes, "metrics_sha256": self.mark.sha256, "scores": self.scores.kept()}

    def __post_init__(self) -> None:
        self.saver.written = lambda step, path: self.call("after_checkpoint", step=step, path=path)
        self.trainer.skips.on_skip = self.log.display.line

    def call(self, hook: str, **arguments: Any) -> None:
        """Call a hook of every plugin, in the process that writes."""
        if not self.ranks.is_main:
            return
        for _ in self.plugins.call_each(hook, run=self, **arguments):
            pass


def resume_from(checkpoint: Path, trainer: Trainer) -> tuple[Place, Mapping[str, object]]:
    """Put a trainer where it was when a checkpoint was written; return what `Run.save` added: place and scores.

    Raises:
        Damaged: The checkpoint is of another version, or was changed by hand.
    """
    try:
        trainer.parallel.load(part_of(checkpoint, "model"), trainer.system.model)
        if trainer.average is not None:
            trainer.parallel.load(part_of(checkpoint, "average"), trainer.average.module)
        tensors, plain = load_state(checkpoint)
        trainer.load_state(tensors, plain)
        place = Place(int(plain["metrics_bytes"]), str(plain.get("metrics_sha256", "")))
        return place, dict(plain.get("scores") or {})
    except (KeyError, TypeError, ValueError, RuntimeError, OSError, OverflowError) as error:
        raise Damaged(f"{checkpoint} is whole, but does not hold what this run needs: {error!r}") from error


@contextmanager
def _no_pauses() -> Iterator[None]:
    """Keep what is there already out of the garbage collector, whose full passes would interrupt the loop."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


WARM, TRACED = 3, 5
"""Steps before the trace, and steps in it."""


@contextmanager
def profiled(folder: Path | None) -> Iterator[Callable[[], None]]:
    """Yield what is to be called after each step; the trace of steps 4 to 8 goes into `folder`, unless that is None."""
    if folder is None:
        yield lambda: None
        return
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    folder.mkdir(parents=True, exist_ok=True)

    def write(found: profile) -> None:
        found.export_chrome_trace(str(folder / "trace.json"))
        table = found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30)
        (folder / "operations.txt").write_text(table, encoding="utf-8")

    plan = schedule(wait=WARM - 1, warmup=1, active=TRACED, repeat=1)
    with profile(activities=activities, schedule=plan, on_trace_ready=write, profile_memory=True) as found:
        yield found.step
