"""`dither new plugin`: packages with one component, tested and ready to be changed; and `dither test-plugin`."""

from .package import Names, check_kind, check_names, plugin_text, render, write_package, write_single_file

__all__ = ["Names", "check_kind", "check_names", "plugin_text", "render", "write_package", "write_single_file"]
