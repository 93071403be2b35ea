"""JSON Schema (draft-07) of TOML files for editors, with every registered component.

It has `enum` and `if`/`then` instead of `anyOf`, in which validators report only that no
alternative matches.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from ..kinds import KINDS
from ..plugins.catalog import Catalog, Component
from ..spec.base import Options, summary_of, with_article
from .errors import Refused

__all__ = ["schema_of"]

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
    """Return the schema of a file that is validated as `model`, with the components of a catalogue for its slots.

    `title` is shown by editors; a file that may extend another (`extends`) has no `required`
    options.
    """
    definitions: Schema = {}
    top = _options(model, "", definitions)
    if extends:
        top["properties"] = {"extends": EXTENDS, **top["properties"]}
    wanted = _kinds_in([top, *definitions.values()])
    done: set[str] = set()
    while wanted:
        kind = wanted.pop()
        done.add(kind)
        added = _definitions_of_kind(kind, catalog)
        definitions |= added
        wanted = (wanted | _kinds_in(added.values())) - done
    definitions = {name: definitions[name] for name in sorted(definitions)}
    if extends:
        for table in (top, *definitions.values()):
            table.pop("required", None)
    return {"$schema": DRAFT, "title": title, **top, "definitions": definitions}


class _Generator(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _options(model: type[Options], prefix: str, definitions: Schema) -> Schema:
    """Return the schema of a table of options; add inner tables to `definitions`, named after `prefix`."""
    made = model.model_json_schema(
        ref_template=f"#/definitions/{prefix}{{model}}", schema_generator=_Generator
    )
    for name, inner in made.pop("$defs", {}).items():
        definitions[prefix + name] = _table(inner)
    if "$ref" in made:  # a recursive table
        return dict(definitions[made["$ref"].removeprefix("#/definitions/")])
    return _table(made)


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
        if isinstance(default := schema.get("default"), dict) and set(default) == {"use"}:
            schema["default"] = default["use"]
    if "$ref" in schema and len(schema) > 1:  # draft-07 ignores other keys next to $ref
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
    if len(choices) == 1:
        return {**choices[0], **rest}
    types = [choice.get("type") for choice in choices]
    numbers = {"integer", "number"} <= set(map(str, types))
    if not all(isinstance(name, str) for name in types) or len(set(types)) < len(types) or numbers:
        return {**rest, "anyOf": choices}
    rules = [
        {"if": {"type": choice["type"]}, "then": choice} for choice in choices if len(choice) > 1
    ]
    return {**rest, "type": types, **({"allOf": rules} if rules else {})}


def _kinds_in(schemas: Iterable[Any]) -> set[str]:
    found = set()
    for schema in schemas:
        if isinstance(schema, dict):
            kind = str(schema.get("$ref", "")).removeprefix("#/definitions/")
            found |= {kind} & KINDS.keys() | _kinds_in(schema.values())
        elif isinstance(schema, list):
            found |= _kinds_in(schema)
    return found


def _definitions_of_kind(kind: str, catalog: Catalog) -> Schema:
    """Return the definition of a kind, with the options that its components share, and one for each component."""
    definitions: Schema = {}
    tables = {}
    parts = catalog.parts(kind)
    for part in parts:
        name = ".".join((kind, re.sub(r"[^\w.-]", "_", part.plugin), part.name))
        tables[name] = _options(part.spec, f"{name}.", definitions)
        tables[name]["description"] = " ".join(inspect.cleandoc(part.spec.__doc__ or "").split())
    shared = _shared([table["properties"] for table in tables.values()])
    names = _names(kind, parts, catalog)
    known = dict.fromkeys(["use", *shared], True)
    rules: list[Schema] = [
        {
            "if": {"not": {"required": ["use"]}},
            "then": {"properties": known, "additionalProperties": NO_KEY},
        }
    ]
    for part, (name, table) in zip(parts, tables.items(), strict=True):
        own = {
            key: True if shared[key] == option else option
            for key, option in table["properties"].items()
        }
        rest = {key: value for key, value in table.items() if key != "type"}
        definitions[name] = {**rest, "properties": {"use": True, **own}}
        called = {"required": ["use"], "properties": {"use": {"enum": names[part.pinned]}}}
        rules.append({"if": called, "then": {"$ref": f"#/definitions/{name}"}})
    every = sorted(chain(*names.values()), key=lambda form: ("/" in form, "@" in form, form))
    name_of = {"type": "string", "enum": every} if every else {"type": "string"}
    definitions[kind] = {
        "description": f"A{with_article(kind)[1:]}: {summary_of(KINDS[kind])}",
        "type": ["string", "object"],
        "properties": {"use": {"description": f"Which {kind}.", **name_of}, **shared},
        "if": {"type": "string"},
        "then": name_of,
        "else": {"allOf": rules},
    }
    return definitions


def _shared(tables: list[Schema]) -> Schema:
    """Return every option: in full if all components with it agree, else its descriptions only."""
    found: dict[str, list[Schema]] = {}
    for table in tables:
        for key, option in table.items():
            same = found.setdefault(key, [])
            if option not in same:
                same.append(option)
    shared = {}
    for key, options in found.items():
        words = dict.fromkeys(
            option["description"] for option in options if "description" in option
        )
        shared[key] = (
            options[0] if len(options) == 1 else {"description": " / ".join(words)} if words else {}
        )
    return shared


def _names(kind: str, parts: list[Component], catalog: Catalog) -> dict[str, list[str]]:
    """Return every way to name each component, by its pinned name; an ambiguous short name belongs to none."""
    names: dict[str, list[str]] = {}
    for part in parts:
        forms = [part.name, f"{part.name}@{part.rev}"]
        names[part.pinned] = []
        for form in (*forms, *(f"{part.plugin}/{form}" for form in forms)):
            with suppress(Refused):
                names[part.pinned] += (
                    [form] if catalog.find(kind, form).pinned == part.pinned else []
                )
    return names
