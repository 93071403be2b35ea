"""Spec: the options of one component. Slot: an option that takes another component."""

import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path as FilePath
from types import FunctionType, MethodType
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationInfo,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from .misfit import Misfit, Path
from .process_settings import protected_settings

__all__ = [
    "Options",
    "PathMark",
    "PathStr",
    "Place",
    "Slot",
    "Spec",
    "WrongReturnError",
    "checked_method",
    "components_in",
    "default_part",
    "merge_tables",
    "named",
    "origin_of",
    "path_mark",
    "record_origin",
    "shown",
    "summary_of",
    "with_article",
]


@dataclass(frozen=True)
class PathMark:
    """Annotation of a string that is a path or a pattern, unless it matches `unless` (regex)."""

    unless: str = ""


PathStr = Annotated[str, PathMark()]
"""`file: PathStr` names a file relative to the working directory, as does a field of type
`pathlib.Path`.

Run directories hold its absolute path, exports a copy or its name; other strings stay as they
are."""


def path_mark(option: Any) -> PathMark | None:
    """Return the mark of a field or annotation that declares paths, also inside a list."""
    if isinstance(option, PathMark):
        return option
    if option is FilePath:
        return PathMark()
    inner = get_args(option)
    if isinstance(option, FieldInfo):
        inner = (option.annotation, *option.metadata)
    return next(filter(None, map(path_mark, inner)), None)


class Options(BaseModel):
    """Options of a TOML table: typed, bounded and frozen; unknown keys are errors.

    The docstring below a field is its help text.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        # TOML has types, so that a conversion of "8" to 8 would hide a mistake.
        strict=True,
        allow_inf_nan=False,
        # The default of a slot is a table, of which validation makes the component.
        validate_default=True,
        ser_json_inf_nan="strings",
        # An experiment uses few of the registered components.
        defer_build=True,
    )

    def model_copy(
        self, *, update: Mapping[str, Any] | None = None, deep: bool = False
    ) -> Self:
        """Return a copy with other values, which are validated: pydantic would take unknown keys."""
        if update:
            # Validation may change values, so the copy itself is that of pydantic.
            values = {key: getattr(self, key) for key in type(self).model_fields}
            type(self).model_validate({**values, **update})
        return super().model_copy(update=update, deep=deep)

    @model_validator(mode="before")
    @classmethod
    def _with_default_parts(cls, table: Any) -> Any:
        """Merge a table without `use` into the default component of a slot; convert paths."""
        if not isinstance(table, Mapping):
            return table
        changed = {}
        for key, value in table.items():
            field = cls.model_fields.get(key)
            if field is None:
                continue
            if isinstance(value, Mapping):
                default = default_part(field)
                if default is not None and "use" not in value:
                    changed[key] = merge_tables(default, value)
            # Strict validation accepts a Path only, and TOML has strings.
            elif _holds(field.annotation, FilePath):
                changed[key] = _as_path(value)
        return {**table, **changed} if changed else table

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the help text of every option."""
        from .option_docs import docs_of

        json_schema = handler(schema)
        properties = handler.resolve_ref_schema(json_schema).get("properties", {})
        for name, words in docs_of(cls).items():
            if name in properties:
                properties[name].setdefault("description", words)
        return json_schema


class Spec(Options):
    """Options of one component.

    Subclass a kind of `dither.registry.kinds`, set `name`, and implement `build`. The first line of
    the class docstring is the summary in lists. `build` imports the implementation, so that a Spec
    is read without torch.
    """

    kind: ClassVar[str] = ""
    """Set by the kinds."""
    name: ClassVar[str] = ""
    """Name in kebab-case, unique in its kind and plugin."""
    rev: ClassVar[int] = 1
    """The revision; raise it when options change, or the same options give other results."""
    built_attributes: ClassVar[tuple[str, ...]] = ("__call__",)
    """Attributes that the result of `build` must have."""

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        """Check what `build` returns."""
        super().__pydantic_init_subclass__(**arguments)
        # An inherited method is wrapped already.
        if "build" in vars(cls):
            cls.build = checked_method(vars(cls)["build"], cls.check_built)  # type: ignore[attr-defined]

    def check_built(self, built: Any) -> None:
        """Raise WrongReturnError if this cannot be the component."""
        # At once, with the component's name: otherwise training fails in code of the engine.
        missing = [name for name in self.built_attributes if not hasattr(built, name)]
        if missing:
            reason = f"build returned {shown(built)}, which lacks {', '.join(missing)}"
            raise WrongReturnError(reason)

    def check(self, *given: Any, **named: Any) -> Iterable[Misfit]:
        """Yield incompatibilities without torch; most kinds are given the arguments of `build`."""
        return ()

    def warn(self, *given: Any, **named: Any) -> Iterable[Misfit]:
        """Yield warnings about valid options that are likely a mistake; arguments as `check`."""
        return ()

    def traits(self) -> frozenset[str]:
        """Return properties that these options guarantee, such as "zero-init".

        The conformance kit checks each.
        """
        return frozenset()


class WrongReturnError(TypeError):
    """A method of a component returned something it must not return."""


def shown(value: Any) -> str:
    """Return a wrong value for a message."""
    return "None" if value is None else f"{type(value).__name__} {repr(value)[:40]}"


