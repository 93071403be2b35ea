"""One matrix for both ends of a model: what an id is embedded as is also what the head looks for."""

from __future__ import annotations

from typing import Any

__all__ = ["tie"]


def tie(embedding: Any, head: Any) -> None:
    """Let each map of a head read with the rows of a table from now on (Press and Wolf, 2017); its bias stays its own.

    The tables keep their values, and get both gradients.

    Args:
        embedding: A module with `tables`, an `nn.Embedding` for each field.
        head: A module with `maps`, an `nn.Linear` for each field.

    Raises:
        ValueError: They are not as many, or differ in shape.
    """
    for table, linear in zip(embedding.tables, head.maps, strict=True):
        if table.weight.shape != linear.weight.shape:
            shapes = f"{tuple(table.weight.shape)} and {tuple(linear.weight.shape)}"
            raise ValueError(f"an embedding and a head of shapes {shapes} cannot share their weights")
        linear.weight = table.weight
