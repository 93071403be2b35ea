"""The conformance kit: what a part must keep to, as checks that any plugin can run over its own parts."""

from .checks import CHECKS, Check
from .conformance import Case, parametrize
from .situations import Situation
from .strategies import cleans, spaces, specs

__all__ = ["CHECKS", "Case", "Check", "Situation", "cleans", "parametrize", "spaces", "specs"]
