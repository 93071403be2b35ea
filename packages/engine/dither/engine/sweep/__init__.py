"""Many runs from one file: the points of a sweep, checked all at once and run beside each other. No torch at import."""
