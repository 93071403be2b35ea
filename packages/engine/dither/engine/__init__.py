"""Assembles experiments from names and runs them. No torch at import."""

from .experiment import Experiment, Loaded, load_experiment

__all__ = ["Experiment", "Loaded", "load_experiment"]
