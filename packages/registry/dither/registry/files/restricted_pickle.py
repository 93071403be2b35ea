"""Read the plain data of a pickle: nothing is imported or called, and reading takes linear time."""

from __future__ import annotations

import io
import pickle
from functools import partial
from typing import Any, ClassVar

__all__ = ["MAX_TUPLE_DEPTH", "Stub", "load_restricted"]

MAX_TUPLE_DEPTH = 12
"""Levels of nested tuples in a pickle."""
MAX_LARGE_INTEGERS = 1000
"""Integers of more than 64 bits in a pickle."""


class Stub:
    """Stand-in for an object in a pickle: name of its class, arguments and state."""

    what: ClassVar[str] = ""
    args: tuple[Any, ...] = ()
    state: Any = None

    def __new__(cls, *args: Any, **_: Any) -> Any:  # noqa: D102
        if cls.what == "_codecs.encode" and args[1:] == ("latin1",):
            return args[0].encode("latin-1")  # bytes in pickle protocols 0 to 2
        stub = super().__new__(cls)
        stub.args = args
        return stub

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, item: Any) -> None: ...  # noqa: D102

    def extend(self, items: Any) -> None: ...  # noqa: D102

    def add(self, item: Any) -> None: ...  # noqa: D102


class _RestrictedUnpickler(pickle._Unpickler):
    """Unpickler that resolves every class and function to a fresh `Stub`.

    The pure Python implementation: the C one allocates its memo up to the largest index that a file
    names.
    """

    dispatch: ClassVar[Any] = dict(pickle._Unpickler.dispatch)
    depths: dict[int, tuple[int, Any]]
    large_integers = 0

    def _load_tuple(self, load: Any) -> None:
        """Limit the depth of tuples: hashing one that holds another twice takes 2^depth steps."""
        load(self)
        top = self.stack[-1]  # type: ignore[attr-defined]
        depth = 1
        for item in top:
            if type(item) is tuple:
                inner, _ = self.depths.get(id(item), (0, None))
                depth = max(depth, inner + 1)
        if depth > MAX_TUPLE_DEPTH:
            raise pickle.UnpicklingError(
                f"tuples are nested more than {MAX_TUPLE_DEPTH} levels deep"
            )
        # Kept alive, so that its id stays its own.
        self.depths[id(top)] = (depth, top)

    def _load_integer(self, load: Any) -> None:
        """Limit large integers: multiples of 2^61 - 1 share one hash, so n keys take n^2 steps."""
        load(self)
        if abs(self.stack[-1]) >= 1 << 64:  # type: ignore[attr-defined]
            self.large_integers += 1
        if self.large_integers > MAX_LARGE_INTEGERS:
            raise pickle.UnpicklingError(
                f"more than {MAX_LARGE_INTEGERS} integers have more than 64 bits"
            )

    def find_class(self, module: str, name: str) -> Any:
        return type("Stub", (Stub,), {"what": f"{module}.{name}"})


for _load, _codes in (
    (
        _RestrictedUnpickler._load_tuple,
        (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
    ),
    (
        _RestrictedUnpickler._load_integer,
        (pickle.INT, pickle.LONG, pickle.LONG1, pickle.LONG4),
    ),
):
    for (_code,) in _codes:
        _RestrictedUnpickler.dispatch[_code] = partial(
            _load, load=pickle._Unpickler.dispatch[_code]
        )


def load_restricted(content: bytes, persistent: bool = False) -> Any:
    """Return the plain data in a pickle, with a `Stub` for every other object.

    Persistent ids become None with `persistent`, and are errors without.
    """
    try:
        unpickler: Any = _RestrictedUnpickler(io.BytesIO(content))
        unpickler.depths = {}
        if persistent:
            unpickler.persistent_load = lambda _: None
        return unpickler.load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise pickle.UnpicklingError(str(error) or type(error).__name__) from None
