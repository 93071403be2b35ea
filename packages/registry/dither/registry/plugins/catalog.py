"""The catalogue of components: which plugin registered what, by kind and name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isabstract
from itertools import chain
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from ..config.errors import Refused, nearest
from ..kinds import KINDS
from ..spec.base import Spec, summary_of, with_article
from .status import describe_exception

__all__ = ["Catalog", "Component", "bare_name"]

NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
REFERENCE = re.compile(
    r"(?:(?P<plugin>[^/@]+)/)?(?P<name>[^/@]+)(?:@(?P<rev>\d{1,9}))?"
)
NOTHING: Mapping[str, Any] = MappingProxyType({})


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

    Attributes:
        owners: `{"kind:name": plugins}` of registry.toml: a short name means the component of one
            of these, even if other plugins register it, too.
        provider: Given kind and name of an unknown component, returns who has it, or nothing.
        load: Called before a lookup with a plugin's name, or None for all plugins.
        used: Plugins of which a component was parsed.
        notes: Lines for the help of an unknown name.
    """

    def __init__(self, owners: Mapping[str, Sequence[str]] = NOTHING) -> None:
        self._components: dict[tuple[str, str], list[Component]] = {}
        self.owners = dict(owners)
        self.provider: Callable[[str, str], str] = lambda kind, name: ""
        self.load: Callable[[str | None], object] = lambda plugin: None
        self.used: set[str] = set()
        self.notes: list[str] = []

    def add(self, plugin: str, specs: Iterable[type[Spec]]) -> None:
        """Add all components of a plugin, or none; they replace those it added before.

        Raises ValueError for a class that is not a complete component, PydanticUserError for a type
        without validation.
        """
        added: dict[tuple[str, str], Component] = {}
        for spec in specs:
            kind, name = key = _key(plugin, spec)
            if key in added:
                raise ValueError(f'plugin "{plugin}" registers {kind} "{name}" twice')
            # Building the validator finds invalid types. That takes time, and was done for the
            # components in registry.toml by `dither registry sync`.
            if plugin not in self.owners.get(f"{kind}:{name}", ()):
                spec.model_rebuild()
            added[key] = Component(spec, plugin)

        # Only now, so that an error above leaves the catalogue as it was.
        for key in list(self._components):
            others = [
                part for part in self._components.pop(key) if part.plugin != plugin
            ]
            if others:
                self._components[key] = others
        for key, component in added.items():
            self._components.setdefault(key, []).append(component)

    def parts(self, kind: str | None = None) -> list[Component]:
        """Return all components (of a kind) in the order of kinds, then names, then plugins."""
        self.load(None)
        order = list(KINDS)
        parts = [part for part in self._all() if kind in (None, part.kind)]
        return sorted(
            parts, key=lambda part: (order.index(part.kind), part.name, part.plugin)
        )

    def _all(self) -> Iterable[Component]:
        return chain.from_iterable(self._components.values())

    def count(self, plugin: str) -> int:
        """Return the number of components of a loaded plugin."""
        return [part.plugin for part in self._all()].count(plugin)

    def names(self, kind: str) -> list[str]:
        """Return the sorted names of a kind."""
        self.load(None)
        return sorted(name for k, name in self._components if k == kind)

    def find(self, kind: str, reference: str) -> Component:
        """Return the component of a kind that `name`, `plugin/name` or `plugin/name@rev` refers to.

        Raises `Refused` if there is none, or more than one.
        """
        match = REFERENCE.fullmatch(reference)
        if match is None:
            raise self._unknown(kind, reference)
        name = match["name"]
        parts = self._candidates(kind, name, match["plugin"])
        if not parts:
            raise self._unknown(kind, reference)
        if len(parts) > 1:
            forms = ", ".join(sorted(f'"{part.plugin}/{name}"' for part in parts))
            text = f'{len(parts)} plugins register {kind} "{reference}"; write one of {forms}'
            raise Refused(text, code="ambiguous-component")
        (component,) = parts
        # A run is continued with the revision that it began with, or not at all.
        if match["rev"] and int(match["rev"]) != component.rev:
            present = f'plugin "{component.plugin}" has {component.pinned}'
            text = f'{kind} "{reference}" is required, but {present}'
            raise Refused(text, code="revision-mismatch")
        return component

    def _candidates(self, kind: str, name: str, plugin: str | None) -> list[Component]:
        # Only the owners are imported, which takes less time than all plugins.
        plugins = [plugin] if plugin else self.owners.get(f"{kind}:{name}", ())
        for owner in plugins:
            self.load(owner)
        parts = self._components.get((kind, name), [])
        # A newly installed plugin must not take over a name that registry.toml lists.
        owned = [part for part in parts if part.plugin in plugins]
        if owned or plugin:
            return owned
        # registry.toml does not list it: a new plugin may register it.
        self.load(None)
        return self._components.get((kind, name), [])

    def _unknown(self, kind: str, reference: str) -> Refused:
        # The message lists the names of all plugins.
        self.load(None)
        name = bare_name(reference)
        if provider := self.provider(kind, name):
            text = f'{kind} "{name}" is provided by {provider}'
            return Refused(text, code="unknown-component")
        text = f'unknown {kind} "{reference}".'
        other_kinds = [k for k, n in self._components if n == name and k != kind]
        close = nearest(name, self.names(kind))
        if other_kinds:
            text += f' "{name}" is {with_article(other_kinds[0])}, not {with_article(kind)}.'
        elif close:
            text += f' Did you mean "{close}"?'
        text += f" Registered: {', '.join(self.names(kind)) or 'none'}"
        for note in self.notes:
            text += f"\n  note: {note}"
        return Refused(text, code="unknown-component")

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
                {
                    "kind": with_article(kind),
                    "names": ", ".join(self.names(kind)) or "none",
                },
            )
        try:
            part = self.find(kind, table["use"])
        except Refused as error:
            (problem,) = error.problems
            # pydantic adds the place of the value, and collects the other mistakes.
            context = {"text": problem.message, "code": problem.code}
            raise PydanticCustomError("unknown_part", "{text}", context) from error

        self.used.add(part.plugin)
        options = {key: option for key, option in table.items() if key != "use"}
        try:
            return part.spec.model_validate(options, context={"catalog": self})
        except (ValidationError, PydanticCustomError, Refused):
            raise
        # SystemExit as well: a plugin that calls sys.exit must not end the command.
        except (Exception, SystemExit) as error:
            # Validators are code of the plugin.
            text = f"{part.title} failed: {describe_exception(error)}"
            raise PydanticCustomError(
                "failed_part", "{text}", {"text": text}
            ) from error

    def part_of(self, spec: Spec) -> Component | None:
        """Return the component that a parsed Spec is an instance of, if it is registered."""
        for part in self._components.get((spec.kind, spec.name), []):
            if part.spec is type(spec):
                return part
        return None

    def pin(self, spec: Spec) -> str:
        """Return the pinned name of a parsed Spec, or its short name if it is not registered."""
        part = self.part_of(spec)
        return spec.name if part is None else part.pinned


def bare_name(reference: str) -> str:
    """Return NAME of "PLUGIN/NAME@REVISION"."""
    return reference.rpartition("/")[2].partition("@")[0]


def _key(plugin: str, spec: Any) -> tuple[str, str]:
    """Return kind and name of a registered class; raise ValueError if it is not a component."""
    if not (isinstance(spec, type) and issubclass(spec, Spec)):
        raise ValueError(
            f'plugin "{plugin}" registers {spec!r}, which is not a Spec class'
        )
    title = f'{spec.__name__} of plugin "{plugin}"'
    if spec.kind not in KINDS or not issubclass(spec, KINDS[spec.kind]):
        raise ValueError(f"{title} must subclass a kind: {', '.join(KINDS)}")
    if not isinstance(spec.name, str) or not NAME.fullmatch(spec.name):
        raise ValueError(f"{title} requires a kebab-case name, not {spec.name!r}")
    # True is an int, too.
    if type(spec.rev) is not int or spec.rev < 1:
        raise ValueError(
            f"{title} requires an integer rev of at least 1, not {spec.rev!r}"
        )
    if isabstract(spec):
        raise ValueError(
            f"{title} lacks the method {', '.join(sorted(spec.__abstractmethods__))}"
        )
    return spec.kind, spec.name
