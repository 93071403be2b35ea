"""Trackers: destinations of metrics and pictures besides metrics.jsonl."""
