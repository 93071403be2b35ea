"""The plain data in a pickle, without running anything of it.

A pickle is a program: its own reader imports what the file names and calls it, so a file from elsewhere can do
anything. Here the program is looked at, never obeyed: numbers, text, lists and tables come out as they are, and where
it asks for something to be made (a polygon, a graph) there stands a `Made` that says what and from what. The standard
library takes the file apart into its instructions (`pickletools.genops`).
"""

from __future__ import annotations

import pickletools
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Stub", "UnsafePickleError", "load_restricted"]

_MARK: Final = object()
_VALUES: Final = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8", "UNICODE", "BINUNICODE",
    "SHORT_BINUNICODE", "BINUNICODE8",
))  # fmt: skip
"""Instructions that put their value on the stack."""
_FIXED: Final[dict[str, Any]] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_IDLE: Final = frozenset(("PROTO", "FRAME"))


class UnsafePickleError(ValueError):
    """A file that is no pickle, or one that does what plain data needs not."""


@dataclass(eq=False)
class Stub:
    """What a pickle asks to be made, and is not made here.

    Attributes:
        what: Module and name.
        given: What it is made from.
        state: What is put into it afterwards.
        items: Its entries, if it is a sort of table or list.
    """

    what: str
    given: Any = ()
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)


def load_restricted(content: bytes) -> Any:
    """Return the data in a pickle.

    Raises:
        NotPlain: With what is wrong.
    """
    machine = _Machine()
    try:
        for code, value, _ in pickletools.genops(content):
            if code.name == "STOP":
                return machine.pop()
            machine.take(code.name, value)
    except UnsafePickleError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise UnsafePickleError(f"is no pickle that can be read: {str(error) or type(error).__name__}") from None
    raise UnsafePickleError("is cut off before its end")


class _Machine:
    """A stack and a memory; one instruction after the other."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memory: dict[int, Any] = {}

    def pop(self) -> Any:
        return self.stack.pop()

    def above_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise UnsafePickleError("is no pickle that can be read: a mark is missing")
        above = self.stack[place + 1 :]
        del self.stack[place:]
        return above

    def take(self, name: str, value: Any) -> None:
        if name in _VALUES:
            self.stack.append(value)
        elif name in _FIXED:
            self.stack.append(_FIXED[name])
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
            self.memory[len(self.memory) if name == "MEMOIZE" else int(value)] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            self.stack.append(self.memory[int(value)])
        elif name not in _IDLE:
            method = getattr(self, f"_{name.lower()}", None)
            if method is None:
                raise UnsafePickleError(f"holds the instruction {name}, which plain data does not need")
            method(value)

    def _mark(self, _: Any) -> None:
        self.stack.append(_MARK)

    def _pop(self, _: Any) -> None:
        self.stack.pop()

    def _pop_mark(self, _: Any) -> None:
        self.above_mark()

    def _dup(self, _: Any) -> None:
        self.stack.append(self.stack[-1])

    def _empty_list(self, _: Any) -> None:
        self.stack.append([])

    def _empty_dict(self, _: Any) -> None:
        self.stack.append({})

    def _empty_set(self, _: Any) -> None:
        self.stack.append([])

    def _list(self, _: Any) -> None:
        self.stack.append(self.above_mark())

    def _frozenset(self, _: Any) -> None:
        self.stack.append(self.above_mark())

    def _tuple(self, _: Any) -> None:
        self.stack.append(tuple(self.above_mark()))

    def _tuple1(self, _: Any) -> None:
        self.stack[-1:] = [(self.stack[-1],)]

    def _tuple2(self, _: Any) -> None:
        self.stack[-2:] = [tuple(self.stack[-2:])]

    def _tuple3(self, _: Any) -> None:
        self.stack[-3:] = [tuple(self.stack[-3:])]

    def _dict(self, _: Any) -> None:
        above = self.above_mark()
        self.stack.append(dict(zip(above[::2], above[1::2], strict=True)))

    def _append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def _appends(self, _: Any) -> None:
        self._extend(self.above_mark())

    _additems = _appends

    def _extend(self, values: list[Any]) -> None:
        if isinstance(self.stack[-1], list):
            self.stack[-1].extend(values)

    def _setitem(self, _: Any) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._table()[key] = value

    def _setitems(self, _: Any) -> None:
        above = self.above_mark()
        self._table().update(zip(above[::2], above[1::2], strict=True))

    def _table(self) -> dict[Any, Any]:
        top = self.stack[-1]
        found = top.items if isinstance(top, Stub) else top
        if not isinstance(found, dict):
            raise UnsafePickleError("is no pickle that can be read: entries for what is no table")
        return found

    def _global(self, value: str) -> None:
        self.stack.append(Stub(value.replace(" ", ".", 1)))

    def _stack_global(self, _: Any) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(Stub(f"{module}.{name}"))

    def _reduce(self, _: Any) -> None:
        given, what = self.stack.pop(), _named(self.stack.pop())
        if what == "_codecs.encode" and isinstance(given, tuple) and given[1:] == ("latin1",):
            self.stack.append(given[0].encode("latin-1"))  # how the oldest protocols write bytes
        else:
            self.stack.append(Stub(what, given))

    _newobj = _reduce

    def _newobj_ex(self, _: Any) -> None:
        self.stack.pop()
        self._reduce(None)

    def _build(self, _: Any) -> None:
        state = self.stack.pop()
        if isinstance(self.stack[-1], Stub):
            self.stack[-1].state = state


def _named(what: Any) -> str:
    if not isinstance(what, Stub):
        raise UnsafePickleError("is no pickle that can be read: something is to be made from what has no name")
    # `copyreg._reconstructor(class, ...)` and the like are named after what they make.
    return what.what
