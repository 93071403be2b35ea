"""Draw samples until they meet the goal of the task, compute their metrics and pictures, and write them.

Letters: N samples, K recorded ones, T states of a trajectory, L length, M features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from jaxtyping import Bool, Int, Shaped
from safetensors.torch import save_file
from torch import Tensor

from dither.registry.contracts.protocols import Picture
from dither.registry.contracts.records import Clean
from dither.registry.files.atomic import atomic_write, follow_umask
from dither.registry.spec.process_settings import protected_settings

from ..files.resource_errors import disk_errors
from ..training.diffusion import Diffusion
from ..training.evaluation import merge_metrics
from ..training.randomness import mix_seed
from .session import ModelCalls, draw

__all__ = [
    "SampleSet",
    "TrajectoryRecorder",
    "draw_accepted",
    "export_samples",
    "make_samples",
    "missing_samples",
    "write_samples",
]

PATHS = 4
"""Number of samples whose trajectory is shown."""
MOST_BYTES = 1 << 27
"""Limit of recorded states; beyond it only every second, fourth, .. state and the last are kept."""
SHOWN = 5
"""Lines about omitted samples to print; further ones are counted."""


@dataclass(frozen=True)
class SampleSet:
    """Samples with their conditions, metrics and pictures.

    Under a goal, the metrics include the share of first draws that meet it ("satisfied", and
    "satisfied/NAME" for each part of it), "drawings_per_sample", and "undelivered", the number of
    missing samples. "model_calls_per_sample" counts rows through the model.
    """

    samples: Shaped[Tensor, "N L *M"]
    like: Clean
    metrics: dict[str, float]
    pictures: list[Picture] = field(default_factory=list)


RARE_TRIES = 4
"""Tries after which constraints that hardly any sample meets are reported."""

RARE = 0.05
"""Share of the draws below which that is so."""


class TrajectoryRecorder:
    """Records the trajectories of the first `most` accepted samples, looking at the first samples of each batch."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: list[int] = []
        self._paths: list[Shaped[Tensor, "T L *M"]] = []
        self._states: list[tuple[int, Shaped[Tensor, "K L *M"]]] = []
        self._seen = 0
        self._every = 1

    def __call__(self, state: Shaped[Tensor, "N L *M"]) -> None:
        if len(self.rows) >= self.most:
            return
        # A copy, because samplers may change their state in place.
        newest = state[: self.most].to("cpu", copy=True)
        self._states.append((self._seen, newest))
        self._thin_out(newest.nbytes)
        self._seen += 1

    def _thin_out(self, nbytes: int) -> None:
        """Keep every `_every`-th state and the newest, so that all of them fit in memory."""
        while len(self._states) > 2 and len(self._states) * nbytes > MOST_BYTES:
            self._every *= 2
            *earlier, newest = self._states
            multiples = [entry for entry in earlier if entry[0] % self._every == 0]
            self._states = [*multiples, newest]

        # The state before the newest was kept as the newest of its time.
        if len(self._states) > 1:
            step, _ = self._states[-2]
            if step % self._every:
                del self._states[-2]

    def keep(self, rows: Int[Tensor, " N"], kept: Bool[Tensor, " N"]) -> None:
        """End a batch: `rows` are the indices of its samples, and `kept` marks the accepted ones."""
        for place in range(len(self._states[0][1]) if self._states else 0):
            if kept[place] and len(self.rows) < self.most:
                self.rows.append(int(rows[place]))
                self._paths.append(
                    torch.stack([state[place] for _, state in self._states])
                )
        self._states.clear()
        self._seen = 0
        self._every = 1

    def path(self) -> Shaped[Tensor, "T K L *M"] | None:
        """Return the trajectories, shorter ones padded with their last state; None if none was recorded."""
        if not self._paths:
            return None
        longest = max(map(len, self._paths))
        still = [
            torch.cat([one, one[-1:].expand(longest - len(one), *one.shape[1:])])
            for one in self._paths
        ]
        return torch.stack(still, 1)


@protected_settings("sampling")
def make_samples(
    system: Diffusion,
    count: int,
    seed: int,
    batch_size: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
    tries: int = 64,
    *,
    metrics: bool = True,
    pictures: bool = True,
    like: Clean | None = None,
    warn: Callable[[str], object] = lambda line: None,
) -> SampleSet | None:
    """Draw samples and compute their metrics; None if stopped. `draw` states which inputs samples depend on.

    If the task has a goal, samples are drawn up to `tries` times to meet it; those that do not are
    omitted. `like` are the templates, by default those of the task. `warn` is called after a few
    tries that hardly any samples pass.
    """
    task = system.task
    like = system.like(count, seed) if like is None else like
    watch = TrajectoryRecorder(PATHS) if pictures else None
    drawn = draw_accepted(
        system,
        like,
        seed,
        batch_size=batch_size,
        tries=tries,
        stopped=stopped,
        watch=watch,
        warn=warn,
    )
    if drawn is None or not len(drawn.samples):
        return drawn
    if pictures:
        drawn.pictures.extend(task.plots(*_cloned(drawn)))
    if watch is not None and (path := watch.path()) is not None:
        drawn.pictures.extend(
            task.trajectory_plots(path, like.apply(lambda value: value[watch.rows]))
        )
    if not metrics:
        return drawn
    return replace(drawn, metrics=_sample_metrics(system, drawn))


def _sample_metrics(system: Diffusion, drawn: SampleSet) -> dict[str, float]:
    extra = [metric(*_cloned(drawn)) for metric in system.metrics if callable(metric)]
    of_task = system.task.sample_metrics(*_cloned(drawn))
    return merge_metrics({**drawn.metrics, **of_task}, *extra)


