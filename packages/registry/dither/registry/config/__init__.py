"""Experiment documents: reading, overrides, validation and errors."""
