"""Plots of samples, sampling trajectories and metrics."""
