"""Noise on the way in, steps on the way back: schedules, processes over tokens and features, and samplers."""
