"""Where ranks leave word for each other, after a start that may not be the first.

torchrun keeps one store for all its starts. What a start that ended badly wrote there, above all the addresses at which
its ranks listened, is still there for the next one: a rank that reads too early connects to a process that is gone.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

__all__ = ["meet"]

PAUSE = 0.01
"""Seconds between two looks of the chief."""


def meet(patience: timedelta) -> tuple[Store, int, int]:
    """Return a store that no earlier start has written to, the rank of this process, and how many there are.

    Raises:
        RuntimeError: The others did not come.
        ValueError: The environment does not say where they are.
    """
    store, rank, size = next(rendezvous("env://", timeout=patience))
    store.set_timeout(patience)
    return PrefixStore(f"dither/{_agreed(store, rank, size, patience)}", store), rank, size


def _agreed(store: Store, rank: int, size: int, patience: timedelta) -> str:
    """Return a name that all ranks of this start, and no others, know.

    A count of starts will not do: on several machines each has its own. So every rank asks with a word that was never
    used, the chief answers each word it finds, old or new, and goes on once every rank has thanked for its answer.
    """
    word = secrets.token_hex(8)
    if rank:
        store.set(f"dither/asks/{rank}", word)
        name = str(store.get(f"dither/answer/{word}").decode())  # waits for it
        store.set(f"dither/{name}/thanks/{rank}", "")
        return name
    missing = set(range(1, size))
    deadline = time.monotonic() + patience.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"dither/{word}/thanks/{other}"]):
                missing.discard(other)
            elif store.check([f"dither/asks/{other}"]):
                store.set(f"dither/answer/{store.get(f'dither/asks/{other}').decode()}", word)
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {', '.join(map(str, sorted(missing)))} did not come")
        time.sleep(PAUSE)
    return word
