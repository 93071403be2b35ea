"""Region tables, windows, and the samples made from them."""
