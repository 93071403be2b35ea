"""Sampling block by block: samples that end, prompts that are only remembered, and no call that is not needed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from dither.processes.samplers.blocks import Blocks
from dither.processes.samplers.first_hitting import FirstHitting
from dither.processes.tokens.process import TokenProcess
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import Field, TokenSpace
from dither.registry.kinds import ModelFacts

LENGTH, IDS, END = 10, 5, 4
CONTEXT = 4


def process_of(
    part: Any, kind: str = "absorbing", end: int | None = END
) -> TokenProcess:
    built: TokenProcess = part("process", kind, predict="posterior").build(
        TokenSpace((Field("text", LENGTH, IDS, end=end),))
    )
    return built


class Script:
    """A session that is sure of a text, position by position, and counts."""

    def __init__(self, process: TokenProcess, text: Tensor) -> None:
        self.process, self.text = process, text
        self.calls: list[tuple[int, int]] = []
        self.remembered: list[Tensor] = []
        self.start = 0
        self.dropped = 0

    def __call__(self, state: State, t: Tensor, at: Tensor | None = None) -> Any:
        width = state.x.shape[1]
        self.calls.append((self.start, width))
        raw = torch.full((*state.x.shape, self.process.space.vocab), -1e4)
        target = self.text[:, self.start : self.start + width, None]
        raw.scatter_(-1, target, 0.0)
        pred = self.process.read(raw, state, self.process.schedule(t))
        return pred if at is None else pred.at(at)

    def append(self, x: Tensor) -> None:
        self.remembered.append(x)
        self.start += x.shape[1]

    def drop(self, count: int) -> None:
        self.dropped += count
        assert self.start - self.dropped == CONTEXT, "what a block sees"


def blocks(size: int, inner: Any, stop: bool = False) -> Any:
    return partial(Blocks(size=size, stop=stop).sample, inner=inner)


def walked(
    sampler: Any, process: TokenProcess, text: Tensor, like: Clean | None = None
) -> tuple[list[Tensor], Any]:
    session = Script(process, text)
    like = Clean.of(torch.zeros_like(text)) if like is None else like
    return [x.clone() for x in sampler(process, session, like)], session


def texts() -> Tensor:
    """The first ends inside its first block, the second at the end of its second, the third in its third."""
    text = torch.randint(0, END, (3, LENGTH))
    text[0, 1] = text[1, 5] = text[2, 7] = END
    return text


@pytest.mark.parametrize("kind", ["absorbing", "uniform"])
def test_a_row_ends_with_its_first_end(part: Any, kind: str) -> None:
    process, text = process_of(part, kind), texts()
    inner = part("sampler", "ancestral", steps=4).build()
    states, session = walked(blocks(3, inner, stop=True), process, text)
    for row, last in ((0, 1), (1, 5), (2, 7)):
        assert torch.equal(states[-1][row, : last + 1], text[row, : last + 1])
        assert (states[-1][row, last:] == END).all()
    assert session.calls == [(start, 3) for start in (0, 3, 6) for _ in range(5)], (
        "the last block is nobody's"
    )
    assert [x.shape[1] for x in session.remembered] == [3, 3]
    assert (session.remembered[0][0, 1:] == END).all(), (
        "what is remembered is what is given back"
    )
    drawn = torch.stack(states)
    assert (drawn[5:, 0, 3:6] == END).all() if kind == "absorbing" else True
    plain, _ = walked(blocks(3, inner), process, text)
    assert torch.equal(plain[-1], text), "nothing stops unless it is asked to"


def test_no_call_once_all_have_ended(part: Any) -> None:
    process, text = process_of(part), texts()
    text[:, 2] = END
    states, session = walked(
        blocks(3, FirstHitting().build(), stop=True), process, text
    )
    assert session.calls == [(0, 3)] * 3
    assert not session.remembered, "nothing is remembered for nobody"
    assert (states[-1][:, 2:] == END).all()


def test_an_end_that_is_given_ends_nothing_and_what_is_known_stays(part: Any) -> None:
    """A prompt may contain end ids, and known values after an end are never changed."""
    process, text = process_of(part), torch.randint(0, END, (2, LENGTH))
    text[:, 0] = END
    text[0, 4] = END
    known = torch.zeros(2, LENGTH, dtype=torch.bool)
    known[:, 0] = known[:, 8] = True
    like = Clean.of(text, known=known)
    states, _ = walked(
        blocks(3, FirstHitting().build(), stop=True), process, text, like
    )
    assert torch.equal(states[-1][1], text[1])
    expected = text[0].clone()
    expected[5:] = END
    expected[8] = text[0, 8]
    assert torch.equal(states[-1][0], expected)


@pytest.mark.parametrize(
    ("prompt", "chunks"),
    [(0, [4, 4]), (3, [4, 4]), (4, [4, 4]), (7, [4, 4]), (8, [8]), (9, [8])],
)
def test_a_prompt_is_remembered_and_not_drawn(
    part: Any, prompt: int, chunks: list[int]
) -> None:
    """Also one that ends inside a block: its known part is there in the first call and stays."""
    process, text = process_of(part), texts()
    known = (torch.arange(LENGTH) < prompt).expand(3, -1)
    states, session = walked(
        blocks(4, FirstHitting().build()), process, text, Clean.of(text, known=known)
    )
    assert torch.equal(states[-1], text)
    begun = prompt // 4 * 4
    assert session.calls == [
        (a, min(4, LENGTH - a))
        for a in range(begun, LENGTH, 4)
        for _ in range(_left(a, prompt))
    ]
    assert [x.shape[1] for x in session.remembered] == chunks
    assert torch.equal(torch.cat(session.remembered, 1), text[:, :8])
    for x in states:
        assert torch.equal(x[:, :prompt], text[:, :prompt])


def _left(start: int, prompt: int) -> int:
    """Calls of first-hitting in a block: one per position that is not known."""
    return min(start + 4, LENGTH) - max(start, prompt)


@pytest.mark.parametrize("prompt", [0, 3, 7])
def test_blocks_before_the_context_are_dropped(part: Any, prompt: int) -> None:
    """Also those of a prompt, which enter the cache one after the other."""
    process, text = process_of(part), torch.randint(0, END, (2, LENGTH))
    known = (torch.arange(LENGTH) < prompt).expand(2, -1)
    spec = Blocks(size=2, context=CONTEXT)
    sampler = partial(spec.sample, inner=FirstHitting().build())
    states, session = walked(sampler, process, text, Clean.of(text, known=known))
    assert torch.equal(states[-1], text)
    assert [x.shape[1] for x in session.remembered] == [2] * 4
    assert session.dropped == 8 - CONTEXT


def test_the_context_is_whole_blocks(part: Any) -> None:
    facts = part("process", "absorbing").facts(
        TokenSpace((Field("text", LENGTH, IDS),))
    )
    model = ModelFacts(cache=True, block_size=4)
    (misfit,) = Blocks(size=4, context=6).check(facts, model)
    assert misfit.path == ("context",)
    assert not list(Blocks(size=4, context=8).check(facts, model))
