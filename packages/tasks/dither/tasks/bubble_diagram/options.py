"""Option types shared by the Specs and the code that reads, prepares and exports plans. No torch, no numpy."""

from __future__ import annotations

from typing import Literal

__all__ = ["Adjacency", "Bedrooms", "Export", "Format"]

Format = Literal["auto", "rplan-png", "graph2plan", "housegan", "resplan", "msd", "jsonl"]
"""Input formats; "auto" selects one by file suffix."""

Adjacency = Literal["proximity", "door"]
"""Which rooms are related: those close to each other, or those joined by a door."""

Bedrooms = Literal["largest-is-master", "all-second"]
"""How bedrooms are mapped to Graph2Plan's types where a format has a single bedroom type."""

Export = Literal["jsonl", "housegan", "networkx"]
"""Output formats of diagrams."""
