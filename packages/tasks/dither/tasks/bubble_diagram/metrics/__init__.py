"""Likelihood and sample-quality metrics."""
