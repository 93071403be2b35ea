"""Samplers: iterate a process from t = 1 to clean data, yielding every state, the sample last."""
