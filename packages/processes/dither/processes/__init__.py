"""Diffusion processes: schedules, processes over tokens and features, and samplers."""
