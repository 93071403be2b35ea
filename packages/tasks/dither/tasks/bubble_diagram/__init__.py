"""Bubble diagrams: room types and pairwise spatial relations of floor plans."""
