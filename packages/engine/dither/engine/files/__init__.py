"""Metrics lines, checksums, and disk errors; no torch."""
