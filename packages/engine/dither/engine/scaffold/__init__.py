"""What `dither new plugin` writes: a complete package with one part of any kind, tested and ready to be changed."""

from .package import Names, check_kind, check_names, render, write_package

__all__ = ["Names", "check_kind", "check_names", "render", "write_package"]
