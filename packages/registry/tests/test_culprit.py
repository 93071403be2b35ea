"""The plugin and component of the code that raised an exception."""

import copy
import gc
import json
import weakref

import pytest

from dither.registry.kinds import LRScheduleSpec
from dither.registry.plugins.culprit import culprit_of
from dither.registry.plugins.manager import load_plugins
from dither.registry.spec.base import origin_of

PLUGIN = """
from functools import partial, wraps
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

class Decorated(LRScheduleSpec):
    "A decorated function."
    name = "tp-decorated"
    def build(self, steps):
        @wraps(multiple)
        def wrapper(step):
            return multiple(2, step)
        return wrapper

class Bound(LRScheduleSpec):
    "A method."
    name = "tp-bound"
    def build(self, steps):
        return Other().divide

class Other:
    def divide(self, step):
        return step / 0

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
    return [Method, Closure, Partial, Decorated, Bound, Library, Building]

def command():
    raise KeyError("x")
"""


def failure(call):
    with pytest.raises(BaseException) as info:
        call()
    return info.value


NAMES = (
    "tp-method",
    "tp-closure",
    "tp-partial",
    "tp-decorated",
    "tp-bound",
    "tp-library",
    "tp-building",
)


@pytest.mark.parametrize("name", NAMES)
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


def test_an_exception_may_be_its_own_cause():
    def circle():
        try:
            json.loads("{")
        except ValueError as error:
            raise error from error

    assert culprit_of(failure(circle)) is None


WRAPPER = """
from dither.registry import hookimpl
from dither.registry.kinds import LRScheduleSpec
from dither.registry.spec.base import Slot

class Wrapper(LRScheduleSpec):
    "Returns what another one has built."
    name = "tp-wrapper"
    inner: Slot[LRScheduleSpec]
    def build(self, steps):
        return self.inner.build(steps)

@hookimpl
def register_components():
    return [Wrapper]
"""


def test_a_component_of_another_plugin_is_not_named(install):
    install("tp-guilty", PLUGIN.replace("step / 0", "1 / (step - 2)"))
    install("tp-outer", WRAPPER)
    options = {"use": "tp-wrapper", "inner": "tp-method"}
    schedule = load_plugins().catalog.parse("lr-schedule", options).build(10)
    culprit = culprit_of(failure(lambda: schedule(2)))
    assert culprit.title == 'plugin "tp-guilty" (tp-guilty 1.0)'


def test_equal_code_of_two_plugins_is_that_of_two_components(install):
    first = PLUGIN.partition("class Decorated")[0]
    first += "@hookimpl\ndef register_components():\n    return [Closure]\n"
    install("tp-one", first)
    install("tp-two", first.replace('"tp-closure"', '"tp-other"'))
    catalog = load_plugins().catalog
    specs = [catalog.parse("lr-schedule", name) for name in ("tp-closure", "tp-other")]
    errors = [failure(lambda spec=spec: spec.build(10)) for spec in specs]
    names = [culprit_of(error).component.name for error in errors]
    assert names == ["tp-closure", "tp-other"]


def test_a_package_may_be_called_like_the_module_of_a_file(install):
    install("tp-guilty", PLUGIN, module="dither_plugin_guilty")
    spec = load_plugins().catalog.parse("lr-schedule", "tp-closure")
    assert culprit_of(failure(lambda: spec.build(10))).plugin == "tp-guilty"


class Local(LRScheduleSpec):
    """Makes a class for each object."""

    name = "local"

    def build(self, steps):
        class Constant:
            def __call__(self, step):
                return 1.0

        return Constant()


def test_origins_are_forgotten_with_what_was_built():
    spec = Local()
    built = spec.build(10)
    assert origin_of(built) is spec
    assert origin_of(copy.deepcopy(built)) is spec
    reference = weakref.ref(type(built))
    del built
    gc.collect()
    assert reference() is None


def test_several_components_are_not_mistaken_for_one_another(install):
    """Code that no component is known for names the plugin alone."""
    module = install("tp-guilty", PLUGIN).stem
    load_plugins()
    culprit = culprit_of(failure(__import__(module).command))
    assert culprit.component is None
    assert culprit.title == 'plugin "tp-guilty" (tp-guilty 1.0)'
