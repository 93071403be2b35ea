"""Metrics of text: perplexity, baselines, n-grams, diversity, external judge."""
