"""Runs: launch, loop, resume, run directories, loading, and export."""
