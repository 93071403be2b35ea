"""A run, or many, as one page that needs nothing else: no network, no script, no file beside it. No torch at import."""
