"""Sources of floor plans: procedural generation and prepared files."""
