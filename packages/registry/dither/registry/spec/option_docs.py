"""Help text of options: the docstring below a field, read on demand.

pydantic reads the source of every class when it is created, which took a third of the time of
`dither validate`.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

from pydantic import BaseModel

__all__ = ["docs_of"]


def docs_of(model: type[BaseModel]) -> dict[str, str]:
    """Return the help text of each option that has one.

    It is the `description` of its Field, or the docstring below it. An option that a subclass
    redeclares has the text of the subclass, or none. Classes without a source file have none.
    """
    docs: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and (declared := inspect.get_annotations(base)):
            below = _documented(_source(base.__module__)).get(base.__qualname__, {})
            docs |= {name: below.get(name, "") for name in declared}
    for name, info in model.model_fields.items():
        docs[name] = info.description or docs.get(name, "")
    return {name: docs[name] for name in model.model_fields if docs[name].strip()}


def _source(module: str) -> str:
    try:
        return inspect.getsource(sys.modules[module])
    except (KeyError, OSError, TypeError):
        return ""


# The components of a module share its source.
@lru_cache(maxsize=256)
def _documented(source: str) -> dict[str, dict[str, str]]:
    """Return the docstrings below the fields of each class of a module, by qualified name."""
    try:
        return {
            name: dict(_below(node)) for name, node in _classes(ast.parse(source), "")
        }
    except SyntaxError:  # the file was changed after its import
        return {}


def _classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.ClassDef):
            yield prefix + inner.name, inner
            yield from _classes(inner, f"{prefix}{inner.name}.")
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _classes(inner, f"{prefix}{inner.name}.<locals>.")
        else:
            yield from _classes(inner, prefix)


def _below(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                value=ast.Constant(value=str(words))
            ):
                yield name, inspect.cleandoc(words)
