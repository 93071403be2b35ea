"""Text sources, their splits, and the token store."""
