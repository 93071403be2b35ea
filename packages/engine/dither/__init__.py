"""Diffusion transformers assembled from named components.

    import dither

    run = dither.train("bubble_diagram/quick", {"train.steps": 500})  # as `dither run`
    system = dither.load(run)
    samples = system.sample(4, seed=0)
    plans = system.decode(samples)  # diagrams, texts or tables
    metrics = system.evaluate()

Other sampler, other options, checked before anything is computed:

    system.sample(4, sampler="ordered", steps=20)
    experiment = dither.load_experiment("bubble_diagram/quick").experiment
    wider = experiment.replace(model={"width": 64}, train={"steps": 500})
    dither.train(wider)
    [component.name for component in dither.list("sampler")]

A training loop of one's own:

    system = dither.Diffusion.build(experiment)
    optimizer = experiment.train.optimizer.build(system.model)
    loss = system(system.task.batch("train", range(64))).mean()

Several distributions, ours and third parties', share this package. Importing it imports none of
them.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Iterator
from importlib import import_module
from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import (
        Diffusion,
        Experiment,
        compare,
        draw,
        evaluate,
        load,
        load_experiment,
        sample,
        save_experiment,
        train,
    )
    from .engine.runs.api import components as list  # noqa: F401
    from .registry.config.errors import Refused

    __version__: str

# Threads of torch that wait for each other by spinning take the cores of other processes, and of one
# another: next to other work a step of the small experiments takes 6 times as long or more (2 cores,
# docs/performance.md). OpenMP reads this once, when torch is imported.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"} & os.environ.keys():
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

__all__ = [
    "Diffusion",
    "Experiment",
    "Refused",
    "__version__",
    "compare",
    "draw",
    "evaluate",
    "load",
    "load_experiment",
    "sample",
    "save_experiment",
    "train",
]

MODULES = {
    "Refused": (".registry.config.errors", "Refused"),
    "list": (".engine.runs.api", "components"),
    # The former name of `list`.
    "components": (".engine.runs.api", "components"),
}
"""Module and attribute of names that the engine does not have under this name."""


class Folders(builtins.list[str]):
    """Every folder `dither` on sys.path, as in a namespace package."""

    def __iter__(self) -> Iterator[str]:
        """Search again, as sys.path may have changed."""
        return iter(extend_path(self[:], __name__))


__path__ = Folders(__path__)


def __getattr__(name: str) -> Any:
    """Import the engine, and torch, on first use."""
    if name == "__version__":
        # An import of 30 ms.
        from importlib.metadata import version

        return version("dither-engine")
    if name in MODULES:
        module, attribute = MODULES[name]
    elif name in __all__:
        module, attribute = ".engine", name
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(module, __name__), attribute)


def __dir__() -> builtins.list[str]:
    """Return the public names, for completion."""
    # `from dither import *` would hide the list of Python, so that `__all__` has it not.
    return sorted([*__all__, "list"])
