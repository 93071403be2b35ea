"""`dither new plugin`: packages with one component, tested and ready to be changed; and `dither plugins test`."""
