"""Bubble diagrams: the rooms of a floor plan, and how each pair of rooms lies to each other."""
