"""What a second rank brings on a machine of two cores, in turns: steps per second of one batch.

    python benchmarks/two_ranks.py

One rank of one thread, one of two threads, and two ranks of one thread each under "ddp" and "fsdp" take a batch of 128
of `bubble_diagram/quick.toml`. Beside them two processes that know nothing of each other take one half of it each:
what they reach is all that two cores give here, without a word between them.
"""

# ruff: noqa: D103
from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "bubble_diagram" / "quick.toml"
STEPS, ROUNDS, BATCH = 8, 3, 128
ALONE = [sys.executable, __file__]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]
WAYS = {
    "one rank, one thread": (1, [[*ALONE, str(BATCH), "ddp"]]),
    "one rank, two threads": (2, [[*ALONE, str(BATCH), "ddp"]]),
    "two ranks, ddp": (1, [[*TORCHRUN, str(BATCH), "ddp"]]),
    "two ranks, fsdp": (1, [[*TORCHRUN, str(BATCH), "fsdp"]]),
    "two strangers, half a batch each": (1, [[*ALONE, str(BATCH // 2), "ddp"]] * 2),
}


def work(batch: int, strategy: str) -> None:
    """Train, and print the steps per second of the first rank."""
    from dither.engine.config.load_experiment import load_experiment
    from dither.engine.distributed.ranks import join_ranks
    from dither.engine.runs.loading import build
    from dither.engine.training.trainer import Trainer

    changes = [f"train.batch_size={batch}", f"train.strategy={strategy}", f"train.threads={os.environ['THREADS']}"]
    loaded = load_experiment(EXPERIMENT, [*changes, "train.device=cpu"])
    with join_ranks("cpu") as ranks:
        system, _ = build(loaded, training=True)
        trainer = Trainer(system, loaded.experiment.train, 0, ranks)
        for _ in range(2):
            trainer.advance()
        ranks.barrier()
        began = time.perf_counter()
        for _ in range(STEPS):
            trainer.advance()
        if ranks.is_main:
            print("rate", STEPS / (time.perf_counter() - began))


def rate(threads: int, commands: list[list[str]]) -> float:
    """Run all commands at once; return the lowest of their rates."""
    environment = {**os.environ, "THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    running = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for words in commands]
    said = [process.communicate()[0].split() for process in running]
    return min(float(words[words.index("rate") + 1]) for words in said)


def main() -> None:
    if len(sys.argv) == 3:
        work(int(sys.argv[1]), sys.argv[2])
        return
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(ROUNDS):
        for name, way in WAYS.items():
            found[name].append(rate(*way))
    base = statistics.median(found["one rank, one thread"])
    for name, rates in found.items():
        middle = statistics.median(rates)
        print(f"{name:34} {middle:6.2f} steps/s  {middle / base:.2f}  ({min(rates):.2f} to {max(rates):.2f})")


if __name__ == "__main__":
    main()
