"""Apply a trained model to data: `dither predict`, `explain` and `embed`, each implemented by the task."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.protocols import DataRequest, Embeds, Explains, Predicts, TimelessProcess
from dither.registry.flow.records import Clean, State

from ..config.paths import reject_escaping_links
from ..sampling.session import draw
from ..training.diffusion import Diffusion
from ..training.randomness import mix_seed
from .loading import Which, load_run

__all__ = ["SystemModel", "apply_run", "predict"]

Verb = Literal["predict", "explain", "embed"]
PROTOCOLS: dict[Verb, Any] = {"predict": Predicts, "explain": Explains, "embed": Embeds}


class SystemModel:
    """A system as a `TrainedModel`: `mean` and `hidden` start from the state at t = 1, where only given values show."""

    def __init__(self, system: Diffusion, seed: int = 0) -> None:
        self.system, self.seeds = system.eval(), (mix_seed(seed, number) for number in count())
        self.device = next(system.model.parameters()).device

    def sample(self, like: Clean) -> Shaped[Tensor, "N L *M"]:
        """Draw one sample for each row; each call has random numbers of its own."""
        samples = draw(self.system, like, next(self.seeds))
        assert samples is not None
        return samples

    def mean(self, clean: Clean) -> Float[Tensor, "B L M"]:
        """Return the prediction of clean features from the given ones."""
        clean, state, t = self._start(clean)
        x0: Tensor = self.system.denoise(state, t, clean).x0
        return x0.cpu()

    def hidden(self, clean: Clean) -> Float[Tensor, "B L D"]:
        """Return the input of the head."""
        clean, state, t = self._start(clean)
        with torch.no_grad():
            return self.system.call(self.system.trunk, state, t, clean).float().cpu()

    def _start(self, clean: Clean) -> tuple[Clean, State, Tensor]:
        clean, process = clean.to(self.device), self.system.process
        fixed = process.fixed_time if isinstance(process, TimelessProcess) else None
        return clean, process.prior(clean), torch.full((len(clean.valid),), fixed or 1.0, device=self.device)


def predict(system: Diffusion, x: Any, *, seed: int = 0, **labels: str) -> Any:
    """Return the task's predictions for inputs of the user, both in the units of the data; see `Diffusion.predict`.

    Raises:
        Refused: The task does not implement `predict_values`, or the input does not match it.
    """
    method = getattr(system.task, "predict_values", None)
    if method is None:
        raise Refused(f"{type(system.task).__name__} does not implement predict_values", code="usage")
    return method(SystemModel(system, seed), x, **labels)


def apply_run(
    verb: Verb,
    run_directory: Path,
    request: DataRequest,
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
) -> list[Path]:
    """Apply the model of a run; return the files. Refused if its task has no such verb, or `folder` is not empty."""
    folder = request.folder
    if folder.is_relative_to(run_directory):
        reject_escaping_links(run_directory, "use --out FOLDER")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"{folder} exists and is not an empty folder; nothing is overwritten", code="file-exists")
    loaded, system, _ = load_run(run_directory, checkpoint=checkpoint, select=select)
    if not isinstance(system.task, PROTOCOLS[verb]):
        offered = ", ".join(name for name, kind in PROTOCOLS.items() if isinstance(system.task, kind)) or "none"
        message = f'task "{loaded.experiment.task.name}" does not implement {verb}'
        raise Refused(Problem(message, help=f"of these verbs it has: {offered}", code="usage"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return list(getattr(system.task, verb)(SystemModel(system, loaded.experiment.seed), request))
    finally:
        with suppress(OSError):
            folder.rmdir()  # if nothing was written
