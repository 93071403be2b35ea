"""Readers of published floor-plan formats, one module per format."""
