"""Ordered, parallel, block-wise and self-correcting decoding: how many, which, and with which distribution."""

import itertools

import pytest
import torch

from dither.processes.samplers.ordered import Ordered
from dither.processes.samplers.particle_gibbs import log_step_prob
from dither.processes.samplers.self_correction import SelfCorrect
from dither.processes.timestep_sampling import time_of
from dither.processes.tokens import unmasking
from dither.processes.tokens.unmasking import draw_prior
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import Field, TokenSpace

P = torch.tensor(
    [
        [0.97, 0.02, 0.01],
        [0.6, 0.3, 0.1],
        [0.95, 0.04, 0.01],
        [0.4, 0.3, 0.3],
        [0.85, 0.1, 0.05],
    ]
)
JOINT = torch.tensor(
    [[[5.0, 1.0], [0.5, 2.0]], [[1.0, 3.0], [0.2, 4.0]]], dtype=torch.float64
)


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
            sums = [
                float(entropy[order[:k]].sum() - entropy[order[:k]].max())
                for k in range(1, len(left) + 1)
            ]
            count = max(
                k
                for k, risk in enumerate(sums, 1)
                if k == 1 or risk <= options["entropy_bound"]
            )
        counts.append(count)
        left = left[order[count:]]
    return counts


@pytest.mark.parametrize(
    "options",
    [{"threshold": t} for t in (0.3, 0.84, 0.96, 0.99)]
    + [{"entropy_bound": b} for b in (0.0, 0.15, 0.5, 1.0, 10.0)],
)
def test_parallel_decoding_unmasks_what_is_sure(
    process_of, recorder, options: dict
) -> None:
    process = process_of("absorbing", TokenSpace((Field("text", 5, 3),)))
    like = Clean.of(torch.zeros(7, 5).long(), known=torch.zeros(7, 5, dtype=torch.bool))
    like.known[1, :] = True  # a row with nothing to unmask
    session = recorder(process, P.log())
    by = "confidence" if "threshold" in options else "entropy"
    states = list(Ordered(by=by, **options).build()(process, session, like))
    masked = [int((x[0] == 3).sum()) for x in (*session.states, states[-1])]
    assert [a - b for a, b in itertools.pairwise(masked)] == expected_counts(options)
    for x, t in zip(session.states, session.times, strict=True):
        share = (x == 3).sum(1) / (~like.known).sum(1).clamp_min(1)
        torch.testing.assert_close(
            t.double(), time_of(process.schedule, share.double()), atol=1e-6, rtol=1e-6
        )


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"threshold": 0.84}, [5, 2, 2, 2, 1]),
        ({"threshold": 0.96}, [5, 4, 3, 2, 1]),
        ({"threshold": 0.3}, [5]),
        ({"by": "entropy", "entropy_bound": 0.5}, [5, 2, 2, 2, 1]),
        # The mean entropy of `P` is .577 nats, .683 without the first position.
        ({"stop": 0.7}, [5, 4]),
        ({"stop": 0.57}, [5, 4, 3, 2, 1]),
        ({"by": "random"}, [5, 4, 3, 2, 1]),
    ],
)
@pytest.mark.parametrize("kind", ["uniform", "hybrid", "absorbing"])
def test_undecided_positions_are_noised_again(
    process_of, recorder, kind: str, options: dict, left: list[int]
) -> None:
    """How many positions are noise at each call, which the model is told as time; the sample ends when none is."""
    process = process_of(kind, TokenSpace((Field("text", 5, 3),)))
    like = Clean.of(torch.ones(90, 5).long(), known=torch.zeros(90, 5).bool())
    like.known[30:60] = torch.tensor([True, True, True, False, True])
    like.known[60:] = True
    session = recorder(process, P.log())
    *_, x = Ordered(steps=5, **options).build()(process, session, like)
    if kind == "absorbing":
        # Decided positions stay, so that every call decides others.
        left = list(dict.fromkeys(left))
    times = torch.stack(session.times)
    left = left + [0] * (len(times) - len(left))
    shares = torch.tensor(left).double() / 5
    expected = time_of(process.schedule, shares).float()
    torch.testing.assert_close(times[:, 0], expected, atol=1e-5, rtol=0)
    assert (x < 3).all()
    assert (x[like.known] == 1).all()

    states = torch.stack([*session.states, x])
    # The least certain position is noise until the last call; finished samples do not change.
    if kind != "absorbing" and options.get("by") != "random":
        calls = sum(n > 0 for n in left)
        changes = states[1:calls, :30, 3] != states[: calls - 1, :30, 3]
        assert (changes.double().mean(1) > 0.1).all()
    finished = times[:, 30:60].amax(1) < 1e-3
    assert (states[:-1, 30:60][finished] == x[30:60]).all()


