"""Is this environment in order, and what to do where it is not: small checks, each of which yields findings."""

from .examine import examine
from .findings import Finding

__all__ = ["Finding", "examine"]
