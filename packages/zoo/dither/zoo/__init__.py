"""Small trained models: one folder each, as `python -m experiments.zoo` wrote it."""
