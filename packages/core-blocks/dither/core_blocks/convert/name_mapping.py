"""Weights from elsewhere under the names of our denoiser: the same tensors, only called otherwise.

A layout says what the weights of a published model are called. Those that we know are in `sedd` and `get`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from dither.registry.config.errors import Refused, nearest
from dither.registry.files.weight_files import read_weights

__all__ = ["Layout"]

SHOWN = 8


def _as_they_are(theirs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return theirs


def _nothing(theirs: Mapping[str, Tensor]) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Layout:
    """What the weights of a model are called elsewhere, and what they are called here.

    Attributes:
        whose: As in "a SEDD".
        outer: Our name for each of theirs, outside the blocks.
        inner: The same inside a block, on both sides without the number of the block.
        blocks: Where they have their blocks; ours are in "blocks".
        optional: Their names, of either sort, that may be missing.
        passed: Their names of what is no weight, such as tables that follow from the options.
        renewed: From earlier names and shapes of theirs to these.
        otherwise: What else shows that their model is not ours.
    """

    whose: str
    outer: Mapping[str, str]
    inner: Mapping[str, str] = field(default_factory=dict)
    blocks: str = "blocks"
    optional: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    renewed: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = _as_they_are
    otherwise: Callable[[Mapping[str, Tensor]], Iterable[str]] = _nothing

    def depth(self, theirs: Mapping[str, Tensor]) -> int:
        """Return how many blocks there are."""
        found = (re.match(rf"{re.escape(self.blocks)}\.(\d+)\.", name) for name in theirs)
        return max((int(match[1]) + 1 for match in found if match), default=0)

    def names(self, theirs: Mapping[str, Tensor]) -> dict[str, str]:
        """Return our name for each name that such a model of this depth may have."""
        inner = {
            f"{self.blocks}.{n}.{name}": f"blocks.{n}.{ours}"
            for n in range(max(self.depth(theirs), 1))
            for name, ours in self.inner.items()
        }
        return {**self.outer, **inner}

    def rename(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights under our names, as far as there are any; strange names stay as they are.

        Raises:
            Refused: Their model is not ours.
        """
        if problems := list(self.otherwise(theirs)):
            raise Refused("; ".join(problems))
        theirs = self.renewed(theirs)
        names = self.names(theirs)
        return {names.get(name, name): weight for name, weight in theirs.items() if name not in self.passed}

    def weights(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return all the weights of such a model under our names. The tensors are the same, not copies.

        Raises:
            Refused: Names are missing or strange, or their model is not ours; everything is said at once.
        """
        renewed = self.renewed(theirs)
        names = self.names(renewed)
        may_miss = self.optional | {
            f"{self.blocks}.{n}.{name}" for n in range(self.depth(renewed)) for name in self.optional & set(self.inner)
        }
        missing = [name for name in names if name not in renewed and name not in may_miss]
        stray = [name for name in renewed if name not in names and name not in self.passed]
        problems = [f"{len(missing)} weights of {self.whose} are missing: {_listed(missing)}"] if missing else []
        if stray:
            close = nearest(stray[0], list(names))
            hint = f'; did you mean "{close}"?' if close else ""
            problems.append(f"{len(stray)} weights are not of {self.whose}: {_listed(stray)}{hint}")
        problems += self.otherwise(theirs)
        if problems:
            raise Refused("; ".join(problems))
        return {ours: renewed[name] for name, ours in names.items() if name in renewed}

    def load(self, path: str | Path, model: nn.Module) -> None:
        """Read the weights of a file into a denoiser, whatever the precision they were saved in.

        Args:
            path: Of safetensors or of `torch.save`; nothing in it is run.
            model: It takes all of its weights from the file.

        Raises:
            Refused: The file cannot be read, or does not fit; the model is then as it was.
        """
        theirs = read_weights(path)
        weights, own = self.weights(theirs), model.state_dict()
        called = {ours: name for name, ours in self.names(self.renewed(theirs)).items()}
        problems = [
            f"{called[key]} is {_shape(weights[key])}, the model has {_shape(own[key])}"
            for key in weights
            if key in own and weights[key].shape != own[key].shape
        ]
        problems += [f"the model has no {key}, as {called[key]} would be" for key in weights if key not in own]
        problems += [f"the model has {key}, and {self.whose} has no such weight" for key in own if key not in weights]
        if problems:
            raise Refused(f"{path} does not fit the model: {_listed(problems, '; ')}")
        model.load_state_dict(weights)


def _listed(names: list[str], between: str = ", ") -> str:
    more = f"{between}and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return between.join(names[:SHOWN]) + more


def _shape(weight: Tensor) -> str:
    return " x ".join(map(str, weight.shape)) or "a number"
