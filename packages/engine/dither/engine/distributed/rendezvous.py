"""Rendezvous that survives torchrun restarts.

torchrun keeps one store for all restarts. Keys of a failed start, above all the addresses at which its ranks listened,
are still there for the next one: a rank that reads them too early connects to a process that has ended.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

__all__ = ["open_store"]

POLL_SECONDS = 0.01


def open_store(timeout: timedelta) -> tuple[Store, int, int]:
    """Return a store without keys of earlier starts, the rank of this process, and the world size.

    Raises:
        RuntimeError: Other ranks did not connect in time.
        ValueError: The environment lacks the address.
    """
    store, rank, size = next(rendezvous("env://", timeout=timeout))
    store.set_timeout(timeout)
    return PrefixStore(f"dither/{_agree_on_prefix(store, rank, size, timeout)}", store), rank, size


def _agree_on_prefix(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """Return a prefix that the ranks of this start share and no earlier start has used.

    A restart count does not work: each machine has its own. So every rank sends a random token, the main rank answers
    each token, old or new, with its own, and continues once every rank has acknowledged the answer.
    """
    token = secrets.token_hex(8)
    if rank:
        store.set(f"dither/asks/{rank}", token)
        prefix = str(store.get(f"dither/answer/{token}").decode())  # blocks until the answer is there
        store.set(f"dither/{prefix}/thanks/{rank}", "")
        return prefix
    missing = set(range(1, size))
    deadline = time.monotonic() + timeout.total_seconds()
    while missing:
        for other in sorted(missing):
            if store.check([f"dither/{token}/thanks/{other}"]):
                missing.discard(other)
            elif store.check([f"dither/asks/{other}"]):
                store.set(f"dither/answer/{store.get(f'dither/asks/{other}').decode()}", token)
        if time.monotonic() > deadline:
            raise RuntimeError(f"ranks {', '.join(map(str, sorted(missing)))} did not connect")
        time.sleep(POLL_SECONDS)
    return token
