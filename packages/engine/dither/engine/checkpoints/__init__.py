"""Checkpoints: whole, sharded, asynchronous, best."""
