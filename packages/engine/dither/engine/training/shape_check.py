"""A pass of two training samples through all components, before anything is trained.

Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.records import Measured
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.kinds import ModelSpec
from dither.registry.plugins.catalog import Catalog
from dither.registry.spec.base import Spec, WrongReturnError, shown

from ..config.component_errors import reason_of, title
from ..config.experiment import Experiment
from ..files.resource_errors import shortage
from .diffusion import Diffusion
from .model_summary import parts_of
from .randomness import preserved_generators

__all__ = ["require_shapes"]

SAMPLES = 2
MAX_LOGITS = 1 << 26
"""Numbers beyond which logits are not computed in this check."""


@torch.no_grad()
def require_shapes(
    system: Diffusion, experiment: Experiment, catalog: Catalog | None = None
) -> None:
    """Pass two training samples through all components, unless their logits have more than `MAX_LOGITS` numbers.

    Raises:
        Refused: Names the component that raises an exception, or returns another type or shape than
            it must.
    """
    device = system.device
    process = system.process
    space = process.space
    count = min(SAMPLES, system.task.size("train"))
    width = space.vocab if isinstance(space, TokenSpace) else space.width
    if not 0 < count * space.length * width <= MAX_LOGITS:
        return
    shape: tuple[int, ...] = (count, space.length)
    if not isinstance(space, TokenSpace):
        shape = (*shape, width)

    with preserved_generators(device):
        with _component(experiment.task, catalog):
            clean = system.task.batch("train", range(count)).to(device)
            _require_shape("x0", clean.x0, *shape)

        with _component(experiment.process, catalog):
            t, noised = system.noise(clean, system.times(count, device))
            _require_shape("the noised x", noised.state.x, *shape)

        model = experiment.model
        with _component(model, catalog), _checked_parts(system.model, model, catalog):
            raw = system.raw(noised.state, t, clean, context=system.context(clean))
            # Else a distribution of values.
            if isinstance(raw, Tensor | None):
                if not isinstance(space, TokenSpace):
                    width = space.raw_width
                _require_shape("the output", raw, count, space.length, width)

        with _component(experiment.process, catalog):
            prediction = process.read(raw, noised.state, process.schedule(t))
            _require_type("read", prediction, object)

        with _component(experiment.loss, catalog):
            measured = system.training_loss(prediction, noised)
            _require_type("it", measured, Measured)
            _require_shape("values", measured.values, *noised.valid.shape)
            _require_shape("weights", measured.weights, *measured.values.shape)


@contextmanager
def _component(spec: Spec, catalog: Catalog | None) -> Iterator[None]:
    """Refuse an experiment if a component raises an exception, by the name of the component."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        # Too little memory is not an error of the component.
        if shortage(error):
            raise
        message = f"{title(spec, catalog)} failed: {reason_of(error)}"
        raise Refused(Problem(message, (spec.kind,), code="plugin-failed")) from error


def _require_shape(what: str, value: Any, *shape: int) -> None:
    actual = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    if actual != shape:
        raise WrongReturnError(f"{what} is {actual}, expected {shape}")


def _require_type(method: str, value: Any, kind: type) -> None:
    if value is None or isinstance(value, str | list) or not isinstance(value, kind):
        raise WrongReturnError(f"{method} returned {shown(value)}")


@contextmanager
def _checked_parts(
    model: nn.Module, spec: ModelSpec, catalog: Catalog | None
) -> Iterator[None]:
    """Check what the components of a model return while it is called."""
    handles = []
    for _, module, part in parts_of(model, spec):
        if part is None:
            continue
        layers = module if isinstance(module, nn.ModuleList) else [module]
        check = partial(_require_positions, part, catalog)
        handles += [layer.register_forward_hook(check) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _require_positions(
    part: Spec,
    catalog: Catalog | None,
    module: nn.Module,
    inputs: tuple[Any, ...],
    result: Any,
) -> None:
    """Refuse a component that returns no tensor, and a block or head with other positions than its input."""
    if part.kind == "embedding" and isinstance(result, tuple) and result:
        result = result[0]
    fits = isinstance(result, Tensor)
    if fits and part.kind in ("block", "head") and inputs:
        # A head of patches returns the positions in them.
        axes = 2 if part.kind == "block" else 1
        fits = result.shape[:axes] == inputs[0].shape[:axes]
    if not fits:
        actual = shown(result)
        if isinstance(result, Tensor):
            actual = f"shape {tuple(result.shape)}"
        message = f"{title(part, catalog)} failed: forward returned {actual}"
        raise Refused(message, code="plugin-failed")
