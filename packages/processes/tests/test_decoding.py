"""Parallel, block-wise and self-correcting decoding: how many, which, and the distribution of exact models."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from dither.processes.decoding.self_correction import SelfCorrect
from dither.processes.samplers.confidence import Ordered
from dither.processes.timestep_sampling import time_of
from dither.registry.flow.records import Clean, State
from dither.registry.flow.spaces import Field, TokenSpace
from dither.registry.kinds import ModelFacts

P = torch.tensor([[0.97, 0.02, 0.01], [0.6, 0.3, 0.1], [0.95, 0.04, 0.01], [0.4, 0.3, 0.3], [0.85, 0.1, 0.05]])
JOINT = torch.tensor([[[5.0, 1.0], [0.5, 2.0]], [[1.0, 3.0], [0.2, 4.0]]], dtype=torch.float64)


class Recorder:
    """A session that records states and times; `p` gives the same probabilities at every state."""

    def __init__(self, process: Any, p: Tensor | None = None, session: Any = None) -> None:
        self.process, self.p, self.session = process, p, session
        self.states, self.times = list[Tensor](), list[Tensor]()

    def __call__(self, state: State, t: Tensor) -> Any:
        self.states.append(state.x)
        self.times.append(t)
        if self.session is not None:
            return self.session(state, t)
        raw = torch.nn.functional.pad(self.p.log(), (0, self.process.space.vocab - self.p.shape[1]))
        return self.process.read(raw.expand(len(state.x), -1, -1), state, self.process.schedule(t))


def expected_counts(options: dict[str, float]) -> list[int]:
    """How many positions of `P` each call unmasks, by trying every number."""
    left, counts = P.clone(), []
    while len(left):
        if "threshold" in options:
            count = max(1, int((left.amax(1) >= options["threshold"]).sum()))
            order = left.amax(1).argsort(descending=True)
        else:
            entropy = torch.special.entr(left).sum(1)
            order = entropy.argsort()
            sums = [float(entropy[order[:k]].sum() - entropy[order[:k]].max()) for k in range(1, len(left) + 1)]
            count = max(k for k, risk in enumerate(sums, 1) if k == 1 or risk <= options["entropy_bound"])
        counts.append(count)
        left = left[order[count:]]
    return counts


@pytest.mark.parametrize(
    "options",
    [{"threshold": t} for t in (0.3, 0.84, 0.96, 0.99)] + [{"entropy_bound": b} for b in (0.0, 0.15, 0.5, 1.0, 10.0)],
)
def test_parallel_decoding_unmasks_what_is_sure(process_of, options: dict) -> None:
    process = process_of("absorbing", TokenSpace((Field("text", 5, 3),)))
    like = Clean.of(torch.zeros(7, 5).long(), known=torch.zeros(7, 5, dtype=torch.bool))
    like.known[1, :] = True  # a row with nothing to unmask
    session = Recorder(process, P)
    by = "confidence" if "threshold" in options else "entropy"
    states = list(Ordered(by=by, **options).build()(process, session, like))
    masked = [int((x[0] == 3).sum()) for x in (*session.states, states[-1])]
    assert [a - b for a, b in itertools.pairwise(masked)] == expected_counts(options)
    for x, t in zip(session.states, session.times, strict=True):
        share = (x == 3).sum(1) / (~like.known).sum(1).clamp_min(1)
        torch.testing.assert_close(t.double(), time_of(process.schedule, share.double()), atol=1e-6, rtol=1e-6)


def test_a_bound_of_zero_draws_dependent_positions_one_by_one(process_of, oracle, likely) -> None:
    process = process_of("absorbing", TokenSpace((Field("text", 3, 2),)))
    sampler = Ordered(by="entropy", entropy_bound=0.0).build()
    (*_, x) = sampler(process, oracle(process, JOINT), Clean.of(torch.zeros(20_000, 3).long()))
    assert likely(4 * x[:, 0] + 2 * x[:, 1] + x[:, 2], JOINT.flatten()) > 1e-3


def test_options_of_parallel_decoding_exclude_each_other(part) -> None:
    facts = part("process", "absorbing").facts(TokenSpace((Field("text", 5, 3),)))

    def problems(**options: Any) -> set[tuple]:
        return {(m.code, m.path) for m in part("sampler", "ordered", **options).check(facts, ModelFacts())}

    assert not problems(threshold=0.9)
    assert not problems(entropy_bound=0.1, by="entropy")
    assert problems(threshold=0.9, steps=3) == {("no-effect", ("steps",))}
    assert problems(threshold=0.9, by="margin", noise=1.0) == {("misfit", ("threshold",))}
    assert problems(threshold=0.9, entropy_bound=0.1) == {("misfit", ("entropy_bound",))}


@pytest.mark.parametrize("size", [1, 2, 3])
def test_semi_autoregressive_blocks(part, process_of, oracle, likely, size: int) -> None:
    """Exact with an exact inner sampler; later blocks are masked, earlier ones finished, and times are of the whole."""
    n, process = 20_000, process_of("absorbing", TokenSpace((Field("text", 3, 2),)))
    session = Recorder(process, session=oracle(process, JOINT))
    known = torch.zeros(n, 3, dtype=torch.bool)
    known[: n // 2, 1] = True
    spec = part("sampler", "semi-autoregressive", size=size, inner="first-hitting")
    assert spec.traits() == {"exact-distribution"}
    (*_, x) = spec.build()(process, session, Clean.of(torch.ones(n, 3).long(), known=known))
    assert likely(2 * x[: n // 2, 0] + x[: n // 2, 2], JOINT[:, 1].flatten()) > 1e-3
    free = x[n // 2 :]
    assert likely(4 * free[:, 0] + 2 * free[:, 1] + free[:, 2], JOINT.flatten()) > 1e-3
    for state, t in zip(session.states, session.times, strict=True):
        masked = state[n // 2 :] == 2
        for start in range(0, 3, size):
            later = masked[:, start + size :]
            assert later.all(1)[masked[:, start : start + size].any(1)].all()
        share = (state == 2).sum(1) / (~known).sum(1)
        torch.testing.assert_close(t.double(), time_of(process.schedule, share.double()), atol=1e-6, rtol=1e-6)


def test_what_semi_autoregressive_and_self_correct_refuse(part) -> None:
    space = TokenSpace((Field("text", 8, 3),))

    def paths(sampler: str, process: str, model: ModelFacts | None = None, **options: Any) -> list[tuple]:
        spec = part("sampler", sampler, **options)
        return [m.path for m in spec.check(part("process", process).facts(space), model or ModelFacts())]

    assert not paths("semi-autoregressive", "absorbing")
    assert paths("semi-autoregressive", "hybrid") == [(), ("inner",)]
    assert paths("semi-autoregressive", "absorbing", ModelFacts(4)) == [()]
    assert ("inner",) in paths("semi-autoregressive", "absorbing", inner={"use": "blocks", "approximate": True})
    assert not paths("self-correct", "hybrid")
    assert paths("self-correct", "absorbing") == [()]
    assert ("inner",) in paths("self-correct", "uniform", inner="self-correct")


def test_self_correction_finds_the_wrong_token(process_of, oracle) -> None:
    """Data are 0000, 1111 and 0111: each draft moves to the sequence that explains it best, one token per call."""
    joint = torch.zeros(2, 2, 2, 2)
    joint[0, 0, 0, 0] = joint[1, 1, 1, 1] = 1.0
    joint[0, 1, 1, 1] = 0.2
    process = process_of("hybrid", TokenSpace((Field("text", 4, 2),)))
    drafts = torch.tensor([[0, 0, 0, 1], [1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    known = torch.zeros(4, 4, dtype=torch.bool)
    known[3, 0] = True
    session = Recorder(process, session=oracle(process, joint))
    options, like = SelfCorrect(temperature=0.0), Clean.of(drafts, known=known)
    *states, x = options.sample(process, session, like, inner=lambda *_: iter([drafts]))
    assert x[:3].tolist() == [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert x[3, 0] == 1  # known
    for before, after in itertools.pairwise([*states, x]):
        assert (before != after).sum(1).max() <= 1
    assert len(session.states) <= 6 < options.iterations, "it ends when nothing changes"
