"""The conformance kit of dither, for every component of this plugin."""

from typing import Any

from dither.testing import conformance


@conformance.parametrize(plugin="dilated")
def test_conformance(case: Any) -> None:
    case.run()