def _cloned(drawn: SampleSet) -> tuple[Tensor, Clean]:
    """Return copies: plots, metrics and exports must change neither the samples nor each other's."""
    return drawn.samples.clone(), drawn.like.apply(torch.clone)


def draw_accepted(
    system: Diffusion,
    like: Clean,
    seed: int,
    batch_size: int | None = None,
    tries: int = 64,
    stopped: Callable[[], bool] = lambda: False,
    watch: TrajectoryRecorder | None = None,
    warn: Callable[[str], object] = lambda line: None,
) -> SampleSet | None:
    """Draw samples; redraw those that do not meet the goal of `like`, up to `tries` times; None if stopped.

    Accepted samples have the distribution of the sampler given that the goal is met, for each row
    separately, so that differences between rows, such as their length, keep their frequencies.
    `watch` records accepted samples. `warn` is called with a line after `RARE_TRIES` tries of which
    fewer than `RARE` met the goal.
    """
    goal = like.goal
    calls = ModelCalls()
    rows = torch.arange(len(like.valid))
    if goal is None:
        samples = draw(system, like, seed, batch_size, stopped, watch, calls)
        if samples is None:
            return None
        if watch is not None:
            watch.keep(rows, torch.ones(len(rows), dtype=torch.bool))
        return SampleSet(
            samples, like, {"model_calls_per_sample": calls.rows / max(len(samples), 1)}
        )
    # Rows that no draw fills are left out at the end.
    samples = like.x0.clone()
    metrics = dict[str, float]()
    drawn = 0
    for round_ in range(tries):
        if not len(rows):
            break
        batch = like.apply(lambda value, rows=rows: value[rows.to(value.device)])  # type: ignore[misc]
        # The first round has the draws of a run without a goal.
        new = draw(
            system,
            batch,
            mix_seed(seed, round_) if round_ else seed,
            batch_size,
            stopped,
            watch,
            calls,
        )
        if new is None:
            return None
        drawn += len(rows)
        satisfied = goal.satisfied(new, batch.cond)
        # Without constraints all samples are accepted.
        met = torch.stack(
            [torch.ones(len(new), dtype=torch.bool), *satisfied.values()]
        ).all(0)
        # Later rounds contain only samples that failed before.
        if not round_:
            shares = {
                "satisfied": met,
                **{f"satisfied/{name}": part for name, part in satisfied.items()},
            }
            metrics = {
                name: float(part.double().mean()) for name, part in shares.items()
            }
        samples[rows[met]] = new[met].to(samples)
        if watch is not None:
            watch.keep(rows, met)
        rows = rows[~met]
        accepted = len(samples) - len(rows)
        if round_ + 1 == RARE_TRIES and tries > RARE_TRIES and accepted < RARE * drawn:
            rarest, share = _rarest(metrics)
            warn(
                f"{accepted:,} of {drawn:,} draws met the constraints so far; the rarest is "
                f'{rarest}, met by {share:.1%} at first; consider sampler "guided"'
            )
    done = torch.ones(len(like.valid), dtype=torch.bool).index_fill(0, rows, False)
    delivered = max(int(done.sum()), 1)
    metrics["drawings_per_sample"] = drawn / delivered
    metrics["model_calls_per_sample"] = calls.rows / delivered
    metrics["undelivered"] = float(len(rows))
    return SampleSet(
        samples[done], like.apply(lambda value: value[done.to(value.device)]), metrics
    )


def missing_samples(metrics: Mapping[str, float]) -> list[str]:
    """Return lines to print if samples are missing."""
    missing = int(metrics.get("undelivered", 0))
    if not missing:
        return []
    rarest, share = _rarest(metrics)
    return [
        f"{missing} samples are missing: none of their draws met the constraints",
        f'the rarest is {rarest}, met by {share:.1%} at first; use sampler "guided", or raise sample.tries',
    ]


def _rarest(metrics: Mapping[str, float]) -> tuple[str, float]:
    """Return the constraint that the fewest samples met at first, and their share."""
    shares = {
        key.partition("/")[2]: value
        for key, value in metrics.items()
        if key.startswith("satisfied/")
    }
    rarest = min(shares, key=lambda key: shares[key])
    return rarest, shares[rarest]


def write_samples(
    drawing: SampleSet, folder: Path, figures: Sequence[str] = ()
) -> list[Path]:
    """Write pictures in every form that they have, and the samples as safetensors; return the files.

    Plots are also written in the formats of `figures`.
    """
    files = []
    for picture in drawing.pictures:
        files += picture.write(folder, figures)
    like = drawing.like
    tensors = {
        "samples": drawing.samples,
        "x0": like.x0,
        "valid": like.valid,
        "known": like.known,
    }
    with (
        disk_errors(folder / "samples.safetensors"),
        atomic_write(folder / "samples.safetensors") as beside,
    ):
        # safetensors refuses views and tensors that share memory.
        save_file(
            {name: tensor.contiguous().clone() for name, tensor in tensors.items()},
            beside,
        )
        follow_umask(beside)
    return [*files, folder / "samples.safetensors"]


def export_samples(
    system: Diffusion,
    drawing: SampleSet,
    forms: Sequence[str],
    folder: Path,
) -> Iterator[str]:
    """Write samples in each format to a folder of its name; yield lines to print."""
    task = system.task
    for form in dict.fromkeys(forms):
        files, lines = task.export(*_cloned(drawing), form, folder / form)
        if len(files) == 1:
            yield str(files[0])
        else:
            yield f"{folder / form}: {len(files):,} files of {form}"
        yield from (f"{form}: {line}" for line in lines[:SHOWN])
        if len(lines) > SHOWN:
            yield f"{form}: and {len(lines) - SHOWN:,} more"
