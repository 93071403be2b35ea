"""Processes over features: Gaussian noise and masking."""
