"""Noise schedules: t -> Noise(sigma, rate)."""
