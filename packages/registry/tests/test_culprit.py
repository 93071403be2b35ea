"""The plugin and component of the code that raised an exception."""

import json

import pytest

from dither.registry.plugins.culprit import culprit_of
from dither.registry.plugins.manager import load_plugins

PLUGIN = """
from functools import partial
from dither.registry import hookimpl
from dither.registry.kinds import LRScheduleSpec

def multiple(factor, step):
    return factor / 0

class Method(LRScheduleSpec):
    "An object."
    name = "tp-method"
    def build(self, steps):
        return Object()

class Object:
    def __call__(self, step):
        return self.helper(step)
    def helper(self, step):
        return step / 0

class Closure(LRScheduleSpec):
    "A function."
    name = "tp-closure"
    def build(self, steps):
        return lambda step: step / 0

class Partial(LRScheduleSpec):
    "A function with an argument."
    name = "tp-partial"
    def build(self, steps):
        return partial(multiple, 2)

class Library(LRScheduleSpec):
    "Code of a library."
    name = "tp-library"
    def build(self, steps):
        def read(step):
            import json
            return json.loads("{")
        return read

class Building(LRScheduleSpec):
    "Fails before it is built."
    name = "tp-building"
    def build(self, steps):
        raise SystemExit(3)

@hookimpl
def register_components():
    return [Method, Closure, Partial, Library, Building]

def command():
    raise KeyError("x")
"""


def failure(call):
    with pytest.raises(BaseException) as info:
        call()
    return info.value


@pytest.mark.parametrize(
    "name", ["tp-method", "tp-closure", "tp-partial", "tp-library", "tp-building"]
)
def test_components_are_found_by_the_code_that_raised(install, name):
    install("tp-guilty", PLUGIN)
    catalog = load_plugins().catalog
    spec = catalog.parse("lr-schedule", name)
    # The kind calls what is built, to check it.
    culprit = culprit_of(failure(lambda: spec.build(10)))
    assert (culprit.plugin, culprit.origin) == ("tp-guilty", "tp-guilty 1.0")
    assert culprit.component.name == name
    assert name in culprit.title
    assert "tp-guilty 1.0" in culprit.title


def test_causes_count_and_own_code_does_not(install):
    install("tp-guilty", PLUGIN)
    spec = load_plugins().catalog.parse("lr-schedule", "tp-closure")

    def wrapped():
        try:
            spec.build(10)
        except ZeroDivisionError as error:
            raise RuntimeError("of the engine") from error

    error = failure(wrapped)
    culprit = culprit_of(error)
    assert culprit.component.name == "tp-closure"
    assert culprit.error is error.__cause__
    assert culprit_of(failure(lambda: json.loads("{"))) is None


def test_several_components_are_not_mistaken_for_one_another(install):
    """Code that no component is known for names the plugin alone."""
    module = install("tp-guilty", PLUGIN).stem
    load_plugins()
    culprit = culprit_of(failure(__import__(module).command))
    assert culprit.component is None
    assert culprit.title == 'plugin "tp-guilty" (tp-guilty 1.0)'
