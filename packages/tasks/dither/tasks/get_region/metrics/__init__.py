"""Metrics of masked elements and samples, bootstrap confidence_intervals, baselines."""
