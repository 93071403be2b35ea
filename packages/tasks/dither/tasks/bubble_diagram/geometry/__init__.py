"""Realisability search, layout, and placement of room boxes."""
