"""Run import-linter over `dither`, a package in several folders, all of which its spec must list."""

from importlinter.cli import lint_imports_command

import dither

assert dither.__spec__ is not None
dither.__spec__.submodule_search_locations = list(dither.__path__)
lint_imports_command()
