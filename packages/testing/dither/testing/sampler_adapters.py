"""Samplers of dither, schedulers of diffusers and `generate` of transformers as `sample` functions.

Letters: B batch, L length.
"""

from __future__ import annotations

import importlib
import runpy
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from dither.registry import Catalog, FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.contracts.records import Clean, Noise, State
from dither.registry.kinds import ModelFacts
from dither.registry.plugins.install_command import optional_import

from .checks.samplers import supports
from .sampler_report import Sample
from .toy_denoiser import IDS, LENGTH, NoiseName, ToyDenoiser
from .toy_distributions import TrialSession

__all__ = ["ADAPTERS", "sampler_of"]

PROCESSES: dict[NoiseName, dict[str, Any]] = {
    "absorbing": {"use": "absorbing"},
    "uniform": {"use": "uniform", "predict": "posterior", "schedule": "log-linear"},
    "gaussian": {"use": "gaussian", "predict": "x0"},
}
"""The process of our samplers, by noise."""


def sampler_of(
    target: str, noise: NoiseName | None, options: Mapping[str, Any]
) -> tuple[NoiseName, Sample]:
    """Return the noise and the function that a name on the command line means.

    It is `module:function`, `FILE.py:function`, a scheduler of diffusers, `generate` or a sampler of
    dither.
    """
    if ":" in target:
        if options:
            message = f"{target} takes no options: {', '.join(options)}"
            raise Refused(Problem(message, code="no-effect"))
        return noise or "absorbing", _function(target)
    if target in ADAPTERS:
        fixed, make = ADAPTERS[target]
        if noise not in (None, fixed):
            message = f"{target} is for {fixed} noise, not {noise}"
            raise Refused(Problem(message, code="process-mismatch"))
        return fixed, make(target, dict(options))
    return _our_sampler(target, noise, options)


def _function(target: str) -> Sample:
    """Import a function of a module of the working directory, or of a file."""
    place, _, name = target.rpartition(":")
    if not name:
        raise Refused(Problem(f'"{target}" names no function', code="usage"))
    is_file = place.endswith(".py")
    if is_file and not Path(place).is_file():
        raise Refused(Problem(f"{place} does not exist", code="file-not-found"))
    try:
        if is_file:
            values = runpy.run_path(place)
        else:
            # A script of an environment does not search the working directory.
            sys.path.insert(0, "")
            values = vars(importlib.import_module(place))
    except Exception as error:
        message = f"{place} cannot be imported: {type(error).__name__}: {error}"
        raise Refused(Problem(message, code="plugin-failed")) from error
    function = values.get(name)
    if not callable(function):
        functions = [key for key, value in values.items() if callable(value)]
        hint = did_you_mean(name, functions, "")
        message = f'{place} has no function "{name}"'
        raise Refused(Problem(message, help=hint or None, code="unknown-value"))
    sample: Sample = function
    return sample


class _Session(TrialSession):
    """A `Session` of the toy distribution; t of a process is turned into 1 - alpha."""

    def __init__(self, process: Any, denoiser: ToyDenoiser) -> None:
        super().__init__(process)
        self.denoiser = denoiser
        self.past: Tensor | None = None
        self.dropped = 0

    def output(self, state: State, noise: Noise) -> Tensor:
        x = state.x
        if state.x.ndim == 3:
            x = state.x.squeeze(-1)

        known = None
        if state.noisy is not None:
            known = ~state.noisy.view(x.shape)

        one_minus_alpha = -(-noise.sigma.double()).expm1()
        raw = self._block_output(x, one_minus_alpha, known)
        return raw.view(*state.x.shape[:2], -1)

    def _block_output(self, x: Tensor, t: Tensor, known: Tensor | None) -> Tensor:
        """Return the output at a block, given the finished ones before it."""
        if x.shape[1] == LENGTH:
            return self.denoiser(x, t, known)

        past = self.past
        if past is None:
            past = x[:, :0]

        start = past.shape[1]
        stop = start + x.shape[1]

        # Finished positions are clean, later and dropped ones all noise.
        whole = torch.zeros(len(x), LENGTH, dtype=x.dtype)
        whole[:, :start] = past
        whole[:, start:stop] = x
        if self.denoiser.mask is not None:
            whole[:, stop:] = self.denoiser.mask
            whole[:, : self.dropped] = self.denoiser.mask
        times = torch.zeros(whole.shape, dtype=t.dtype)
        if t.ndim == 1:
            t = t[:, None]
        times[:, start:stop] = t
        times[:, stop:] = 1.0
        times[:, : self.dropped] = 1.0
        return self.denoiser(whole, times)[:, start:stop]

    def append(self, x: Shaped[Tensor, "B L"]) -> None:
        past = [] if self.past is None else [self.past]
        self.past = torch.cat([*past, x.clone()], 1)

    def drop(self, count: int) -> None:
        self.dropped += count


def _our_sampler(
    name: str, noise: NoiseName | None, options: Mapping[str, Any]
) -> tuple[NoiseName, Sample]:
    """Return a sampler component on its process: by default that of the first noise that it serves."""
    catalog = default_catalog()
    if name not in catalog.names("sampler"):
        hint = did_you_mean(name, [*catalog.names("sampler"), *ADAPTERS], "")
        message = f'"{name}" is not a module:function, scheduler, "generate" or sampler'
        raise Refused(Problem(message, help=hint or None, code="unknown-component"))
    spec = _parse(catalog, name, options)
    candidates: list[NoiseName] = [noise] if noise else [*PROCESSES]
    messages = []
    for candidate in candidates:
        space: Any = TokenSpace((Field("text", LENGTH, IDS),))
        if candidate == "gaussian":
            space = FeatureSpace(LENGTH, 1)
        process: Any = catalog.parse("process", PROCESSES[candidate])
        if supports(spec, process, space):
            sample = _component_sample(catalog, name, options, process.build(space))
            return candidate, sample
        misfits = spec.check(process.facts(space), ModelFacts())
        messages += [misfit.message for misfit in misfits]
    raise Refused(Problem(messages[0], code="process-mismatch"))


