"""The conformance kit of dither, run over everything that this plugin offers."""

from dither.testing import conformance


@conformance.parametrize(plugin="sigmoid")
def test_conformance(case):
    case.run()
