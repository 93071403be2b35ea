"""Sweeps: many runs from one file, validated together and run side by side."""
