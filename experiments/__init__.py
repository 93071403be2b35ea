"""Experiment files, and the command that runs them."""
