"""A Spec is the typed, savable description of one part; a Slot is a place for a part inside another Spec."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

__all__ = [
    "Alias",
    "Options",
    "Place",
    "Slot",
    "Spec",
    "default_part",
    "merge_tables",
    "named",
    "summary_of",
    "with_article",
]


class Options(BaseModel):
    """Options as they stand in a TOML table: typed, bounded, frozen, and no key that is not listed.

    A docstring under a field is its help text.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        ser_json_inf_nan="strings",
        defer_build=True,  # a menu offers many parts, of which an experiment uses a few
    )

    @model_validator(mode="before")
    @classmethod
    def _with_default_parts(cls, given: Any) -> Any:
        """Let a table without `use` change the part that stands there by default, as it would one of another file."""
        if not isinstance(given, Mapping):
            return given
        parts = {
            key: merge_tables(part, value)
            for key, value in given.items()
            if isinstance(value, Mapping) and "use" not in value and (part := default_part(cls.model_fields.get(key)))
        }
        return {**given, **parts} if parts else given

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Put the help text of every option into its schema."""
        from .option_docs import docs_of

        made = handler(schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        for name, words in docs_of(cls).items():
            if name in properties:
                properties[name].setdefault("description", words)
        return made


@dataclass(frozen=True)
class Alias:
    """An earlier name of a part, which still works and says so.

    Attributes:
        name: The earlier name.
        removed_in: Version of the plugin's distribution from which on the earlier name is refused.
        migrate: From the options as the earlier name took them to those of today; by default they are the same.
    """

    name: str
    removed_in: str
    migrate: Callable[[dict[str, Any]], dict[str, Any]] | None = None


class Spec(Options):
    """Options of one part. Subclass a kind from `dither.registry.kinds`, give it a `name`, and write `build`.

    The class docstring says what the part does; its first line is the summary that lists show. `build` imports the
    module that does the work, so that a Spec is read without torch.
    """

    kind: ClassVar[str]
    name: ClassVar[str]
    rev: ClassVar[int] = 1
    """Raise it when the same options begin to give other results, or when the options change."""
    aliases: ClassVar[tuple[Alias, ...]] = ()
    """Earlier names of the part."""

    def traits(self) -> frozenset[str]:
        """Tell what these options promise beyond the kind, such as "zero-init"; the conformance kit checks each."""
        return frozenset()


_default_catalog: list[Callable[[], Any]] = []
"""Returns the catalog of a Slot that is parsed without a context; set by `dither.registry`."""


@dataclass(frozen=True)
class Place:
    """Turns a table `{use = "name", ...}` or a bare name into the Spec that it names."""

    def __get_pydantic_core_schema__(self, source: type[Spec], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Look the name up in the catalogue found in the validation context."""

        def parse(value: Any, info: ValidationInfo) -> Spec:
            if isinstance(value, Spec):
                if value.kind != source.kind:
                    what = f'"{value.name}" is {with_article(value.kind)}, not {with_article(source.kind)}'
                    raise PydanticCustomError("wrong_kind", what)
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

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Say which kind of part goes here; `schema.schema_of` writes out what that means."""
        return {"kind": schema["metadata"]["kind"]}


S = TypeVar("S", bound=Spec)
Slot = Annotated[S, Place()]
"""`block: Slot[BlockSpec]` takes `block = "adaln-zero"` or `block = { use = "adaln-zero", heads = 4 }`.

Where it has a default, a table without `use` changes options of that part.
"""


def named(name: str, **options: Any) -> Any:
    """A part by name, as the default of a Slot."""
    return {"use": name, **options}


def default_part(info: FieldInfo | None) -> dict[str, Any] | None:
    """Return the part that stands in a slot by default, as a table; None for what is no slot, or has none."""
    if info is None or not isinstance(info.default, dict) or not isinstance(info.default.get("use"), str):
        return None
    within = (item for inner in get_args(info.annotation) for item in getattr(inner, "__metadata__", ()))
    return info.default if any(isinstance(item, Place) for item in (*info.metadata, *within)) else None


def merge_tables(table: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the values of another one on top, also in the tables inside that name the same part."""
    found = dict(table)
    for key, value in over.items():
        before: Any = found.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        found[key] = (
            merge_tables(before, value) if both and value.get("use", before.get("use")) == before.get("use") else value
        )
    return found


def with_article(kind: str) -> str:
    """Return a kind with its article."""
    return f"{'an' if kind.startswith(('a', 'e', 'i', 'o', 'u', 'lr-')) else 'a'} {kind}"


def summary_of(spec: type[Spec]) -> str:
    """The first line of what a part says of itself."""
    return (spec.__doc__ or "").strip().partition("\n")[0]
