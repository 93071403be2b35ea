"""Atomic writes, the data cache, and weight files read without pickle."""
