"""The catalogue: every part that a plugin offers, by kind and name, and the plugin it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from packaging.version import Version
from pydantic_core import PydanticCustomError

from .kinds import KINDS
from .offers import Offer, offer_of
from .problems import Refused, nearest
from .spec import Spec

__all__ = ["Catalog", "Part", "default_catalog"]

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
REFERENCE = re.compile(r"(?:(?P<plugin>[^/@]+)/)?(?P<name>[^/@]+)(?:@(?P<rev>\d{1,9}))?")


@dataclass(frozen=True)
class Part:
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


class Catalog:
    """Parts by kind and name.

    Two plugins may offer one name: both are kept, and the short name is ambiguous until `prefer` settles it.

    Args:
        prefer: `{"kind:name": plugin}`, which plugin a short name means.
        known: `{"kind:name": how to install the plugin that provides it}`, for parts that are not installed.

    Attributes:
        notes: Lines for the help of an unknown name, such as a plugin that failed to load.
    """

    def __init__(self, prefer: Mapping[str, str] | None = None, known: Mapping[str, str] | None = None) -> None:
        self._parts: dict[tuple[str, str], list[Part]] = {}
        self._versions: dict[str, Version | None] = {}
        self.prefer = dict(prefer or {})
        self.known = dict(known or {})
        self.notes: list[str] = []

    def add(self, plugin: str, specs: Iterable[type[Spec]]) -> None:
        """Take in what a plugin offers, as a whole or not at all, in place of what its menu said.

        Raises:
            ValueError: One of the classes is no part, lacks a name, or is offered twice by the same plugin.
        """
        accepted: dict[tuple[str, str], Part] = {}
        for spec in specs:
            key = self._key(plugin, spec)
            if key in accepted:
                raise ValueError(f'plugin "{plugin}" offers {key[0]} "{key[1]}" twice')
            accepted[key] = Part(offer_of(spec), plugin, lambda spec=spec: spec)  # type: ignore[misc]
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
        self._replace(plugin, {(o.kind, o.name): Part(o, plugin, partial(load, o), loaded=False) for o in offers})

    def _replace(self, plugin: str, parts: Mapping[tuple[str, str], Part]) -> None:
        for key, old in list(self._parts.items()):
            self._parts[key] = [part for part in old if part.plugin != plugin]
        for key, part in parts.items():
            self._parts.setdefault(key, []).append(part)
        self._parts = {key: found for key, found in self._parts.items() if found}

    @staticmethod
    def _key(plugin: str, spec: Any) -> tuple[str, str]:
        if not (isinstance(spec, type) and issubclass(spec, Spec)):
            raise ValueError(f'plugin "{plugin}" offers {spec!r}, which is no Spec class')
        kind, name = getattr(spec, "kind", None), getattr(spec, "name", None)
        if kind not in KINDS or not issubclass(spec, KINDS[kind]):
            raise ValueError(f'{spec.__name__} of plugin "{plugin}" must subclass a kind: {", ".join(KINDS)}')
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f'{spec.__name__} of plugin "{plugin}" needs a kebab-case name, not {name!r}')
        return kind, name

    def parts(self, kind: str | None = None) -> list[Part]:
        """Return all parts (of a kind), in the order of kinds, then names, then plugins."""
        order = list(KINDS)
        wanted = [key for key in self._parts if kind in (None, key[0])]
        wanted.sort(key=lambda key: (order.index(key[0]), key[1]))
        return [part for key in wanted for part in sorted(self._parts[key], key=lambda part: part.plugin)]

    def names(self, kind: str) -> list[str]:
        """Return the names registered for a kind."""
        return sorted(name for k, name in self._parts if k == kind)

    def find(self, kind: str, reference: str) -> Part:
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
        elif not found:
            found = self._renamed(kind, name)
        elif len(found) > 1:
            found = [part for part in found if part.plugin == self.prefer.get(f"{kind}:{name}")] or found
        if not found:
            raise Refused(self._unknown(kind, reference))
        if len(found) > 1:
            forms = ", ".join(sorted(f'"{part.plugin}/{name}"' for part in found))
            raise Refused(f'{len(found)} plugins offer {kind} "{reference}"; write one of {forms}')
        if match["rev"] and int(match["rev"]) != found[0].rev:
            raise Refused(f'{kind} "{reference}" is asked for, but plugin "{found[0].plugin}" has {found[0].pinned}')
        self._not_removed(found[0], name)
        return found[0]

    def _renamed(self, kind: str, name: str) -> list[Part]:
        """Return the parts that were called so earlier."""
        parts = (part for found in self._parts.values() for part in found if part.kind == kind)
        return [part for part in parts if any(alias == name for alias, _ in part.offer.aliases)]

    def _not_removed(self, part: Part, name: str) -> None:
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
            text += f' "{name}" is a {others[0]}, not a {kind}.'
        elif close:
            text += f' Did you mean "{close}"?'
        text += f" Registered: {', '.join(self.names(kind)) or 'none'}"
        return text + "".join(f"\n  note: {note}" for note in self.notes)

    def parse(self, kind: str, value: Any) -> Spec:
        """Read a bare name or a table `{use = "name", ...}` as the Spec it names.

        Raises:
            PydanticCustomError: The value names no part.
            ValidationError: The options do not fit.
        """
        table = {"use": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping) or not isinstance(table.get("use"), str):
            raise PydanticCustomError(
                "no_name",
                'expected the name of a {kind}, or a table with `use = "name"`; registered: {names}',
                {"kind": kind, "names": ", ".join(self.names(kind))},
            )
        try:
            spec = self.find(kind, table["use"]).spec
        except Refused as error:
            raise PydanticCustomError("unknown_part", "{text}", {"text": error.problems[0].message}) from error
        options = {key: inner for key, inner in table.items() if key != "use"}
        name = table["use"].rpartition("/")[2].partition("@")[0]
        for alias in spec.aliases:
            if alias.name == name != spec.name and alias.migrate is not None:
                options = alias.migrate(options)
        return spec.model_validate(options, context={"catalog": self})

    def pin(self, spec: Spec) -> str:
        """Return the pinned name of a parsed Spec, or its short name if it is not registered here."""
        for part in self._parts.get((spec.kind, spec.name), ()):
            if part.loaded and part.spec is type(spec):
                return part.pinned
        return spec.name


@cache
def default_catalog() -> Catalog:
    """Return the parts of every plugin installed here, loaded once."""
    from .plugins import load_plugins

    return load_plugins().catalog
