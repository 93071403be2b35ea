"""Experiment files: options, checks, plugins, paths, and fingerprints; no torch."""
