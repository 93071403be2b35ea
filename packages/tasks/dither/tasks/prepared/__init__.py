"""Prepared data on disk: arrays, manifest, rejected rows."""
