"""Parts of the menu that go by the groups of columns of a feature space. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from dither.registry import FeatureSpace, Group, Misfit, Space
from dither.registry.costs import Cost
from dither.registry.kinds import FEATURES, HeadSpec
from dither.registry.problems import nearest
from dither.registry.spec import Path

if TYPE_CHECKING:
    from .heads import SoftplusHead

__all__ = ["Softplus", "columns_without", "misfit_groups"]


def columns_without(space: FeatureSpace, groups: Sequence[str]) -> list[int]:
    """Return the columns that are in none of these groups."""
    gone = {column for group in space.groups if group.name in groups for column in range(group.start, group.stop)}
    return [column for column in range(space.width) if column not in gone]


def misfit_groups(space: Space, groups: Sequence[str], path: Path) -> Iterator[Misfit]:
    """Yield the names that no group of columns has."""
    if isinstance(space, FeatureSpace):
        there = [group.name for group in space.groups]
        for number, name in enumerate(groups):
            if name not in there:
                close = nearest(name, there)
                what = f'no group of columns is named "{name}"; groups: {", ".join(there) or "none"}'
                where = (*path, number) if len(groups) > 1 else path
                yield Misfit(what, where, ("task",), f'did you mean "{close}"?' if close else None)


class Softplus(HeadSpec):
    """Numbers above 0, log(1 + exp(linear map)), for all columns or for one group; then the others are 0 (GET).

    With a group, nothing else is predicted: hide nothing else.
    """

    name: ClassVar[str] = "softplus"
    serves = FEATURES
    group: str | None = None
    """The columns that are predicted, such as "expression". By default all."""
    zero: bool = False
    """Whether the map starts at zero."""
    bias: bool = True
    """Whether the map has a bias."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Yield a group that there is not, and samples with numbers below 0."""
        yield from super().check(space, width)
        if isinstance(space, FeatureSpace) and space.standardised:
            what = (
                'head "softplus" gives numbers above 0 only, and standardised samples are below 0 where below the mean'
            )
            yield Misfit(what, related=("task", "standardise"), help="set task.standardise = false")
        if self.group is not None:
            yield from misfit_groups(space, [self.group], ("group",))

    def cost(self, space: Space, width: int) -> Cost:
        """What the map takes; what goes in is kept, and what comes out of the map."""
        assert isinstance(space, FeatureSpace)
        group = self._group(space)
        out = space.width if group is None else group.stop - group.start
        return Cost(out * (width + self.bias), space.length * (width + out), space.length * (space.width + out))

    def build(self, space: Space, width: int) -> SoftplusHead:
        """Return the map."""
        from .heads import SoftplusHead

        assert isinstance(space, FeatureSpace)
        return SoftplusHead(space.width, width, self._group(space), zero=self.zero, bias=self.bias)

    def _group(self, space: FeatureSpace) -> Group | None:
        return next((group for group in space.groups if group.name == self.group), None)
