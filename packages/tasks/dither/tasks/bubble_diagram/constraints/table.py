"""The table of constraints, as it stands in an experiment file or is made in Python. No torch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from dither.registry.problems import dotted
from dither.registry.spec import Misfit, Options, Path, unfit

from .reading import read
from .rules import Rule

if TYPE_CHECKING:
    from .goal import PlanGoal

__all__ = ["Constraints"]

Names = str | list[str]


class Constraints(Options):
    """What samples must fulfil. Rooms are counted from 0; a type may be a group of types, such as "bedrooms"."""

    rooms: int | list[int] | None = None
    """Number of rooms, or the smallest and the largest: 6, or [5, 7]. By default as in training."""
    types: dict[str, Names] = {}
    """By number of the room: its type, or those it may have: {0 = "LivingRoom", 1 = ["Kitchen", "bedrooms"]}."""
    relations: list[list[int | str | list[str]]] = []
    """How room i lies to room j, i < j: [0, 1, "left-of"], or several: [0, 1, ["above", "none"]]; "near" is any."""
    forbidden: list[list[int | str | list[str]]] = []
    """How room i may not lie to room j: [0, 1, "inside"]."""
    counts: dict[str, int | str | list[int]] = {}
    """Rooms by type: {Kitchen = 1, Bathroom = [2, 3], Balcony = "at least 1", Storage = 0}."""
    adjacent: list[list[Names]] = []
    """Types of which some two rooms are near each other, or lie as said: ["Kitchen", "LivingRoom", "left-of"]."""
    apart: list[list[Names]] = []
    """Types of which no two rooms are near each other, or none lie as said: ["Bathroom", "Kitchen"]."""
    buildable: bool = False
    """Whether there must be boxes that give the diagram, which is decided exactly: samples reach level 4."""
    groups: dict[str, list[str]] = {}
    """Types under a name of yours, for use in place of a type; "bedrooms" is there already."""

    def check(self, slots: int, above: Path = ("task", "constraints")) -> Iterator[Misfit]:
        """Yield everything that is wrong, or else which constraints contradict each other.

        Args:
            slots: Room slots of a diagram.
            above: Keys from the top of the experiment down to this table.
        """
        rules, wrong = read(self, slots)
        yield from wrong
        if wrong or not rules:
            return
        from .contradictions import circles, contradictions, unbuildable

        found = contradictions(rules, slots)
        for core in found:
            alone = f"cannot be met with {slots} room slots"
            yield self._contradiction(core, above, "contradicts", alone)
        rounds = circles(rules)
        for circle in rounds:
            yield self._contradiction(circle, above, "closes a circle, so that no plan can be built, with")
        if not found and not rounds and (core := unbuildable(rules)):
            yield self._contradiction(core, above, "cannot be built together with")

    def _contradiction(self, core: list[Rule], above: Path, verb: str, alone: str = "") -> Misfit:
        last, *others = reversed(core)
        if not others:
            return Misfit(alone, last.path)
        words = " and ".join(self.words(rule) for rule in reversed(others))
        return Misfit(f"{verb} {words}", last.path, (*above, *others[-1].path))

    def words(self, rule: Rule) -> str:
        """Return a constraint as it was written."""
        value: Any = self.model_dump()
        for key in rule.path:
            value = value[key]
        return f"{dotted(rule.path)} = {json.dumps(value, ensure_ascii=False)}"

    def goal(self, slots: int) -> PlanGoal:
        """Return what guides sampling, and says of samples whether they fulfil the constraints.

        Raises:
            ValueError: A constraint is wrong, or some contradict each other.
        """
        unfit(self.check(slots))
        from .goal import PlanGoal

        return PlanGoal(read(self, slots)[0], slots)
