"""What a plugin offers, in words that outlive its import: the menu of each plugin, readable without loading it."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from ..spec.base import Place, Spec, summary_of
from ..spec.fingerprint import fingerprint

__all__ = ["Menu", "Offer", "offer_of"]


@dataclass(frozen=True)
class Offer:
    """One part on a menu.

    Attributes:
        kind: Its kind.
        name: Its name.
        rev: Raised when its options or its results change.
        summary: The first line of its docstring.
        options: Fingerprint of its options: names, types, bounds and defaults.
        aliases: Earlier names, each with the version from which on it is refused.
        mutable: Options whose default is a list, a table or a set.
    """

    kind: str
    name: str
    rev: int
    summary: str
    options: str
    aliases: tuple[tuple[str, str], ...] = ()
    mutable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Menu:
    """What is known of a plugin: what it offers, or why it cannot be loaded.

    Attributes:
        offers: Its parts.
        hooks: The hooks that it implements.
        failure: Why it cannot be loaded, empty where it can.
        imports_torch: Whether its import pulls torch in, which makes every start slow.
        seconds: What its import takes.
        timed_out: Whether the failure is that it took too long, which may be otherwise next time.
    """

    offers: tuple[Offer, ...] = ()
    hooks: tuple[str, ...] = ()
    failure: str = ""
    imports_torch: bool = False
    seconds: float = 0.0
    timed_out: bool = False

    def to_json(self) -> bytes:
        """Return JSON that `from_json` reads."""
        return _MENU.dump_json(self)

    @staticmethod
    def from_json(text: bytes) -> Menu:
        """Read what `to_json` wrote.

        Raises:
            ValueError: It is something else.
        """
        return _MENU.validate_json(text, strict=True)


_MENU = TypeAdapter(Menu)


def offer_of(spec: type[Spec]) -> Offer:
    """Write a Spec class on the menu."""
    aliases = tuple((alias.name, alias.removed_in) for alias in spec.aliases)
    mutable = tuple(
        key
        for key, info in spec.model_fields.items()
        if isinstance(info.default, list | dict | set | bytearray) and not any(type(m) is Place for m in info.metadata)
    )
    return Offer(spec.kind, spec.name, spec.rev, summary_of(spec), fingerprint(spec), aliases, mutable)
