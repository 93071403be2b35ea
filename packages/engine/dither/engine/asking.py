"""What samples are asked to be: under which conditions, and how strongly they are led by one. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry.facts import ModelFacts
from dither.registry.problems import nearest
from dither.registry.serving import tells_not
from dither.registry.spaces import Condition, Space
from dither.registry.spec import Misfit, Options

if TYPE_CHECKING:
    from .settings import Sample

__all__ = ["Guidance", "labels_of", "misfit_asked"]


class Guidance(Options):
    """Classifier-free guidance: the model is asked twice, with a condition and without, and led by the difference."""

    condition: str = "cell"
    """The condition, by its name; the model has to be trained without it at times."""
    weight: float = Field(2.0, ge=0, le=1000)
    """The model's word is what it says without the condition, plus so many times the difference that the condition
    makes: 0 leaves it out, 1 is no guidance, more exaggerate. Of tokens, it is taken of log-probabilities."""


def misfit_asked(sample: Sample, space: Space, model: ModelFacts) -> Iterator[Misfit]:
    """Yield conditions that the task does not tell, labels that there are not, and guidance that cannot be."""
    if sample.guidance is not None:
        name = sample.guidance.condition
        path = ("sample", "guidance", "condition")
        untold = list(tells_not(space.conditions, name, path, labels=True))
        yield from untold
        if not untold and name not in model.left_out:
            message = f'guidance needs a model that is trained without "{name}" at times, and this one never is'
            part = f'{{ use = "label", of = "{name}", dropout = 0.1 }}'
            yield Misfit(message, path, ("model",), f'model.condition = {{ use = "sum", parts = ["level", {part}] }}')
    told = {condition.name: condition for condition in space.conditions}
    for name, label in sample.cond.items():
        untold = list(tells_not(space.conditions, name, ("sample", "cond", name), labels=True))
        yield from untold or _unknown(told[name], label)


def _unknown(condition: Condition, label: int | str) -> Iterator[Misfit]:
    """Yield if there is no such label."""
    if _number(condition, label) is not None:
        return
    names = ", ".join(condition.labels)
    close = nearest(str(label), condition.labels)
    message = f'"{condition.name}" has no label {label!r}; its labels are 0 to {(condition.size or 1) - 1}'
    message += f": {names}" if names else ", without names"
    hint = f'did you mean "{close}"?' if close else None
    yield Misfit(message, ("sample", "cond", condition.name), ("task",), hint)


def labels_of(sample: Sample, space: Space) -> Mapping[str, int]:
    """Return the labels that are asked for as numbers, by condition."""
    told = {condition.name: condition for condition in space.conditions}
    numbers = {name: _number(told[name], label) for name, label in sample.cond.items() if name in told}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(condition: Condition, label: int | str) -> int | None:
    if isinstance(label, str):
        return condition.labels.index(label) if label in condition.labels else None
    return label if -1 <= label < (condition.size or 0) else None
