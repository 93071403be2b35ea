"""The catalogue of components: which plugin registered what, by kind and name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from ..config.errors import Refused, nearest
from ..kinds import KINDS
from ..spec.base import Alias, Spec, summary_of, with_article
from .discovery import describe_exception

__all__ = ["Catalog", "Component"]

EMPTY: Mapping[str, str] = MappingProxyType({})
REFERENCE = re.compile(r"(?:(?P<plugin>[^/@]+)/)?(?P<name>[^/@]+)(?:@(?P<rev>\d{1,9}))?")


@dataclass(frozen=True)
class Component:
    """A registered Spec class and the plugin it comes from."""

    spec: type[Spec]
    plugin: str

    @property
    def kind(self) -> str:
        return self.spec.kind

    @property
    def name(self) -> str:
        """The name, unique in its kind and plugin."""
        return self.spec.name

    @property
    def rev(self) -> int:
        """The revision, raised when options or results change."""
        return self.spec.rev

    @property
    def summary(self) -> str:
        return summary_of(self.spec)

    @property
    def pinned(self) -> str:
        """The unambiguous name `plugin/name@rev`."""
        return f"{self.plugin}/{self.name}@{self.rev}"

    @property
    def title(self) -> str:
        """Kind, name and plugin, for messages."""
        return f'{self.kind} "{self.name}" of plugin "{self.plugin}"'


class Catalog:
    """Components by kind and name.

    If several plugins register one name, the short name means the plugin in `prefer`, else in
    `owners`, both `{"kind:name": plugin}`, else it is ambiguous; `known` is `{"kind:name": how to
    install it}`. `load` is called before a lookup with a plugin's name, or None for all. `used` are
    plugins of which a component was parsed, `notes` lines for the help of an unknown name,
    `unavailable` plugins that cannot be used, each with the reason.
    """

    def __init__(
        self,
        prefer: Mapping[str, str] = EMPTY,
        known: Mapping[str, str] = EMPTY,
        owners: Mapping[str, str] = EMPTY,
    ) -> None:
        self._components: dict[tuple[str, str], list[Component]] = {}
        self.prefer = dict(prefer)
        self.known = dict(known)
        self.owners = dict(owners)
        self.load: Callable[[str | None], object] = lambda plugin: None
        self.used: set[str] = set()
        self.notes: list[str] = []
        self.unavailable: dict[str, str] = {}

    def add(self, plugin: str, specs: Iterable[type[Spec]]) -> None:
        """Add all components of a plugin, or none; they replace those it added before.

        Raises ValueError for a class that is not a complete component, PydanticUserError for a type
        without validation.
        """
        added: dict[tuple[str, str], Component] = {}
        registered = list(islice(specs, MAX_COMPONENTS + 1))
        if len(registered) > MAX_COMPONENTS:
            raise ValueError(f'plugin "{plugin}" registers more than {MAX_COMPONENTS:,} components')
        for spec in registered:
            key = _key(plugin, spec)
            if key in added:
                raise ValueError(f'plugin "{plugin}" registers {key[0]} "{key[1]}" twice')
            added[key] = Component(spec, plugin)
        for (kind, name), component in added.items():
            if (
                self.owners.get(f"{kind}:{name}") != plugin
            ):  # else `dither registry sync` has checked it
                component.spec.model_rebuild()
        kept = {
            key: [old for old in olds if old.plugin != plugin]
            for key, olds in self._components.items()
        }
        for key, component in added.items():
            kept.setdefault(key, []).append(component)
        self._components = {key: found for key, found in kept.items() if found}

    def parts(self, kind: str | None = None) -> list[Component]:
        """Return all components (of a kind) in the order of kinds, then names, then plugins."""
        self.load(None)
        order = list(KINDS)
        keys = sorted(
            (k for k in self._components if kind in (None, k[0])),
            key=lambda k: (order.index(k[0]), k[1]),
        )
        return [
            part
            for key in keys
            for part in sorted(self._components[key], key=lambda part: part.plugin)
        ]

    def count(self, plugin: str) -> int:
        return sum(part.plugin == plugin for found in self._components.values() for part in found)

    def names(self, kind: str) -> list[str]:
        self.load(None)
        return sorted(name for k, name in self._components if k == kind)

    def find(self, kind: str, reference: str) -> Component:
        """Return the component that `name`, `plugin/name` or `plugin/name@rev` refers to, or raise `Refused`."""
        match = REFERENCE.fullmatch(reference)
        if match is None:
            raise self._unknown(kind, reference)
        name = match["name"]
        plugin = match["plugin"]
        found = self._from_plugin(kind, name, plugin) if plugin else self._by_short_name(kind, name)
        if not found:
            raise self._unknown(kind, reference)
        if len(found) > 1:
            forms = ", ".join(sorted(f'"{part.plugin}/{name}"' for part in found))
            text = f'{len(found)} plugins register {kind} "{reference}"; write one of {forms}'
            raise Refused(text, code="ambiguous-component")
        (component,) = found
        if match["rev"] and int(match["rev"]) != component.rev:
            text = f'{kind} "{reference}" is required, but plugin "{component.plugin}" has {component.pinned}'
            raise Refused(text, code="revision-mismatch")
        return component

    def _from_plugin(self, kind: str, name: str, plugin: str) -> list[Component]:
        self.load(plugin)
        found = self._components.get((kind, name), []) + self._formerly_called(kind, name)
        return [part for part in found if part.plugin == plugin]

    def _by_short_name(self, kind: str, name: str) -> list[Component]:
        preferred, owner = (names.get(f"{kind}:{name}") for names in (self.prefer, self.owners))
        for plugin in (preferred, None if preferred else owner):
            if plugin:
                self.load(plugin)
                if found := [
                    part for part in self._components.get((kind, name), []) if part.plugin == plugin
                ]:
                    return found
        self.load(None)
        found = self._components.get((kind, name)) or self._formerly_called(kind, name)
        if preferred is None or not found:
            return found
        others = ", ".join(sorted(f'"{part.plugin}"' for part in found))
        reason = self.unavailable.get(preferred)
        state = f"cannot be used: {reason}" if reason else "does not register it"
        text = f'registry.toml prefers {kind} "{name}" of plugin "{preferred}", which {state}; {others} has it'
        raise Refused(text, code="unknown-component")

    def _formerly_called(self, kind: str, name: str) -> list[Component]:
        parts = (part for found in self._components.values() for part in found if part.kind == kind)
        return [part for part in parts if any(alias.name == name for alias in part.spec.aliases)]

    def _unknown(self, kind: str, reference: str) -> Refused:
        self.load(None)
        name = reference.rpartition("/")[2].partition("@")[0]
        text = f'unknown {kind} "{reference}".'
        others = [k for k, n in self._components if n == name and k != kind]
        close = nearest(name, self.names(kind))
        if f"{kind}:{name}" in self.known:
            text += f" It is part of {self.known[f'{kind}:{name}']}."
        elif others:
            text += f' "{name}" is {with_article(others[0])}, not {with_article(kind)}.'
        elif close:
            text += f' Did you mean "{close}"?'
        text += f" Registered: {', '.join(self.names(kind)) or 'none'}"
        return Refused(
            text + "".join(f"\n  note: {note}" for note in self.notes), code="unknown-component"
        )

    def parse(self, kind: str, value: Any) -> Spec:
        """Validate a bare name or a table `{use = "name", ...}` as the Spec it names.

        Raises PydanticCustomError if it names no component or the plugin fails, ValidationError for
        its options.
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
        except Refused as error:
            (problem,) = error.problems
            context = {"text": problem.message, "code": problem.code}
            raise PydanticCustomError("unknown_part", "{text}", context) from error
        self.used.add(part.plugin)
        options = {key: inner for key, inner in table.items() if key != "use"}
        name = table["use"].rpartition("/")[2].partition("@")[0]
        try:
            for alias in part.spec.aliases:
                if alias.name == name != part.name and alias.migrate is not None:
                    options = dict(alias.migrate(deepcopy(options)))
            return part.spec.model_validate(options, context={"catalog": self})
        except (ValidationError, PydanticCustomError, Refused):
            raise
        except (
            Exception,
            SystemExit,
        ) as error:  # raised by the plugin: its migrate, its validators
            text = f"{part.title} failed: {describe_exception(error)}"
            raise PydanticCustomError("failed_part", "{text}", {"text": text}) from error

    def part_of(self, spec: Spec) -> Component | None:
        """Return the component that a parsed Spec is an instance of, if it is registered here."""
        parts = self._components.get((spec.kind, spec.name), [])
        return next((part for part in parts if part.spec is type(spec)), None)

    def pin(self, spec: Spec) -> str:
        """Return the pinned name of a parsed Spec, or its short name if it is not registered here."""
        part = self.part_of(spec)
        return spec.name if part is None else part.pinned


MAX_COMPONENTS = 10_000
"""Components that a plugin may register."""
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def _key(plugin: str, spec: Any) -> tuple[str, str]:
    """Return kind and name of a class that a plugin registers; raise ValueError if it is not a component."""
    if not (isinstance(spec, type) and issubclass(spec, Spec)):
        raise ValueError(f'plugin "{plugin}" registers {spec!r}, which is not a Spec class')
    kind = getattr(spec, "kind", None)
    name = getattr(spec, "name", None)
    title = f'{spec.__name__} of plugin "{plugin}"'
    if kind not in KINDS or not issubclass(spec, KINDS[kind]):
        raise ValueError(f"{title} must subclass a kind: {', '.join(KINDS)}")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"{title} requires a kebab-case name, not {name!r}")
    if type(spec.rev) is not int or spec.rev < 1:
        raise ValueError(f"{title} requires an integer rev of at least 1, not {spec.rev!r}")
    if inspect.isabstract(spec):
        raise ValueError(f"{title} lacks the method {', '.join(sorted(spec.__abstractmethods__))}")
    if not all(isinstance(alias, Alias) for alias in spec.aliases):
        raise ValueError(f"{title} requires earlier names as Alias objects, not {spec.aliases!r}")
    return kind, name
