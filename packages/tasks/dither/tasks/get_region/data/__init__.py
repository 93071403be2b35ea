"""Region tables, windows and samples."""
