"""Options of a part as a command line has them: `--key value`, and paths without a key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from dither.registry.config.errors import Problem, Refused
from dither.registry.spec.base import Spec

__all__ = ["overrides_from_flags"]

PATHS = "paths"
"""The option that words without a key go to."""


def overrides_from_flags(words: Sequence[str], spec: type[Spec]) -> list[str]:
    """Return changes `key=value`, as `--set` takes them, for the words behind the name of a part.

    `--key value` and `--key=value` set an option, `--key` alone sets one that is true or false. All other words are
    paths. Behind `--` there are only paths.

    Raises:
        Refused: A value is missing, an option is short, or the part takes no paths.
    """
    changes: list[str] = []
    paths: list[str] = []
    queue = iter(words)
    for word in queue:
        if word == "--":
            paths += queue
        elif word.startswith("--"):
            changes.append(_override(word[2:], queue, spec))
        elif word.startswith("-") and len(word) > 1:
            raise Refused(f"{word}: options of a part are written in full, --key value")
        else:
            paths.append(word)
    if paths and PATHS not in spec.model_fields:
        what = f'data "{spec.name}" takes no paths: {", ".join(paths[:3])}'
        raise Refused(Problem(what, help=f"its options are: {', '.join(spec.model_fields) or 'none'}"))
    return [*changes, f"{PATHS}={json.dumps(paths)}"] if paths else changes


def _override(word: str, queue: Iterator[str], spec: type[Spec]) -> str:
    key, equals, value = word.partition("=")
    key = key.replace("-", "_")
    sort = spec.model_fields[key].annotation if key in spec.model_fields else None
    if not equals:
        if sort is bool:
            return f"{key}=true"
        found = next(queue, None)
        if found is None:
            raise Refused(f"--{word} wants a value")
        value = found
    return f"{key}={json.dumps(value) if sort is str else value}"
