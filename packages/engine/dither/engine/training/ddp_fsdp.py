"""One model on several ranks: replicated (DDP) or sharded (FSDP2).

Each rank draws the noise of the whole batch and then takes its rows, and checkpoints hold all
weights, so that a run depends neither on the number of ranks nor on gradient accumulation or
strategy, even if these change when it resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import Denoiser
from dither.registry.contracts.records import Measured
from dither.registry.files.lookup import is_folder

from ..checkpoints.checkpoint import Weights, load_weights
from ..checkpoints.sharded_checkpoint import read_into
from ..config.options import Train
from ..distributed.ranks import Ranks, ShardedTensor, full_tensor, local_shard
from ..optimizers.ema import MovingAverage
from .diffusion import Diffusion, submodule

__all__ = ["ParallelModel", "norm_of"]

BUFFERS = "forward_sync_buffers" if torch.__version__ >= "2.13" else "broadcast_buffers"
"""The option that synchronises buffers at every forward pass."""


class ParallelModel:
    """The model and its gradients across ranks.

    Sharding replaces the parameters of the model: build this before the optimizer.
    `micro_batches` are the rows of a batch of each gradient accumulation step, over all ranks.
    """

    def __init__(
        self,
        system: Diffusion,
        average: MovingAverage | None,
        train: Train,
        ranks: Ranks,
    ) -> None:
        self.system = system
        self.ranks = ranks
        self.sharded = ranks.launched and train.strategy == "fsdp"
        size = train.batch_size // train.accumulate
        if size % ranks.size:
            message = f"a micro-batch of {size} samples is not divisible by {ranks.size} ranks"
            raise Refused(Problem(message, ("train", "batch_size"), code="misfit"))
        self.micro_batches = [
            slice(start, start + size) for start in range(0, train.batch_size, size)
        ]
        self._ddp: DistributedDataParallel | None = None
        if self.sharded:
            system.sharded = True
            _shard(system.model, ranks, train.gather)
            if average is not None:
                _shard(average.module, ranks, train.gather)
                # Sharding has replaced the parameters.
                average.follow(system.model)
        elif ranks.size > 1:
            # Buffers are constants here and need no synchronisation.
            options: dict[str, Any] = {BUFFERS: False}
            self._ddp = DistributedDataParallel(system, **options)

    def local_rows(self, micro_batch: slice) -> slice:
        """Return the rows of a micro-batch that this rank computes."""
        size = (micro_batch.stop - micro_batch.start) // self.ranks.size
        first = micro_batch.start + self.ranks.rank * size
        return slice(first, first + size)

    @contextmanager
    def accumulation_step(self, last: bool) -> Iterator[Callable[..., Measured]]:
        """Yield the system's forward; gradients are all-reduced only in the `last` micro-batch."""
        if self._ddp is not None:
            with nullcontext() if last else self._ddp.no_sync():
                yield self._ddp
            return
        if self.sharded:
            # `fully_shard` adds the method.
            self.system.model.set_requires_gradient_sync(last)  # type: ignore[operator]
        yield self.system

    def gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Return the existing gradients, or their shards on this rank."""
        gradients = [
            parameter.grad for parameter in parameters if parameter.grad is not None
        ]
        if self.sharded:
            gradients = [local_shard(gradient) for gradient in gradients]
        return gradients

    def gradient_norm(self, gradients: list[Tensor]) -> Float[Tensor, ""]:
        """Return the norm of all gradients, over the shards of all ranks."""
        norm = norm_of(gradients)
        if not self.sharded:
            return norm
        # Squares of norms add up over shards.
        return self.ranks.all_reduce(norm.square()).sqrt()

    def full_weights(self, module: nn.Module) -> nn.Module | Weights:
        """Return the weights of a module as a checkpoint holds them. Collective."""
        return Weights(self.gather(module.state_dict())) if self.sharded else module

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return full tensors on the CPU of the main rank, gathered one at a time. Collective."""
        if not self.sharded:
            return dict(tensors)
        full = {}
        for name, value in tensors.items():
            whole = full_tensor(value)
            if self.ranks.is_main:
                full[name] = whole.cpu()
        return full

    @torch.no_grad()
    def load(self, path: Path, module: nn.Module) -> None:
        """Load the weights of a checkpoint into a module; Refused if they are another model's."""
        if not self.sharded:
            load_weights(path, module)
            return
        if is_folder(path):
            read_into(module.state_dict(), path, self.ranks)
            return
        saved = load_file(path)
        own = module.state_dict()
        fits = [
            name in own and own[name].shape == value.shape
            for name, value in saved.items()
        ]
        if not all(fits):
            raise Refused(
                f"{path} does not hold the weights of this model", code="shape-mismatch"
            )
        for name, value in saved.items():
            own[name].copy_(_distribute(value, own[name]))

    def shard_optimizer_state(
        self, tensors: Mapping[str, Tensor], parameters: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        """Shard the state of an optimizer, by `parameter.key`, like its parameters."""
        if not self.sharded:
            return dict(tensors)
        sharded = {}
        for name, value in tensors.items():
            sharded[name] = value
            number = name.partition(".")[0]
            # Step counters and options of groups are replicated.
            if number.isdigit() and value.shape == parameters[int(number)].shape:
                sharded[name] = _distribute(value, parameters[int(number)])
        return sharded


FLAT = 2**18
"""Number of elements up to which gradients on a CPU are concatenated for their norm: two kernels
instead of many."""


def norm_of(gradients: list[Tensor]) -> Float[Tensor, ""]:
    """Return the Euclidean norm of all gradients together."""
    if gradients[0].device.type == "cpu" and sum(map(Tensor.numel, gradients)) <= FLAT:
        flat = torch._C._nn.flatten_dense_tensors(gradients)
    else:
        flat = torch.stack(torch._foreach_norm(gradients))
    norm: Tensor = torch.linalg.vector_norm(flat)
    return norm


def _shard(model: nn.Module, ranks: Ranks, precision: str) -> None:
    """Shard parameters block by block: a block is gathered only while it computes.

    By default blocks are gathered in float32 and autocast converts them to bfloat16 as on one rank,
    which leaves the weights of norms alone. Everything outside the blocks is always gathered so:
    the residual stream stays in float32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import (
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    mesh = init_device_mesh(next(model.parameters()).device.type, (ranks.size,))
    policy = MixedPrecisionPolicy()
    if precision == "bfloat16":
        policy = MixedPrecisionPolicy(
            torch.bfloat16, torch.float32, cast_forward_inputs=False
        )
    blocks = submodule(model, "blocks")
    for block in () if blocks is None else blocks.children():
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh)
    # Parameters outside the blocks are gathered by the methods that are called.
    if isinstance(model, Denoiser):
        register_fsdp_forward_method(model, "trunk")


def _distribute(value: Tensor, like: Tensor) -> Tensor:
    from torch.distributed.tensor import distribute_tensor

    if not isinstance(like, ShardedTensor):
        # A buffer, replicated on every rank.
        return value
    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements)
