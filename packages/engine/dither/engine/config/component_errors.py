"""Attribute an exception to the component that raised it, and to its plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dither.registry.config.errors import Refused
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.culprit import culprit_of
from dither.registry.plugins.status import describe_exception, is_interruption
from dither.registry.spec.base import Spec, WrongReturnError

__all__ = [
    "ComponentFailed",
    "PluginFailed",
    "annotate_build_errors",
    "attribute_errors",
    "plugin_failure",
    "reason_of",
    "title",
]


class ComponentFailed(Refused):
    """A method of a Spec raised an exception during validation."""

    def __init__(self, spec: Spec, error: BaseException) -> None:
        self.spec = spec
        self.reason = describe_exception(error)
        super().__init__(f"{title(spec)} failed: {self.reason}", code="plugin-failed")


class PluginFailed(Refused):
    """Code of a third party raised an exception at any other time. The command line exits with 1."""

    exit_code = 1

    def __init__(self, name: str, error: BaseException) -> None:
        message = f"{name} failed: {describe_exception(error)}"
        hint = "--traceback shows where"
        super().__init__(message, help=hint, code="plugin-failed")
        self.__cause__ = error


def plugin_failure(error: BaseException) -> PluginFailed | None:
    """Return the problem of an exception that code of a third party raised; None for any other."""
    # A refusal was written for the user, and says what is wrong.
    if isinstance(error, Refused) or is_interruption(error):
        return None
    culprit = culprit_of(error)
    return None if culprit is None else PluginFailed(culprit.title, culprit.error)


def title(spec: Spec, catalog: Catalog | None = None) -> str:
    """Return kind and name of a component, and its plugin if the catalog has it."""
    component = catalog and catalog.part_of(spec)
    return component.title if component else f'{spec.kind} "{spec.name}"'


def reason_of(error: BaseException) -> str:
    """Return why a component failed; a wrong result is described by its message alone."""
    if isinstance(error, WrongReturnError):
        return str(error)
    return describe_exception(error)


@contextmanager
def attribute_errors(spec: Spec) -> Iterator[None]:
    """Raise `ComponentFailed` for an exception of `spec` or of a component inside it."""
    try:
        yield
    # A refusal was written for the user and says what is wrong.
    except Refused:
        raise
    except BaseException as error:
        if is_interruption(error):
            raise
        raise ComponentFailed(_innermost_spec(error) or spec, error) from error


@contextmanager
def annotate_build_errors(catalog: Catalog | None = None) -> Iterator[None]:
    """Add a note with the component to an exception raised while components are built.

    Anything that is not an interruption by the user is an error, SystemExit included. A wrong
    result of `build` is Refused, and so is endless recursion, whose traceback would be thousands of
    lines.
    """
    try:
        yield
    except Refused:
        raise
    except (WrongReturnError, RecursionError) as error:
        spec = _innermost_spec(error)
        name = "a component" if spec is None else title(spec, catalog)
        text = f"{name} failed: {reason_of(error)}"
        raise Refused(text, code="plugin-failed") from error
    except BaseException as error:
        if is_interruption(error):
            raise
        failed = error
        if not isinstance(error, Exception):
            failed = RuntimeError(describe_exception(error))
        if (spec := _innermost_spec(error)) is not None:
            failed.add_note(f"in build of {title(spec, catalog)}")
        raise failed from (error.__cause__ if failed is error else error)


def _innermost_spec(error: BaseException) -> Spec | None:
    """Return the Spec of the innermost frame of a traceback that is a method of one."""
    found = None
    frame = error.__traceback__
    while frame is not None:
        owner = frame.tb_frame.f_locals.get("self")
        if isinstance(owner, Spec):
            found = owner
        frame = frame.tb_next
    return found
