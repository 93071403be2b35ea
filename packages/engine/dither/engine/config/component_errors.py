"""Whose code failed: the part, found by the traceback, for whoever reads the message may not have written it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dither.registry.config.errors import Refused
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.status import describe_exception
from dither.registry.spec.base import Spec

__all__ = ["ComponentFailed", "annotate_build_errors", "attribute_errors", "title"]


class ComponentFailed(Refused):
    """A part raised where it was to say whether it fits."""

    def __init__(self, spec: Spec, error: BaseException) -> None:
        self.spec, self.reason = spec, describe_exception(error)
        super().__init__(f"{title(spec)} failed: {self.reason}")


def title(spec: Spec, catalog: Catalog | None = None) -> str:
    """Name a part, and the plugin that offers it where a catalogue knows it."""
    part = None if catalog is None else catalog.part_of(spec)
    return f'{spec.kind} "{spec.name}"' if part is None else part.title


@contextmanager
def attribute_errors(spec: Spec) -> Iterator[None]:
    """Ask a part something without building it.

    Args:
        spec: The part, which may ask the parts inside it.

    Raises:
        PartFailed: It raised something other than `Refused`.
    """
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        raise ComponentFailed(_failing_spec(error) or spec, error) from error


@contextmanager
def annotate_build_errors(catalog: Catalog | None = None) -> Iterator[None]:
    """Build parts; an error in one goes on with a note on whose it is.

    Raises:
        RuntimeError: A part tried to end the program.
    """
    try:
        yield
    except Refused:
        raise
    except (Exception, SystemExit) as error:
        spec = _failing_spec(error)
        failed = RuntimeError(f"SystemExit: {error}") if isinstance(error, SystemExit) else error
        if spec is not None:
            failed.add_note(f"in build of {title(spec, catalog)}")
        raise failed from (error.__cause__ if failed is error else error)


def _failing_spec(error: BaseException) -> Spec | None:
    """Return the innermost part in a method of which an error arose."""
    found, frame = None, error.__traceback__
    while frame is not None:
        owner = frame.tb_frame.f_locals.get("self")
        found = owner if isinstance(owner, Spec) else found
        frame = frame.tb_next
    return found
