"""One model on several ranks: a copy on each (DDP), or cut up among them (FSDP2).

Each rank draws the noise of the whole batch and then takes its rows, so that a run does not depend on how many ranks
there are, nor on the parts in which a batch is taken. Checkpoints hold whole tensors, or the pieces of all ranks, so
that a run goes on with any number, and either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.records import Measured

from ..checkpoints.checkpoint import Weights, load_weights
from ..checkpoints.sharded_checkpoint import read_into
from ..distributed.ranks import Ranks, local_shard
from ..optimizers.moving_average import MovingAverage
from .gradients import norm_of

if TYPE_CHECKING:
    from ..config.options import Train
    from .diffusion import Diffusion

__all__ = ["ParallelModel", "full_tensor"]

NAMES = signature(DistributedDataParallel.__init__).parameters
BUFFERS: dict[str, Any] = {"forward_sync_buffers" if "forward_sync_buffers" in NAMES else "broadcast_buffers": False}


# Buffers of a model here are constants, so there is nothing to send; torch 2.13 renamed the option.
class ParallelModel:
    """What a trainer needs to know of its ranks.

    Args:
        system: What is trained. Cut up, its parameters become others, so this comes before the optimizer.
        average: The average of its weights, which is cut up alike.
        train: The settings.
        ranks: The processes.

    Attributes:
        parts: The rows of a batch that are taken at once, by all ranks together.

    Raises:
        Refused: A batch does not split into equal shares.
    """

    def __init__(self, system: Diffusion, average: MovingAverage | None, train: Train, ranks: Ranks) -> None:
        self.system, self.ranks = system, ranks
        self.sharded = ranks.size > 1 and train.strategy == "fsdp"
        part = train.batch_size // train.accumulate
        if part % ranks.size:
            message = f"a part of {part} samples does not split into equal shares for {ranks.size} ranks"
            raise Refused(Problem(message, ("train", "batch_size")))
        self.parts = [slice(start, start + part) for start in range(0, train.batch_size, part)]
        self._alone = nullcontext(system) if ranks.size == 1 else None
        self._copies: DistributedDataParallel | None = None
        if self.sharded:
            _cut_up(system.model, ranks, train.gather)
            if average is not None:
                _cut_up(average.module, ranks, train.gather)
                average.follow(system.model)
        elif ranks.size > 1:
            self._copies = DistributedDataParallel(system, **BUFFERS)

    def own(self, part: slice) -> slice:
        """Return the rows of a part that are this rank's."""
        share = (part.stop - part.start) // self.ranks.size
        first = part.start + self.ranks.rank * share
        return slice(first, first + share)

    def step(self, last: bool) -> AbstractContextManager[Callable[..., Measured]]:
        """Return a context of what measures a part of a batch; see `_together`."""
        return self._alone or self._together(last)

    @contextmanager
    def _together(self, last: bool) -> Iterator[Callable[..., Measured]]:
        """Yield what measures a part of a batch as `Diffusion` does; gradients meet in the `last` part only."""
        if self._copies is not None:
            with nullcontext() if last else self._copies.no_sync():
                yield self._copies
            return
        if self.sharded:
            self.system.model.set_requires_gradient_sync(last)  # type: ignore[operator]  # fully_shard made it one that can
        yield self.system

    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the gradients that there are, and what of them lies on this rank."""
        found = [gradient for parameter in parameters if (gradient := parameter.grad) is not None]
        return [local_shard(gradient) for gradient in found] if self.sharded else found

    def scale(self, weight: Any) -> Any:
        """Return what gradients are to be divided by: the ranks' means were taken where sums were meant."""
        return weight / self.ranks.size if self.ranks.size > 1 else weight

    def gradient_norm(self, gradients: list[Tensor]) -> Float[Tensor, ""]:
        """Return the norm of all gradients, of which a rank may hold a part only."""
        norm = norm_of(gradients)
        return self.ranks.all_reduce(norm.square()).sqrt() if self.sharded else norm

    def full_weights(self, module: nn.Module) -> nn.Module | Weights:
        """Return the weights of a module as a checkpoint holds them; every rank has to ask."""
        if not self.sharded:
            return module
        return Weights(self.gather(module.state_dict()))

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors that may be cut up as the chief writes them; every rank has to ask.

        They come together one at a time and go to the CPU of the chief, so that no GPU ever holds all of them.
        """
        if not self.sharded:
            return dict(tensors)
        gathered = ((name, full_tensor(value)) for name, value in tensors.items())
        return {name: value.cpu() for name, value in gathered if self.ranks.is_main}

    @torch.no_grad()
    def load(self, path: Path, module: nn.Module) -> None:
        """Read the weights of a checkpoint into a module.

        Raises:
            Refused: They are of another model.
        """
        if not self.sharded:
            load_weights(path, module)
            return
        if path.is_dir():
            read_into(module.state_dict(), path, self.ranks)
            return
        given, own = load_file(path), module.state_dict()
        if given.keys() - own.keys() or any(given[name].shape != own[name].shape for name in given):
            raise Refused(f"{path} does not hold the weights of this model")
        for name, value in given.items():
            own[name].copy_(_spread(value, own[name]))

    def spread(self, tensors: Mapping[str, Tensor], parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """Cut up the state of an optimizer, by `parameter.key`, as its parameters are."""
        if not self.sharded:
            return dict(tensors)

        def cut(name: str, value: Tensor) -> Tensor:
            where = name.partition(".")[0]
            like = parameters[int(where)] if where.isdigit() else None
            return value if like is None or value.shape != like.shape else _spread(value, like)

        return {name: cut(name, value) for name, value in tensors.items()}


def full_tensor(value: Tensor) -> Tensor:
    """Return a tensor that may be cut up as a whole; every rank has to ask."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def _cut_up(model: nn.Module, ranks: Ranks, precision: str) -> None:
    """Cut the parameters up block by block: a block comes together only while it works.

    Gathered in float32, it is converted to bfloat16 by autocast, as on one rank, which leaves the weights of norms
    alone. What is no block always comes together so: what passes between blocks stays in float32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(next(model.parameters()).device.type, (ranks.size,))
    if hasattr(model, "skip_padding"):
        # Padding is skipped by calling blocks once per pattern of it, and all ranks must call them equally often.
        model.skip_padding = False  # type: ignore[assignment]
    half = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    policy = half if precision == "bfloat16" else MixedPrecisionPolicy()
    for block in getattr(model, "blocks", ()):
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh)
    if hasattr(model, "trunk"):
        register_fsdp_forward_method(model, "trunk")


def _spread(value: Tensor, like: Any) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    if not hasattr(like, "device_mesh"):
        return value  # a buffer, whole on every rank
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