def _parse(catalog: Catalog, name: str, options: Mapping[str, Any]) -> Any:
    from pydantic import ValidationError

    try:
        return catalog.parse("sampler", {"use": name, **options})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = f"sampler {name}: {place}: {first['msg']}"
        raise Refused(Problem(message, code="invalid-value")) from None


def _component_sample(
    catalog: Catalog, name: str, options: Mapping[str, Any], process: Any
) -> Sample:
    def sample(denoiser: ToyDenoiser, x: Tensor, known: Tensor, steps: int) -> Tensor:
        table = dict(options)
        if "steps" in type(_parse(catalog, name, options)).model_fields:
            table.setdefault("steps", steps)
        sampler = _parse(catalog, name, table).build()
        shape = x.shape
        if denoiser.noise == "gaussian":
            # A feature has an axis of its own: B L -> B L 1
            x = x[..., None]
            known = known[..., None]
        like = Clean.of(x, known=known)
        last: Tensor
        (*_, last) = sampler(process, _Session(process, denoiser), like)
        return last.view(shape)

    return sample


def _scheduler(name: str, options: Mapping[str, Any]) -> Any:
    """Construct a scheduler of diffusers; Refused without the library, the class or an option."""
    with optional_import(f"{name} requires diffusers", "dither-testing", "samplers"):
        diffusers = importlib.import_module("diffusers")
    try:
        scheduler_class = getattr(diffusers, name)
    except (AttributeError, ImportError):
        message = f"diffusers {diffusers.__version__} has no {name}"
        raise Refused(Problem(message, code="missing-dependency")) from None
    try:
        return scheduler_class(**options)
    except (TypeError, ValueError) as error:
        raise Refused(Problem(f"{name}: {error}", code="invalid-value")) from None


def _discrete_ddim(name: str, options: dict[str, Any]) -> Sample:
    scheduler = _scheduler(name, options)

    def sample(denoiser: ToyDenoiser, x: Tensor, known: Tensor, steps: int) -> Tensor:
        prompt = x.clone()
        scheduler.set_timesteps(steps)
        for step in range(steps):
            logits = denoiser(x, 1 - step / steps, known)
            x = scheduler.step(logits, step, x, temperature=1.0).prev_sample
            x = torch.where(known, prompt, x)
        return x

    return sample


def _entropy_bound(name: str, options: dict[str, Any]) -> Sample:
    # Its default temperatures sharpen the distribution on purpose.
    scheduler = _scheduler(name, {"t_min": 1.0, "t_max": 1.0, **options})

    def sample(denoiser: ToyDenoiser, x: Tensor, known: Tensor, steps: int) -> Tensor:
        prompt = x.clone()
        scheduler.set_timesteps(steps)
        for step in range(steps):
            # It has no time: accepted tokens are clean, others uniform.
            x = scheduler.step(denoiser(x, None, known), step, x).prev_sample
            x = torch.where(known, prompt, x)
        return x

    return sample


def _block_refinement(name: str, options: dict[str, Any]) -> Sample:
    scheduler = _scheduler(name, options)

    def sample(denoiser: ToyDenoiser, x: Tensor, known: Tensor, steps: int) -> Tensor:
        scheduler.set_timesteps(steps, block_length=LENGTH)
        for step in range(steps):
            logits = denoiser(x)
            x = scheduler.step(
                logits, step, x, mask_token_id=denoiser.mask, temperature=1.0
            ).prev_sample
        return x

    return sample


def _gaussian(name: str, options: dict[str, Any]) -> Sample:
    table = {"prediction_type": "sample", "timestep_spacing": "trailing", **options}
    if name in ("DDIMScheduler", "DDPMScheduler"):
        # They clip to the values of images by default.
        table.setdefault("clip_sample", False)
    scheduler = _scheduler(name, table)

    def sample(denoiser: ToyDenoiser, x: Tensor, known: Tensor, steps: int) -> Tensor:
        prompt = x.clone()
        # numpy deprecates how diffusers reads tensors.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            scheduler.set_timesteps(steps)
        for timestep in scheduler.timesteps:
            t = 1 - scheduler.alphas_cumprod[int(timestep)].double()
            x = scheduler.step(denoiser(x, t, known), timestep, x).prev_sample
            x = torch.where(known, prompt, x)
        return x

    return sample


def _generate(name: str, options: dict[str, Any]) -> Sample:
    """Return `generate` of transformers on the exact next-token distribution: a call per token."""
    with optional_import(
        "generate requires transformers", "dither-testing", "samplers"
    ):
        from .causal_model import causal_sample
    return causal_sample(options)


Make = Callable[[str, dict[str, Any]], Sample]
ADAPTERS: dict[str, tuple[NoiseName, Make]] = {
    "BlockRefinementScheduler": ("absorbing", _block_refinement),
    "DDIMScheduler": ("gaussian", _gaussian),
    "DDPMScheduler": ("gaussian", _gaussian),
    "DPMSolverMultistepScheduler": ("gaussian", _gaussian),
    "DiscreteDDIMScheduler": ("uniform", _discrete_ddim),
    "EntropyBoundScheduler": ("uniform", _entropy_bound),
    "UniPCMultistepScheduler": ("gaussian", _gaussian),
    "generate": ("absorbing", _generate),
}
"""Samplers of others, with the noise that they reverse."""
