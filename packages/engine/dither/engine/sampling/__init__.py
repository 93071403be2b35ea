"""Sampling: sessions, guidance, rejection, trajectories, and sample files."""