def checked_method(
    method: Callable[..., Any], check: Callable[[Any, Any], None]
) -> Callable[..., Any]:
    """Return a method whose Spec and result are passed to `check`."""

    @functools.wraps(method)
    def checked(self: Any, *arguments: Any, **named: Any) -> Any:
        with protected_settings(f'{self.kind} "{self.name}"'):
            result = method(self, *arguments, **named)
            # The check may call it. Numbers are results of other methods than `build`.
            if not isinstance(result, float | int):
                record_origin(result, self)
            check(self, result)
        return result

    return checked


_origins: dict[int, tuple[weakref.ref[Any], Spec]] = {}
"""Components by the id of the object that they built, of its class, or of the code of a function."""


def record_origin(built: Any, spec: Spec | None) -> None:
    """Record the component of an object or function, by whose name its exceptions are reported."""
    if spec is None:
        return
    built = _undecorated(built)
    if isinstance(built, FunctionType):
        _record(built.__code__, spec)
        return
    # A copy, as of the average of the weights, is recognized by its class.
    _record(type(built), spec)
    # Objects with slots allow no reference.
    with suppress(TypeError):
        _record(built, spec)


def _undecorated(built: Any) -> Any:
    """Return the function inside partial arguments, a bound method and decorators such as torch.no_grad."""
    while True:
        if isinstance(built, functools.partial):
            built = built.func
        elif isinstance(built, MethodType):
            built = built.__func__
        elif isinstance(built, FunctionType) and "__wrapped__" in vars(built):
            built = vars(built)["__wrapped__"]
        else:
            return built


def _record(key: Any, spec: Spec) -> None:
    # By identity: equal code of two plugins is that of two components.
    number = id(key)
    reference = weakref.ref(key, lambda _: _origins.pop(number, None))
    _origins[number] = (reference, spec)


def origin_of(built: Any) -> Spec | None:
    """Return the component of an object or of the code of a function, if it is recorded."""
    for key in (built, type(built)):
        if id(key) in _origins:
            return _origins[id(key)][1]
    return None


_default_catalog: list[Callable[[], Any]] = []
"""Returns the catalogue of a slot that is validated without a context; set by `dither.registry`."""


@dataclass(frozen=True)
class Place:
    """Annotation that validates a table `{use = "name"}` or a bare name as the Spec it names."""

    def __get_pydantic_core_schema__(
        self, source: type[Spec], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Look the name up in the catalogue of the validation context."""

        def parse(value: Any, info: ValidationInfo) -> Spec:
            # From Python: a component that is built already as a Spec.
            if isinstance(value, Spec):
                if value.kind != source.kind:
                    kinds = (
                        f"{with_article(value.kind)}, not {with_article(source.kind)}"
                    )
                    raise PydanticCustomError(
                        "wrong_kind", f'"{value.name}" is {kinds}'
                    )
                return value
            catalog = (info.context or {}).get("catalog")
            # A Spec that is made in Python, without a document.
            if catalog is None:
                catalog = _default_catalog[0]()
            spec: Spec = catalog.parse(source.kind, value)
            return spec

        def dump(spec: Spec) -> dict[str, Any]:
            return {"use": spec.name, **spec.model_dump()}

        return core_schema.with_info_plain_validator_function(
            parse,
            serialization=core_schema.plain_serializer_function_ser_schema(dump),
            metadata={"kind": source.kind},
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the kind, which `config.json_schema` resolves."""
        return {"kind": schema["metadata"]["kind"]}


S = TypeVar("S", bound=Spec)
Slot = Annotated[S, Place()]
"""An option that takes a component.

`block: Slot[BlockSpec]` takes `block = "adaln-zero"` or
`block = { use = "adaln-zero", heads = 4 }`. With a default, a table without `use` changes options
of the default component.
"""


def named(name: str, **options: Any) -> Any:
    """Return the default of a slot: a component by name, with options."""
    return {"use": name, **options}


def _holds(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(
        _holds(inner, kind) for inner in get_args(annotation)
    )


def _as_path(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_path(item) for item in value]
    return FilePath(value) if isinstance(value, str) else value


def default_part(info: FieldInfo | None) -> dict[str, Any] | None:
    """Return the default component of a slot as a table; None without one."""
    if info is None or not isinstance(info.default, dict):
        return None
    default: dict[str, Any] = info.default
    if not isinstance(default.get("use"), str):
        return None

    # pydantic moves the annotation of `Slot[X]` to the field, but not that of `Slot[X] | None`.
    metadata = list(info.metadata)
    for alternative in get_args(info.annotation):
        metadata += getattr(alternative, "__metadata__", ())
    return default if any(isinstance(item, Place) for item in metadata) else None


def merge_tables(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table overridden by another.

    Inner tables are merged if they use the same component.
    """
    merged = dict(table)
    for key, value in over.items():
        before: Any = merged.get(key)
        merged[key] = value
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            # Options of another component are replaced as a whole.
            name = before.get("use")
            if value.get("use", name) == name:
                merged[key] = merge_tables(before, value)
    return merged


def components_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
    """Yield every component in validated options, with its path."""
    if isinstance(value, Spec):
        yield path, value
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Options):
        items = ((key, getattr(value, key)) for key in type(value).model_fields)
    elif isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, inner in items:
        yield from components_in(inner, (*path, key))


def with_article(kind: str) -> str:
    """Return a kind with its indefinite article."""
    article = "an" if kind.startswith(("a", "e", "i", "o", "u", "lr-")) else "a"
    return f"{article} {kind}"


def summary_of(spec: type[Options]) -> str:
    """Return the first line of the docstring."""
    return (spec.__doc__ or "").strip().partition("\n")[0]
