"""Bases of optimizers that do not import `torch._dynamo`, which takes 1.1 s of the first step of a run.

torch wraps methods of its optimizers so that torch.compile does not trace into them, and these wrappers
import the compiler when they are called. Training calls an optimizer outside of compiled code only.
"""

from __future__ import annotations

from inspect import unwrap

import torch
from torch.optim import Optimizer

__all__ = ["AdamW", "EagerOptimizer"]


class EagerOptimizer(Optimizer):
    """`torch.optim.Optimizer` with the functions that torch has wrapped."""

    add_param_group = unwrap(Optimizer.add_param_group)
    load_state_dict = unwrap(Optimizer.load_state_dict)
    state_dict = unwrap(Optimizer.state_dict)
    zero_grad = unwrap(Optimizer.zero_grad)


class AdamW(EagerOptimizer, torch.optim.AdamW):
    """`torch.optim.AdamW`, which is not to be differentiated."""

    # As the wrapper of torch does.
    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))
