"""JSON Schema (draft-07) of TOML files for editors, with every registered component.

It has `enum` and `if`/`then` instead of `anyOf`, in which validators report only that no
alternative matches.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ..kinds import KINDS
from ..plugins.catalog import Catalog, Component
from ..spec.base import Options, summary_of, with_article
from .errors import Refused

__all__ = ["options_schema", "schema_of"]

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that taplo, check-jsonschema, tombi and editors support."""
TABLES = ("properties", "patternProperties")
INNER = ("items", "additionalProperties", "propertyNames", "not")
MANY = ("allOf", "anyOf", "oneOf")
EXTENDS = {
    "description": "One or more files, relative to this one, whose values this file overrides.",
    "type": ["string", "array"],
    "items": {"type": "string"},
}
"""The key that `Document` resolves before validation."""
NO_KEY = {"not": {"description": "unknown key"}}
"""Rejects an unknown key at its own place; `false` would reject the table around it."""


def schema_of(
    model: type[Options],
    catalog: Catalog,
    *,
    title: str,
    extends: bool = False,
) -> Schema:
    """Return the schema of a file that is validated as `model`.

    Args:
        model: The model.
        catalog: Components for its slots.
        title: Shown by editors.
        extends: Whether the file may extend another; then no option is required.
    """
    definitions: Schema = {}
    top = _options(model, "", definitions)
    if extends:
        top["properties"] = {"extends": EXTENDS, **top["properties"]}

    # Components have slots of further kinds.
    pending = _kinds_in([top, *definitions.values()])
    done: set[str] = set()
    while pending:
        kind = pending.pop()
        done.add(kind)
        added = _definitions_of_kind(kind, catalog)
        definitions |= added
        pending = (pending | _kinds_in(added.values())) - done

    # Sorted, so that the copy in the repository changes only where the options do.
    definitions = {name: definitions[name] for name in sorted(definitions)}
    # A file that extends another may leave out what that one sets.
    if extends:
        for table in (top, *definitions.values()):
            table.pop("required", None)
    return {"$schema": DRAFT, "title": title, **top, "definitions": definitions}


def options_schema(model: type[Options]) -> Schema:
    """Return the schema of the options of one component; slots refer to kinds."""
    definitions: Schema = {}
    schema = _options(model, "", definitions)
    schema.pop("description", None)
    if definitions:
        schema["definitions"] = definitions
    return schema


class _Generator(GenerateJsonSchema):
    # A title would repeat the key in other letters, and editors show it above the description.
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _options(model: type[Options], prefix: str, definitions: Schema) -> Schema:
    """Return the schema of a table of options; add inner tables to `definitions`."""
    # Tables of two components may have the same name; the prefix keeps them apart.
    schema = model.model_json_schema(
        ref_template=f"#/definitions/{prefix}{{model}}", schema_generator=_Generator
    )
    for name, inner in schema.pop("$defs", {}).items():
        definitions[prefix + name] = _table(inner)
    # A recursive table.
    if "$ref" in schema:
        return dict(definitions[schema["$ref"].removeprefix("#/definitions/")])
    return _table(schema)


def _table(schema: Schema) -> Schema:
    schema.pop("title", None)
    settled: Schema = _settled(schema)
    if settled.get("additionalProperties") is False:
        settled["additionalProperties"] = NO_KEY
    return settled


def _settled(schema: Any) -> Any:
    """Convert the newest draft, which pydantic writes, to draft-07."""
    if not isinstance(schema, dict):
        return schema
    schema = {key: _inner(key, value) for key, value in schema.items()}
    # TOML has no null.
    if schema.get("default", ...) is None:
        del schema["default"]
    if "prefixItems" in schema:
        schema["items"] = [_settled(item) for item in schema.pop("prefixItems")]
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    if "anyOf" in schema:
        schema = _by_type(schema)
    if "kind" in schema:
        schema["$ref"] = f"#/definitions/{schema.pop('kind')}"
        # Editors insert defaults, and a bare name is how people write it.
        default = schema.get("default")
        if isinstance(default, dict) and set(default) == {"use"}:
            schema["default"] = default["use"]
    # draft-07 ignores other keys next to $ref.
    if "$ref" in schema and len(schema) > 1:
        schema["allOf"] = [{"$ref": schema.pop("$ref")}]
    return schema


def _inner(key: str, value: Any) -> Any:
    if key in TABLES:
        return {name: _settled(inner) for name, inner in value.items()}
    if key in INNER:
        return _settled(value)
    return [_settled(inner) for inner in value] if key in MANY else value


