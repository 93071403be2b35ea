"""Renames weights of published models to the parameters of our denoiser; the tensors stay the same.

A `Layout` maps the names of one published model. `get` and `sedd` hold the known ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.files.weight_files import read_weights

__all__ = ["Layout"]

MAX_LISTED = 8


@dataclass(frozen=True)
class Layout:
    """Parameter names of a published model.

    Attributes:
        model_name: With its article, as in "a SEDD".
        outer: Our name for each of their names outside the blocks.
        inner: The same inside a block, without the index of the block.
        blocks: Name of their list of blocks; ours is "blocks".
        optional: Their names, outer or inner, that may be missing.
        ignored: Their names of tensors that are not weights, such as tables computed from options.
        normalize: Converts names and shapes of earlier releases.
        incompatibilities: Yields further reasons why the weights do not fit our model.
    """

    model_name: str
    outer: Mapping[str, str]
    inner: Mapping[str, str] = field(default_factory=dict)
    blocks: str = "blocks"
    optional: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    normalize: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda theirs: (
        theirs
    )
    incompatibilities: Callable[[Mapping[str, Tensor]], Iterable[str]] = lambda theirs: ()

    def depth(self, theirs: Mapping[str, Tensor]) -> int:
        """Return the number of blocks."""
        matches = (
            re.match(rf"{re.escape(self.blocks)}\.(\d+)\.", name) for name in theirs
        )
        return max((int(match[1]) + 1 for match in matches if match), default=0)

    def names(self, theirs: Mapping[str, Tensor]) -> dict[str, str]:
        """Return our name for each parameter of a model of this depth."""
        names = dict(self.outer)
        # Of a model without blocks those of one are reported as missing.
        for n in range(max(self.depth(theirs), 1)):
            for name, ours in self.inner.items():
                names[f"{self.blocks}.{n}.{name}"] = f"blocks.{n}.{ours}"
        return names

    def rename(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename the weights that are there; unknown names stay.

        Raises:
            Refused: The model is incompatible (`misfit`).
        """
        _refuse("misfit", list(self.incompatibilities(theirs)))
        theirs = self.normalize(theirs)
        names = self.names(theirs)
        return {
            names.get(name, name): weight
            for name, weight in theirs.items()
            if name not in self.ignored
        }

    def weights(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Rename a complete set of weights.

        Raises:
            Refused: Names are missing or unknown, or the model is incompatible (`misfit`); lists
                all reasons.
        """
        normalized = self.normalize(theirs)
        names = self.names(normalized)
        reasons = []

        missing = [
            name
            for name in names
            if name not in normalized and not self._is_optional(name)
        ]
        if missing:
            reasons.append(
                f"{len(missing)} weights of {self.model_name} are missing: {_listed(missing)}"
            )

        unknown = [
            name
            for name in normalized
            if name not in names and name not in self.ignored
        ]
        if unknown:
            close = nearest(unknown[0], list(names))
            hint = f'; did you mean "{close}"?' if close else ""
            reasons.append(
                f"{len(unknown)} weights do not belong to {self.model_name}: {_listed(unknown)}{hint}"
            )

        _refuse("misfit", [*reasons, *self.incompatibilities(theirs)])
        return {
            ours: normalized[name] for name, ours in names.items() if name in normalized
        }

    def _is_optional(self, name: str) -> bool:
        inner = re.sub(rf"^{re.escape(self.blocks)}\.\d+\.", "", name)
        return name in self.optional or inner in self.optional & set(self.inner)

    def load(self, path: str | Path, model: nn.Module) -> None:
        """Load a weight file into a denoiser, converting the dtype.

        Args:
            path: A file of safetensors or of `torch.save`; it is never unpickled.
            model: Every one of its parameters must be in the file.

        Raises:
            Refused: The file cannot be read (`unreadable-file`), has other names (`misfit`), other
                shapes (`shape-mismatch`), NaN or inf (`non-finite`); the model is then unchanged.
        """
        theirs = read_weights(path)
        weights = self.weights(theirs)
        expected = model.state_dict()
        # Messages use the names in the file.
        their_names = {
            ours: name for name, ours in self.names(self.normalize(theirs)).items()
        }

        mismatches = []
        for key, weight in weights.items():
            if key not in expected:
                mismatches.append(f"{their_names[key]}: the model has no {key}")
            elif weight.shape != expected[key].shape:
                shapes = (
                    f"shape {_shape(weight)}, the model expects {_shape(expected[key])}"
                )
                mismatches.append(f"{their_names[key]} has {shapes}")
        for key in expected:
            if key not in weights:
                mismatches.append(
                    f"the model has {key}, but {self.model_name} does not"
                )
        if mismatches:
            listed = _listed(mismatches, "; ")
            _refuse("shape-mismatch", [f"{path} does not fit the model: {listed}"])

        # In the model's dtype, which may overflow.
        invalid = [
            their_names[key]
            for key, value in expected.items()
            if not weights[key].to(value.dtype).isfinite().all()
        ]
        if invalid:
            _refuse(
                "non-finite", [f"{path}: weights with NaN or inf: {_listed(invalid)}"]
            )
        model.load_state_dict(weights)


def _refuse(code: str, reasons: list[str]) -> None:
    if reasons:
        raise Refused(Problem("; ".join(reasons), code=code))


def _listed(names: list[str], separator: str = ", ") -> str:
    listed = separator.join(names[:MAX_LISTED])
    if len(names) > MAX_LISTED:
        listed += f"{separator}and {len(names) - MAX_LISTED} more"
    return listed


def _shape(weight: Tensor) -> str:
    return " x ".join(map(str, weight.shape)) or "scalar"