def law_of_two_calls(joint: torch.Tensor, alpha: float) -> torch.Tensor:
    """The distribution of two decided bits: one after the first call, both after a second at this alpha."""
    marginals = [joint.sum(1), joint.sum(0)]
    entropies = [float(torch.special.entr(p).sum()) for p in marginals]
    first = entropies.index(min(entropies))
    law = torch.zeros(2, 2, dtype=torch.float64)
    for bit, noise in itertools.product(range(2), range(2)):
        x = [bit, noise] if first == 0 else [noise, bit]
        # p(x_0 | x_t) from q(x_t | x_0) = alpha [x_t = x_0] + (1 - alpha) / 2
        likelihood = [alpha * torch.eye(2)[i] + (1 - alpha) / 2 for i in x]
        posterior = joint * torch.outer(*likelihood)
        posterior = posterior / posterior.sum()
        independent = torch.outer(posterior.sum(1), posterior.sum(0))
        law += marginals[first][bit] / 2 * independent
    return law


def test_distribution_under_uniform_noise(process_of, oracle, likely) -> None:
    """Samples have the distribution of this algorithm, which is .14 in total variation from that of the model."""
    joint = torch.tensor([[0.5, 0.1], [0.15, 0.25]], dtype=torch.float64)
    process = process_of("uniform", TokenSpace((Field("text", 2, 2),)))
    sampler = Ordered(by="entropy", steps=2).build()
    like = Clean.of(torch.zeros(20_000, 2).long())
    *_, x = sampler(process, oracle(process, joint), like)
    law = law_of_two_calls(joint, alpha=0.5)
    assert likely(2 * x[:, 0] + x[:, 1], law.flatten()) > 1e-4
    assert likely(2 * x[:, 0] + x[:, 1], joint.flatten()) < 1e-6


def test_noise_between_steps_is_that_of_its_time(
    part, likely, recorder, monkeypatch
) -> None:
    """Under gidd wrong tokens become rarer with time: the share of MASK among the drawn noise follows."""
    process = part("process", "gidd", uniform=0.2).build(
        TokenSpace((Field("text", 1, 3),))
    )
    for t in (0.1, 0.6, 0.99):
        times = torch.full((20_000,), t, dtype=torch.float64)
        ids = draw_prior(process, times, Clean.of(torch.zeros(20_000, 1).long()))
        # B / (B + r) of the replaced tokens are wrong ones, r^2 = t / (1 - t), B = 2 p / (1 - p).
        wrong = 0.5 / (0.5 + (t / (1 - t)) ** 0.5)
        law = torch.tensor([wrong / 3] * 3 + [1 - wrong])
        assert likely(ids, law) > 1e-4

    times = []

    def recorded(process, t, like):
        times.append(t)
        return draw_prior(process, t, like)

    monkeypatch.setattr(unmasking, "draw_prior", recorded)
    session = recorder(process, P[:1].log())
    like = Clean.of(torch.zeros(2, 1).long())
    [*Ordered(steps=1).build()(process, session, like)]
    assert torch.equal(torch.stack(times), torch.stack(session.times))


