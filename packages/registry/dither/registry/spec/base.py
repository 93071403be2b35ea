"""A Spec declares the options of one component; a Slot is an option that takes another component."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, TypeVar, get_args

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

__all__ = [
    "Alias",
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
    "path_mark",
    "shown",
    "summary_of",
    "with_article",
]


@dataclass(frozen=True)
class PathMark:
    """Annotation of a string that is the path of a file or folder, or a pattern, unless it matches `unless` (regex)."""

    unless: str = ""


PathStr = Annotated[str, PathMark()]
"""`file: PathStr` names a file relative to the working directory, as does a field of type
`pathlib.Path`.

Run directories hold its absolute path, exports a copy or its name; other strings stay as they
are."""


def path_mark(option: Any) -> PathMark | None:
    """Return the mark of a field or annotation that declares paths, also inside a list; None for any other."""
    if isinstance(option, PathMark) or option is FilePath:
        return option if isinstance(option, PathMark) else PathMark()
    inner = (
        (option.annotation, *option.metadata) if isinstance(option, FieldInfo) else get_args(option)
    )
    return next(filter(None, map(path_mark, inner)), None)


class Options(BaseModel):
    """Options of a TOML table: typed, bounded and frozen; unknown keys are errors.

    The docstring below a field is its help text.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        ser_json_inf_nan="strings",
        defer_build=True,  # an experiment uses few of the registered components
    )

    @model_validator(mode="before")
    @classmethod
    def _with_default_parts(cls, given: Any) -> Any:
        """Merge a table without `use` into the default component of a slot; convert strings to paths."""
        if not isinstance(given, Mapping):
            return given
        fields = cls.model_fields
        files = {
            key
            for key, value in given.items()
            if key in fields and _holds(fields[key].annotation, FilePath)
        }
        given = (
            {key: _as_path(value) if key in files else value for key, value in given.items()}
            if files
            else given
        )
        parts = {
            key: merge_tables(part, value)
            for key, value in given.items()
            if isinstance(value, Mapping)
            and "use" not in value
            and (part := default_part(cls.model_fields.get(key)))
        }
        return {**given, **parts} if parts else given

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Add the help text of every option."""
        from .option_docs import docs_of

        made = handler(schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, words in docs_of(cls).items():
            if name in properties:
                properties[name].setdefault("description", words)
        return made


@dataclass(frozen=True)
class Alias:
    """An earlier name of a component, which works with a warning that names the version that removes it.

    `migrate` converts options of the earlier name to current ones; by default they are the same.
    """

    name: str
    removed_in: str
    migrate: Callable[[dict[str, Any]], dict[str, Any]] | None = None


class Spec(Options):
    """Options of one component. Subclass a kind of `dither.registry.kinds`, set `name`, and implement `build`.

    The first line of the class docstring is the summary in lists. `build` imports the
    implementation, so that a Spec is read without torch.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    rev: ClassVar[int] = 1
    """The revision; raise it when options change, or the same options give other results."""
    aliases: ClassVar[tuple[Alias, ...]] = ()
    """Earlier names."""

    built_attributes: ClassVar[tuple[str, ...]] = ("__call__",)
    """Attributes that the result of `build` must have."""

    @classmethod
    def __pydantic_init_subclass__(cls, **arguments: Any) -> None:
        """Check what `build` returns."""
        super().__pydantic_init_subclass__(**arguments)
        if "build" in vars(cls):
            cls.build = checked_method(vars(cls)["build"], cls.check_built)  # type: ignore[attr-defined]

    def check_built(self, built: Any) -> None:
        """Raise WrongReturnError if this cannot be the component."""
        if missing := [name for name in self.built_attributes if not hasattr(built, name)]:
            raise WrongReturnError(
                f"build returned {shown(built)}, which lacks {', '.join(missing)}"
            )

    def check(self, *given: Any, **named: Any) -> Iterable[Misfit]:
        """Yield incompatibilities without torch; most kinds are given the arguments of `build`."""
        return ()

    def warn(self, *given: Any, **named: Any) -> Iterable[Misfit]:
        """Yield warnings about valid options that are likely a mistake, given the arguments of `check`."""
        return ()

    def traits(self) -> frozenset[str]:
        """Return properties that these options guarantee, such as "zero-init"; the conformance kit checks each."""
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
        result = method(self, *arguments, **named)
        check(self, result)
        return result

    return checked


_default_catalog: list[Callable[[], Any]] = []
"""Returns the catalogue of a slot that is validated without a context; set by `dither.registry`."""


@dataclass(frozen=True)
class Place:
    """Annotation that validates a table `{use = "name", ...}` or a bare name as the Spec it names."""

    def __get_pydantic_core_schema__(
        self, source: type[Spec], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Look the name up in the catalogue of the validation context."""

        def parse(value: Any, info: ValidationInfo) -> Spec:
            if isinstance(value, Spec):
                if value.kind != source.kind:
                    text = f'"{value.name}" is {with_article(value.kind)}, not {with_article(source.kind)}'
                    raise PydanticCustomError("wrong_kind", text)
                return value
            catalog = (info.context or {}).get("catalog")
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
"""`block: Slot[BlockSpec]` takes `block = "adaln-zero"` or `block = { use = "adaln-zero", heads = 4
}`.

With a default, a table without `use` changes options of the default component.
"""


def named(name: str, **options: Any) -> Any:
    """Return the default of a slot: a component by name, with options."""
    return {"use": name, **options}


def _holds(annotation: Any, kind: type) -> bool:
    return annotation is kind or any(_holds(inner, kind) for inner in get_args(annotation))


def _as_path(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_path(item) for item in value]
    return FilePath(value) if isinstance(value, str) else value


def default_part(info: FieldInfo | None) -> dict[str, Any] | None:
    """Return the default component of a slot as a table; None without one."""
    if (
        info is None
        or not isinstance(info.default, dict)
        or not isinstance(info.default.get("use"), str)
    ):
        return None
    within = (
        item for inner in get_args(info.annotation) for item in getattr(inner, "__metadata__", ())
    )
    return (
        info.default if any(isinstance(item, Place) for item in (*info.metadata, *within)) else None
    )


def merge_tables(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table overridden by another; inner tables are merged if they use the same component."""
    found = dict(table)
    for key, value in over.items():
        before: Any = found.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        same = both and value.get("use", before.get("use")) == before.get("use")
        found[key] = merge_tables(before, value) if same else value
    return found


def components_in(value: Any, path: Path = ()) -> Iterator[tuple[Path, Spec]]:
    """Yield every component in validated options, with its path."""
    if isinstance(value, Spec):
        yield path, value
    items: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Options):
        items = ((key, getattr(value, key)) for key in type(value).model_fields)
    elif isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield from components_in(inner, (*path, key))


def with_article(kind: str) -> str:
    """Return a kind with its indefinite article."""
    return f"{'an' if kind.startswith(('a', 'e', 'i', 'o', 'u', 'lr-')) else 'a'} {kind}"


def summary_of(spec: type[Options]) -> str:
    """Return the first line of the docstring."""
    return (spec.__doc__ or "").strip().partition("\n")[0]
