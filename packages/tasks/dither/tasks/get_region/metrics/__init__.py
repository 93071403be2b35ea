"""Metrics of masked elements and samples, bootstrap intervals, baselines."""