def test_a_bound_of_zero_draws_dependent_positions_one_by_one(
    process_of, oracle, likely
) -> None:
    process = process_of("absorbing", TokenSpace((Field("text", 3, 2),)))
    sampler = Ordered(by="entropy", entropy_bound=0.0).build()
    (*_, x) = sampler(
        process, oracle(process, JOINT), Clean.of(torch.zeros(5000, 3).long())
    )
    assert likely(4 * x[:, 0] + 2 * x[:, 1] + x[:, 2], JOINT.flatten()) > 1e-3


@pytest.mark.parametrize("size", [1, 2])
def test_semi_autoregressive_blocks(
    part, process_of, recorder, oracle, likely, size: int
) -> None:
    """Exact with an exact inner sampler; later blocks are masked, earlier ones finished, and times are of the whole."""
    n, process = 4000, process_of("absorbing", TokenSpace((Field("text", 3, 2),)))
    session = recorder(process, session=oracle(process, JOINT))
    known = torch.zeros(n, 3, dtype=torch.bool)
    known[: n // 2, 1] = True
    spec = part("sampler", "semi-autoregressive", size=size, inner="first-hitting")
    assert spec.traits() == {"exact-distribution"}
    like = Clean.of(torch.ones(n, 3).long(), known=known)
    (*_, x) = spec.build()(process, session, like)
    assert likely(2 * x[: n // 2, 0] + x[: n // 2, 2], JOINT[:, 1].flatten()) > 1e-3
    free = x[n // 2 :]
    assert likely(4 * free[:, 0] + 2 * free[:, 1] + free[:, 2], JOINT.flatten()) > 1e-3
    for state, t in zip(session.states, session.times, strict=True):
        masked = state[n // 2 :] == 2
        for start in range(0, 3, size):
            later = masked[:, start + size :]
            assert later.all(1)[masked[:, start : start + size].any(1)].all()
        share = (state == 2).sum(1) / (~known).sum(1)
        torch.testing.assert_close(
            t.double(), time_of(process.schedule, share.double()), atol=1e-6, rtol=1e-6
        )


def test_self_correction_finds_the_wrong_token(process_of, recorder, oracle) -> None:
    """Data are 0000, 1111 and 0111: each draft moves to the sequence that explains it best, one token per call."""
    joint = torch.zeros(2, 2, 2, 2)
    joint[0, 0, 0, 0] = joint[1, 1, 1, 1] = 1.0
    joint[0, 1, 1, 1] = 0.2
    process = process_of("hybrid", TokenSpace((Field("text", 4, 2),)))
    drafts = torch.tensor([[0, 0, 0, 1], [1, 1, 0, 1], [0, 0, 0, 0], [1, 0, 0, 0]])
    known = torch.zeros(4, 4, dtype=torch.bool)
    known[3, 0] = True
    session = recorder(process, session=oracle(process, joint))
    options, like = SelfCorrect(temperature=0.0), Clean.of(drafts, known=known)
    *states, x = options.sample(process, session, like, inner=lambda *_: iter([drafts]))
    assert x[:3].tolist() == [[0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert x[3, 0] == 1  # known
    for before, after in itertools.pairwise([*states, x]):
        assert (before != after).sum(1).max() <= 1
    assert len(session.states) <= 6 < options.iterations, "it ends when nothing changes"


ORDERS = ("confidence", "drawn", "margin", "entropy", "random")


@pytest.mark.parametrize("by", ORDERS)
@pytest.mark.parametrize("schedule", ["log-linear", "cosine", "geometric"])
def test_counts_and_times_match(text_process, recorder, by: str, schedule: str) -> None:
    """After each step round(N (1 - alpha)) are masked; the model gets the time at which that share is expected."""
    length, steps = 36, 10
    process = text_process("absorbing", length, 3, schedule=schedule)
    session = recorder(process, torch.randn(1, length, 4))
    known = torch.zeros(5, length, dtype=torch.bool)
    known[1, :7] = known[2, :] = True
    like = Clean.of(torch.zeros(5, length).long(), known=known)
    states = list(Ordered(by=by, steps=steps).build()(process, session, like))
    total = (~known).sum(1)
    lost = -(-process.schedule(torch.linspace(1, 0, steps + 1).double()).sigma).expm1()
    lost[-1] = 0
    expected = (total[:, None] * lost).round().long()
    masked = torch.stack([(x == 3).sum(1) for x in states], 1)
    shown = [
        step
        for step in range(1, steps + 1)
        if (expected[:, step] < expected[:, :step].amin(1)).any()
    ]
    assert masked.tolist() == expected[:, shown].tolist()
    assert masked[:, -1].tolist() == [0] * 5
    for x, t in zip(session.states, session.times, strict=True):
        share = (x == 3).sum(1) / total.clamp_min(1)
        torch.testing.assert_close(
            t.double(), time_of(process.schedule, share.double()), atol=1e-6, rtol=1e-6
        )
        assert torch.equal(x[known], like.x0[known])  # in sight of the very first call
    for before, after in itertools.pairwise(states):
        assert torch.equal(
            after[before != 3], before[before != 3]
        )  # what is shown stays


LAWS = torch.tensor([[0.5, 0.25, 0.25], [0.45, 0.45, 0.10], [0.42, 0.29, 0.29]])
"""The first is the likeliest and furthest ahead, the second has the least entropy."""


@pytest.mark.parametrize(
    ("by", "order"),
    [("confidence", [0, 1, 2]), ("margin", [0, 2, 1]), ("entropy", [1, 0, 2])],
)
def test_which_comes_first(text_process, recorder, by: str, order: list[int]) -> None:
    process = text_process("absorbing", 3, 3)
    logits = torch.cat([LAWS.log(), torch.zeros(3, 1)], 1)[None]
    found = [Clean.of(torch.zeros(8, 3).long())]
    states = [
        torch.full((8, 3), 3),
        *Ordered(by=by, steps=3).build()(process, recorder(process, logits), found[0]),
    ]
    for before, after, place in zip(states, states[1:], order, strict=False):
        assert ((before != after).nonzero()[:, 1] == place).all()


def test_equal_scores_are_settled_by_lot(text_process, recorder, likely) -> None:
    """An untrained model is not read from left to right."""
    process = text_process("absorbing", 4, 3)
    first, *_ = Ordered(by="margin", steps=4).build()(
        process,
        recorder(process, torch.zeros(1, 4, 4)),
        Clean.of(torch.zeros(6000, 4).long()),
    )
    assert likely((first != 3).nonzero()[:, 1], torch.ones(4) / 4) > 1e-3


def test_drawn_prefers_what_is_likely_by_a_known_amount(
    text_process, recorder, likely
) -> None:
    """Of two tokens with law p, 1 - p the surer draw is shown first: the likely id unless both came out unlikely."""
    p, n = 0.7, 20_000
    process = text_process("absorbing", 2, 2)
    logits = torch.tensor([p, 1 - p, 1.0]).log().expand(1, 2, 3)
    first, last = Ordered(by="drawn", steps=2).build()(
        process, recorder(process, logits), Clean.of(torch.zeros(n, 2).long())
    )
    shown = first[first != 2]
    assert likely(shown, torch.tensor([1 - (1 - p) ** 2, (1 - p) ** 2])) > 1e-3
    assert likely(last[first == 2], torch.tensor([p, 1 - p])) > 1e-3


def test_noise_is_gumbel_and_falls_with_the_share_masked(
    text_process, recorder, likely
) -> None:
    """Scores log p with Gumbel noise of scale c choose among positions with odds p^(1/c): Plackett and Luce."""
    process, n, scale = text_process("absorbing", 3, 3), 20_000, 2.0
    logits = torch.cat([LAWS.log(), torch.zeros(3, 1)], 1)[None]
    first, second, _ = Ordered(by="confidence", steps=3, noise=scale).build()(
        process, recorder(process, logits), Clean.of(torch.zeros(n, 3).long())
    )
    strength = LAWS.amax(1).double()
    odds = strength ** (1 / scale)
    assert likely((first != 3).nonzero()[:, 1], odds / odds.sum()) > 1e-3
    assert likely((first != 3).nonzero()[:, 1], torch.ones(3) / 3) < 1e-3
    rows = (first != 3)[
        :, 0
    ]  # the first position came first: of the others, at two thirds of the scale
    odds = strength[1:] ** (1.5 / scale)
    assert (
        likely(
            ((second != 3) & (first == 3))[rows][:, 1:].nonzero()[:, 1],
            odds / odds.sum(),
        )
        > 1e-3
    )


CHAIN = torch.tensor(
    [[0.8, 0.15, 0.05], [0.05, 0.8, 0.15], [0.15, 0.05, 0.8]], dtype=torch.float64
)
CHAIN_JOINT = torch.einsum("ab,bc->abc", CHAIN, CHAIN) / 3


# The known first token is rare, and so taken for noise.
RARE_JOINT = torch.tensor(
    [[0.5, 0.01, 0.01], [0.02, 0.02, 0.2], [0.02, 0.2, 0.02]], dtype=torch.float64
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "joint", "values", "free"),
    [
        ("marginal", CHAIN_JOINT, [0, 0, 2], 1),
        ("uniform", RARE_JOINT, [1, 0], 1),
        ("hybrid", RARE_JOINT, [1, 0], 1),
        ("gidd", RARE_JOINT, [1, 0], 1),
    ],
)
def test_the_conditional_law(
    name, joint, values, free, part, text_process, oracle
) -> None:
    """Total variation over the free token; ancestral sampling, which clamps known tokens, is far off."""
    length = joint.ndim
    steps = 16
    share = {}
    if name == "gidd":
        # Of few wrong ids, the bias is small, and the error of a step is larger than under others.
        steps = 256
        share = {"uniform": 0.5}
    process = text_process(
        name, length, 3, predict="posterior", schedule="log-linear", **share
    )
    rows = 1000
    like = Clean.of(
        torch.tensor(values).expand(rows, length),
        known=(torch.arange(length) != free).expand(rows, length),
    )
    law = joint[tuple(slice(None) if i == free else values[i] for i in range(length))]

    def distance(sampler: str, **options: int) -> float:
        *_, x = part("sampler", sampler, **options).build()(
            process, oracle(process, joint), like
        )
        assert torch.equal(x[like.known], like.x0[like.known])
        found = torch.bincount(x[:, free], minlength=3) / rows
        return float((found - law / law.sum()).abs().sum() / 2)

    assert distance("ancestral", steps=16) > 0.08
    # The noise of the rows is 0.03.
    assert distance("particle-gibbs", steps=steps, particles=4, sweeps=3) < 0.05


def test_the_probability_of_a_step_is_that_of_its_draws(
    text_process, oracle, likely
) -> None:
    process, rows = (
        text_process("marginal", 2, 3, predict="posterior", schedule="log-linear"),
        20_000,
    )
    now, then = (
        process.schedule(torch.full((rows,), t, dtype=torch.float64))
        for t in (0.7, 0.3)
    )
    state = State.of(torch.tensor([2, 1]).expand(rows, 2))
    pred = oracle(process, CHAIN_JOINT.sum(2))(state, torch.full((rows,), 0.7))
    like = Clean.of(state.x)
    drawn = process.step(state, pred, now, then, like).x
    for place in (0, 1):
        given = Clean.of(state.x, known=(torch.arange(2) == place).expand(rows, 2))
        p = [
            log_step_prob(
                process,
                state,
                pred.at(given.known),
                now,
                then,
                torch.full_like(state.x, y),
                given,
            )[0]
            for y in range(3)
        ]
        assert float(torch.stack(p).exp().sum()) == pytest.approx(1)
        assert likely(drawn[:, place], torch.stack(p).exp()) > 1e-3
