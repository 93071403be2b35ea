"""Problems: the number that is shown, their place in a file, and the list of codes."""

import re
from pathlib import Path

import pytest

from dither.registry.config.errors import CODES, MAX_PROBLEMS, Origin, Problem, Refused


@pytest.mark.parametrize(
    ("found", "shown", "last"),
    [
        (1, 1, "0"),
        (MAX_PROBLEMS + 1, MAX_PROBLEMS + 1, str(MAX_PROBLEMS)),
        (9000, MAX_PROBLEMS + 1, None),
    ],
)
def test_the_number_of_problems_is_limited(found, shown, last):
    problems = Refused(
        [Problem(str(n), origin=Origin("a.toml", n + 1, 1, "x")) for n in range(found)]
    ).problems
    assert len(problems) == shown
    assert [problem.message for problem in problems[:-1]] == [
        str(n) for n in range(shown - 1)
    ]
    assert problems[-1].message == (last or "8,950 more problems are not shown")
    assert str(Refused(problems).problems[-1].origin) == (
        f"a.toml:{found}:1" if last else "a.toml"
    )


@pytest.mark.parametrize("text", ["one line", "", "a\n\nlast é", "a\n", "\n\n"])
def test_a_place_is_the_line_and_column_of_its_characters(text):
    for start in range(len(text) + 1):
        for end in (start, start + 1, len(text)):
            place = Origin.within("f", text, start, end)
            before = text[:start]
            assert (place.line, place.column) == (
                before.count("\n") + 1,
                start - before.rfind("\n"),
            )
            assert place.source == text.split("\n")[place.line - 1]
            assert place.width == max(
                1, min(end - start, len(place.source) - place.column + 1)
            )


def test_a_refusal_of_one_problem_has_its_attributes():
    place = Origin("a.toml", 1, 1, "x = 1")
    refused = Refused("wrong", ("x",), place, "write 2", given=1, code="wrong-type")
    problem = Problem("wrong", ("x",), place, "write 2", given=1, code="wrong-type")
    assert refused.problems == (problem,)
    assert Refused(problem).problems == (problem,)


ROOT = Path(__file__).parents[3]


def test_every_code_in_the_source_is_listed():
    sources = [path.read_text() for path in ROOT.glob("packages/*/dither/**/*.py")]
    used = {
        code for text in sources for code in re.findall(r'\bcode="([a-z-]+)"', text)
    }
    assert used <= set(CODES), sorted(used - set(CODES))