def _by_type(schema: Schema) -> Schema:
    """Convert `anyOf` of different types to one rule per type; drop null, which TOML lacks."""
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    choices = [choice for choice in schema["anyOf"] if choice.get("type") != "null"]
    # Every integer is a number.
    if {"type": "number"} in choices:
        choices = [choice for choice in choices if choice != {"type": "integer"}]
    if len(choices) == 1:
        return {**choices[0], **rest}
    # Of anyOf, editors report a mistake once for each choice; of one type, they report that type.
    if not _have_different_types(choices):
        return {**rest, "anyOf": choices}
    result = {**rest, "type": [choice["type"] for choice in choices]}
    rules = [
        {"if": {"type": choice["type"]}, "then": choice}
        for choice in choices
        if len(choice) > 1
    ]
    if rules:
        result["allOf"] = rules
    return result


def _have_different_types(choices: list[Schema]) -> bool:
    types = [str(choice.get("type")) for choice in choices]
    if "None" in types or len(set(types)) < len(types):
        return False
    # An integer is a number, too.
    return not {"integer", "number"} <= set(types)


def _kinds_in(schemas: Iterable[Any]) -> set[str]:
    kinds: set[str] = set()
    for schema in schemas:
        if isinstance(schema, dict):
            kind = str(schema.get("$ref", "")).removeprefix("#/definitions/")
            if kind in KINDS:
                kinds.add(kind)
            kinds |= _kinds_in(schema.values())
        elif isinstance(schema, list):
            kinds |= _kinds_in(schema)
    return kinds


def _definitions_of_kind(kind: str, catalog: Catalog) -> Schema:
    """Return the definition of a kind with shared options, and one for each component."""
    definitions: Schema = {}
    tables = {}
    parts = catalog.parts(kind)
    for part in parts:
        # A plugin's name may contain characters that a `$ref` would have to escape.
        name = ".".join((kind, re.sub(r"[^\w.-]", "_", part.plugin), part.name))
        tables[name] = _options(part.spec, f"{name}.", definitions)
        tables[name]["description"] = " ".join(
            inspect.cleandoc(part.spec.__doc__ or "").split()
        )
    shared = _shared([table["properties"] for table in tables.values()])

    # A table without `use` changes options of a default component, which is not known here.
    known = dict.fromkeys(["use", *shared], True)
    without_use = {"properties": known, "additionalProperties": NO_KEY}
    rules: list[Schema] = [{"if": {"not": {"required": ["use"]}}, "then": without_use}]
    names: list[str] = []
    for part, (name, table) in zip(parts, tables.items(), strict=True):
        forms = _names(part, catalog)
        names += forms
        called = {"required": ["use"], "properties": {"use": {"enum": forms}}}
        rules.append({"if": called, "then": {"$ref": f"#/definitions/{name}"}})
        definitions[name] = _component_table(table, shared)

    # Short names first.
    names.sort(key=lambda form: ("/" in form, "@" in form, form))
    use: Schema = {"type": "string"}
    if names:
        use["enum"] = names
    definitions[kind] = {
        "description": f"A{with_article(kind)[1:]}: {summary_of(KINDS[kind])}",
        "type": ["string", "object"],
        "properties": {"use": {"description": f"Which {kind}.", **use}, **shared},
        "if": {"type": "string"},
        "then": use,
        "else": {"allOf": rules},
    }
    return definitions


def _component_table(table: Schema, shared: Schema) -> Schema:
    """Return the schema of a component without what all components with an option agree on."""
    # Listed although the kind describes it: `additionalProperties` would reject a key that is not.
    properties: Schema = {"use": True}
    for key, option in table["properties"].items():
        properties[key] = True if shared[key] == option else option
    # The kind already says that it may be a name or a table.
    rest = {key: value for key, value in table.items() if key != "type"}
    return {**rest, "properties": properties}


def _shared(tables: list[Schema]) -> Schema:
    """Return every option: in full if all components with it agree, else its descriptions only."""
    variants: dict[str, list[Schema]] = {}
    for table in tables:
        for key, option in table.items():
            same_key = variants.setdefault(key, [])
            if option not in same_key:
                same_key.append(option)
    shared: Schema = {}
    for key, options in variants.items():
        descriptions = [
            option["description"] for option in options if "description" in option
        ]
        if len(options) == 1:
            shared[key] = options[0]
        elif descriptions:
            shared[key] = {"description": " / ".join(dict.fromkeys(descriptions))}
        else:
            shared[key] = {}
    return shared


def _names(part: Component, catalog: Catalog) -> list[str]:
    """Return every way to name a component; an ambiguous short name belongs to none."""
    short = [part.name, f"{part.name}@{part.rev}"]
    names = []
    for form in (*short, *(f"{part.plugin}/{name}" for name in short)):
        with suppress(Refused):
            if catalog.find(part.kind, form) == part:
                names.append(form)
    return names
