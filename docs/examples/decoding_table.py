"""Model calls per token against quality of parallel decoding: a table of docs/results.md.

python docs/examples/decoding_table.py

Each row is 2,000 samples of 32 tokens with the exact denoiser of a Markov chain. `dither frontier` measures a trained
model.
"""

from typing import Any

import torch
from torch import Tensor

from dither.processes.tokens.process import TokenProcess
from dither.registry import Field, TokenSpace, default_catalog
from dither.registry.contracts.records import Clean, State
from dither.tasks.language_model.data.markov import MarkovChain

ROWS, LENGTH, IDS = 2000, 32, 8
CHAIN = MarkovChain(IDS, concentration=0.05, seed=0)
P, FIRST = torch.tensor(CHAIN.transitions), torch.tensor(CHAIN.stationary)
SAMPLERS: list[dict[str, Any]] = [
    {"use": "first-hitting"},
    *({"use": "ordered", "steps": steps} for steps in (16, 8)),
    *({"use": "ordered", "threshold": threshold} for threshold in (0.95, 0.9, 0.8)),
    *(
        {"use": "ordered", "by": "entropy", "entropy_bound": bound}
        for bound in (0.0, 0.3, 1.0)
    ),
    {
        "use": "semi-autoregressive",
        "size": 8,
        "inner": {"use": "ordered", "threshold": 0.9},
    },
]


class Exact:
    """A session with p(x_0 | unmasked tokens) by the forward-backward algorithm; it counts the calls of each row."""

    def __init__(self, process: TokenProcess) -> None:
        self.process, self.calls = process, torch.zeros(ROWS)

    def __call__(self, state: State, t: Tensor, at: Tensor | None = None) -> Any:
        x = state.x
        self.calls += (x == IDS).any(1)
        seen = torch.where(
            (x == IDS)[..., None],
            1.0,
            torch.nn.functional.one_hot(x, IDS + 1)[..., :IDS].double(),
        )
        ahead, behind = (
            [FIRST * seen[:, 0]],
            [torch.ones(len(x), IDS, dtype=torch.float64)],
        )
        for place in range(1, LENGTH):
            ahead.append(
                torch.nn.functional.normalize((ahead[-1] @ P) * seen[:, place], 1, -1)
            )
            behind.append(
                torch.nn.functional.normalize(
                    (behind[-1] * seen[:, LENGTH - place]) @ P.T, 1, -1
                )
            )
        log_p = (torch.stack(ahead, 1) * torch.stack(behind[::-1], 1)).log()
        raw = torch.nn.functional.pad(log_p, (0, 1), value=-torch.inf)
        pred = self.process.read(raw, state, self.process.schedule(t))
        return pred if at is None else pred.at(at)


def main() -> None:
    """Print a row per sampler."""
    process: Any = (
        default_catalog()
        .parse("process", "absorbing")
        .build(TokenSpace((Field("text", LENGTH, IDS),)))
    )
    pairs = FIRST[:, None] * P
    print(f"entropy {CHAIN.entropy(LENGTH) / LENGTH:.3f} nats per token")
    for options in SAMPLERS:
        torch.manual_seed(0)
        session = Exact(process)
        (*_, x) = (
            default_catalog()
            .parse("sampler", options)
            .build()(process, session, Clean.of(torch.zeros(ROWS, LENGTH).long()))
        )
        nats = -(FIRST[x[:, 0]].log() + P[x[:, :-1], x[:, 1:]].log().sum(1)) / LENGTH
        counts = torch.bincount(
            (IDS * x[:, :-1] + x[:, 1:]).flatten(), minlength=IDS**2
        ).double()
        distance = (counts / counts.sum() - pairs.flatten()).abs().sum() / 2
        error = 1.96 * nats.std() / ROWS**0.5
        print(
            f"| {options} | {session.calls.mean() / LENGTH:.2f} | {nats.mean():.3f} +- {error:.3f} | {distance:.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
