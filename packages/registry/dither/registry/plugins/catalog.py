"""The catalogue: every part that a plugin offers, by kind and name, and the plugin it came from."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from packaging.version import InvalidVersion, Version
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from ..config.errors import Refused, nearest
from ..kinds import KINDS
from ..spec.aliases import migrate_options
from ..spec.base import Alias, Spec, with_article
from .manifest import Offer, offer_of
from .status import describe_exception

__all__ = ["Catalog", "Component", "key_of", "require_aliases"]

REFERENCE = re.compile(r"(?:(?P<plugin>[^/@]+)/)?(?P<name>[^/@]+)(?:@(?P<rev>\d{1,9}))?")


@dataclass(frozen=True)
class Component:
    """One part of a plugin, known by what the menu says of it; its Spec class comes when it is asked for.

    Attributes:
        offer: Its line on the menu.
        plugin: The plugin that offers it.
        load: Returns the Spec class, for which it may import the plugin; raises `Refused` where that fails.
        loaded: Whether the plugin is imported.
    """

    offer: Offer
    plugin: str
    load: Callable[[], type[Spec]] = field(repr=False, compare=False)
    loaded: bool = True

    @property
    def spec(self) -> type[Spec]:
        """The Spec class; its plugin is imported if it is not yet."""
        return self.load()

    @property
    def kind(self) -> str:
        """The kind of part."""
        return self.offer.kind

    @property
    def name(self) -> str:
        """The name in its kind."""
        return self.offer.name

    @property
    def rev(self) -> int:
        """Raised when its options or its results change."""
        return self.offer.rev

    @property
    def summary(self) -> str:
        """The first line of its docstring."""
        return self.offer.summary

    @property
    def pinned(self) -> str:
        """The name that means this part and no other: `plugin/name@rev`."""
        return f"{self.plugin}/{self.name}@{self.rev}"

    @property
    def title(self) -> str:
        """The part and whose it is, for a message."""
        return f'{self.kind} "{self.name}" of plugin "{self.plugin}"'


class Catalog:
    """Parts by kind and name.

    Two plugins may offer one name: both are kept, and the short name is ambiguous until `prefer` settles it.

    Args:
        prefer: `{"kind:name": plugin}`, which plugin a short name means.
        known: `{"kind:name": how to install the plugin that provides it}`, for parts that are not installed.

    Attributes:
        notes: Lines for the help of an unknown name, such as a plugin that failed to load.
        absent: Plugins that may not be used, each with the reason.
    """

    def __init__(self, prefer: Mapping[str, str] | None = None, known: Mapping[str, str] | None = None) -> None:
        self._parts: dict[tuple[str, str], list[Component]] = {}
        self._versions: dict[str, Version | None] = {}
        self.prefer = dict(prefer or {})
        self.known = dict(known or {})
        self.notes: list[str] = []
        self.absent: dict[str, str] = {}

    def add(self, plugin: str, specs: Iterable[type[Spec]]) -> None:
        """Take in what a plugin offers, as a whole or not at all, in place of what its menu said.

        Raises:
            ValueError: One of the classes is no part, lacks a name or a method, is offered twice by the same plugin, or
                has an earlier name that cannot be; PydanticUserError: an option is of no type that can be checked.
        """
        offered = [(key_of(plugin, spec), spec) for spec in specs]
        require_aliases([spec for _, spec in offered])
        said = {(p.kind, p.name): p.offer for p in self.parts() if p.plugin == plugin and not p.loaded}
        accepted: dict[tuple[str, str], Component] = {}
        for key, spec in offered:
            if key in accepted:
                raise ValueError(f'plugin "{plugin}" offers {key[0]} "{key[1]}" twice')
            if key not in said:  # else the menu was written from this very source
                spec.model_rebuild()  # which finds types that cannot be checked
            offer = said.get(key) or offer_of(spec)
            accepted[key] = Component(offer, plugin, lambda spec=spec: spec)  # type: ignore[misc]
        self._replace(plugin, accepted)

    def offer(
        self, plugin: str, offers: Iterable[Offer], activate: Callable[[], None], version: Version | None = None
    ) -> None:
        """Take in the menu of a plugin that is not imported.

        Args:
            plugin: Its name.
            offers: Its menu.
            activate: Imports it, upon which it adds its Spec classes here; raises `Refused` where that fails.
            version: Of its distribution, which decides how long earlier names are accepted.
        """

        def load(offer: Offer) -> type[Spec]:
            activate()
            for part in self._parts.get((offer.kind, offer.name), ()):
                if part.plugin == plugin and part.loaded:
                    return part.spec
            raise Refused(f'plugin "{plugin}" does not offer {offer.kind} "{offer.name}" any more')

        self._versions[plugin] = version
        self._replace(plugin, {(o.kind, o.name): Component(o, plugin, partial(load, o), loaded=False) for o in offers})

    def _replace(self, plugin: str, parts: Mapping[tuple[str, str], Component]) -> None:
        for key, old in list(self._parts.items()):
            self._parts[key] = [part for part in old if part.plugin != plugin]
        for key, part in parts.items():
            self._parts.setdefault(key, []).append(part)
        self._parts = {key: found for key, found in self._parts.items() if found}

    def parts(self, kind: str | None = None) -> list[Component]:
        """Return all parts (of a kind), in the order of kinds, then names, then plugins."""
        order = list(KINDS)
        wanted = [key for key in self._parts if kind in (None, key[0])]
        wanted.sort(key=lambda key: (order.index(key[0]), key[1]))
        return [part for key in wanted for part in sorted(self._parts[key], key=lambda part: part.plugin)]

    def names(self, kind: str) -> list[str]:
        """Return the names registered for a kind."""
        return sorted(name for k, name in self._parts if k == kind)

    def find(self, kind: str, reference: str) -> Component:
        """Return the part that `name`, `plugin/name` or `plugin/name@rev` means, by its present or an earlier name.

        Raises:
            Refused: No part or more than one part has the name; the message says what is meant or allowed.
        """
        match = REFERENCE.fullmatch(reference)
        if match is None:
            raise Refused(self._unknown(kind, reference))
        name, plugin = match["name"], match["plugin"]
        found = self._parts.get((kind, name), [])
        if plugin:
            found = [part for part in found + self._renamed(kind, name) if part.plugin == plugin]
        else:
            found = self._preferred(kind, name, found or self._renamed(kind, name))
        if not found:
            raise Refused(self._unknown(kind, reference))
        if len(found) > 1:
            forms = ", ".join(sorted(f'"{part.plugin}/{name}"' for part in found))
            raise Refused(f'{len(found)} plugins offer {kind} "{reference}"; write one of {forms}')
        if match["rev"] and int(match["rev"]) != found[0].rev:
            raise Refused(f'{kind} "{reference}" is asked for, but plugin "{found[0].plugin}" has {found[0].pinned}')
        self._not_removed(found[0], name)
        return found[0]

    def _preferred(self, kind: str, name: str, found: list[Component]) -> list[Component]:
        """Return the part that registry.toml prefers, where it says so of a name that is there."""
        wanted = self.prefer.get(f"{kind}:{name}")
        if wanted is None or not found:
            return found
        chosen = [part for part in found if part.plugin == wanted]
        if not chosen:
            others = ", ".join(sorted(f'"{part.plugin}"' for part in found))
            state = f"cannot be used: {self.absent[wanted]}" if wanted in self.absent else "offers none"
            text = f'registry.toml prefers {kind} "{name}" of plugin "{wanted}", which {state}'
            raise Refused(f"{text}; it is there from {others}")
        return chosen

    def _renamed(self, kind: str, name: str) -> list[Component]:
        """Return the parts that were called so earlier."""
        parts = (part for found in self._parts.values() for part in found if part.kind == kind)
        return [part for part in parts if any(alias == name for alias, _ in part.offer.aliases)]

    def _not_removed(self, part: Component, name: str) -> None:
        version = self._versions.get(part.plugin)
        for alias, removed_in in part.offer.aliases:
            if alias == name != part.name and version is not None and version >= Version(removed_in):
                raise Refused(
                    f'{part.kind} "{alias}" is called "{part.name}" now; '
                    f"the earlier name was removed in version {removed_in} of {part.plugin}"
                )

    def _unknown(self, kind: str, reference: str) -> str:
        name = reference.rpartition("/")[2].partition("@")[0]
        text = f'no {kind} is named "{reference}".'
        others = [k for k, n in self._parts if n == name and k != kind]
        close = nearest(name, self.names(kind))
        if f"{kind}:{name}" in self.known:
            text += f" It comes with {self.known[f'{kind}:{name}']}."
        elif others:
            text += f' "{name}" is {with_article(others[0])}, not {with_article(kind)}.'
        elif close:
            text += f' Did you mean "{close}"?'
        text += f" Registered: {', '.join(self.names(kind)) or 'none'}"
        return text + "".join(f"\n  note: {note}" for note in self.notes)

    def parse(self, kind: str, value: Any) -> Spec:
        """Read a bare name or a table `{use = "name", ...}` as the Spec it names.

        Raises:
            PydanticCustomError: The value names no part, or the part itself fails.
            ValidationError: The options do not fit.
        """
        table = {"use": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping) or not isinstance(table.get("use"), str):
            raise PydanticCustomError(
                "no_name",
                'expected the name of {kind}, or a table with `use = "name"`; registered: {names}',
                {"kind": with_article(kind), "names": ", ".join(self.names(kind)) or "none"},
            )
        try:
            part = self.find(kind, table["use"])
            spec = part.spec
        except Refused as error:
            raise PydanticCustomError("unknown_part", "{text}", {"text": error.problems[0].message}) from error
        options = {key: inner for key, inner in table.items() if key != "use"}
        name = table["use"].rpartition("/")[2].partition("@")[0]
        try:
            return spec.model_validate(migrate_options(spec, name, options), context={"catalog": self})
        except (ValidationError, PydanticCustomError, Refused):
            raise
        except (Exception, SystemExit) as error:  # the code of a plugin: its migrate, its validators
            text = f"{part.title} failed: {describe_exception(error)}"
            raise PydanticCustomError("failed_part", "{text}", {"text": text}) from error

    def part_of(self, spec: Spec) -> Component | None:
        """Return the part that a parsed Spec is one of, if it is registered here."""
        found = self._parts.get((spec.kind, spec.name), ())
        return next((part for part in found if part.loaded and part.spec is type(spec)), None)

    def pin(self, spec: Spec) -> str:
        """Return the pinned name of a parsed Spec, or its short name if it is not registered here."""
        part = self.part_of(spec)
        return spec.name if part is None else part.pinned


NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def key_of(plugin: str, spec: Any) -> tuple[str, str]:
    """Return kind and name of what a plugin offers.

    Raises:
        ValueError: It is no part, or lacks a name or a method.
    """
    if not (isinstance(spec, type) and issubclass(spec, Spec)):
        raise ValueError(f'plugin "{plugin}" offers {spec!r}, which is no Spec class')
    kind, name = getattr(spec, "kind", None), getattr(spec, "name", None)
    if kind not in KINDS or not issubclass(spec, KINDS[kind]):
        raise ValueError(f'{spec.__name__} of plugin "{plugin}" must subclass a kind: {", ".join(KINDS)}')
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f'{spec.__name__} of plugin "{plugin}" needs a kebab-case name, not {name!r}')
    if inspect.isabstract(spec):
        missing = ", ".join(sorted(spec.__abstractmethods__))
        raise ValueError(f'{spec.__name__} of plugin "{plugin}" has no method {missing}')
    return kind, name


def require_aliases(specs: Collection[type[Spec]]) -> None:
    """Look at the earlier names of the parts of one plugin.

    Raises:
        ValueError: One is no name, is taken, or ends with no version.
    """
    taken = {(spec.kind, spec.name) for spec in specs}
    for spec in specs:
        for alias in spec.aliases:
            if not isinstance(alias, Alias) or not isinstance(alias.name, str) or not NAME.fullmatch(alias.name):
                raise ValueError(f'{spec.kind} "{spec.name}" needs kebab-case earlier names, not {alias!r}')
            if (spec.kind, alias.name) in taken:
                raise ValueError(f'{spec.kind} "{spec.name}": the earlier name "{alias.name}" is taken')
            taken.add((spec.kind, alias.name))
            try:
                Version(alias.removed_in)
            except (InvalidVersion, TypeError):
                ends = f'"{alias.name}" ends with {alias.removed_in!r}, which is no version'
                raise ValueError(f'{spec.kind} "{spec.name}": {ends}') from None
