"""Run import-linter over `dither`, which lies in several folders: it looks where the spec of a package says."""

from importlinter.cli import lint_imports_command

import dither

assert dither.__spec__ is not None
dither.__spec__.submodule_search_locations = list(dither.__path__)
lint_imports_command()
