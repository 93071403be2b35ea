"""How CPU time and memory of a training step grow with the size of the data.

    python benchmarks/growth.py [--only batch]

Each size runs in its own process with one thread. Printed are the median CPU time of a step as
steps a CPU second, the memory that preparation and training add, and the exponent of each between
the last two sizes: 1 is linear, 0 no growth. Pages of mapped files do not count: Linux keeps as many
of them as it likes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from math import log
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent / "experiments"
WARM_UP = 2
STEPS = 7
TEXT = (
    "model.depth=2 model.width=64 train.optimizer=adamw train.batch_size=8 "
    'model.blocks=[{use="adaln-zero",heads=4,rope=true}]'
)
PREPARED = "MB of prepared text"
AXES = {
    "sequence length": (
        "language_model/quick.toml",
        f"{TEXT} task.length=SIZE",
        (128, 512, 1024, 2048),
    ),
    "vocabulary": (
        "language_model/quick.toml",
        f'{TEXT} task.tokenizer="bpe:SIZE"',
        (500, 1000, 2000, 4000),
    ),
    "batch": (
        "bubble_diagram/quick.toml",
        "train.batch_size=SIZE",
        (16, 64, 256, 1024),
    ),
    "plans": (
        "bubble_diagram/quick.toml",
        "task.data.train=SIZE",
        (5_000, 20_000, 80_000, 320_000),
    ),
    "regions": ("get_region/quick.toml", "task.regions=SIZE", (50, 100, 200, 400)),
    PREPARED: (
        "language_model/quick.toml",
        f'{TEXT} task.tokenizer=bytes task.data={{use="token-shards",path="FOLDER"}}',
        (13, 26, 105, 210),
    ),
}
"""Experiment, overrides with the size, sizes."""


def measure(axis: str, size: int) -> dict[str, float]:
    """Return the median CPU seconds of a step, and bytes besides those of the libraries."""
    from dither.engine.config.load_experiment import load_experiment
    from dither.engine.training.device import keep_freed_memory
    from dither.engine.training.diffusion import Diffusion
    from dither.engine.training.trainer import Trainer

    file, changes, _ = AXES[axis]
    keep_freed_memory()
    before = own_memory()
    if axis == PREPARED:
        changes = changes.replace("FOLDER", prepare_text(size))
    words = changes.replace("SIZE", str(size)).split()
    experiment = load_experiment(ROOT / file, [*words, "train.device=cpu"]).experiment
    trainer = Trainer(Diffusion.build(experiment), experiment.train, 0)
    seconds = []
    for _ in range(WARM_UP + STEPS):
        began = time.process_time()
        trainer.advance()
        seconds.append(time.process_time() - began)
    return {"seconds": median(seconds[WARM_UP:]), "bytes": own_memory() - before}


def own_memory() -> int:
    """Return the resident bytes of this process without files; once freed memory is kept, their peak."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return 1024 * int(status.partition("RssAnon:")[2].split()[0])


def prepare_text(megabytes: int) -> str:
    """Convert that much text, in documents of 4 kB, and return the folder of its ids."""
    from dither.tasks.language_model.data.builtin_texts import read_stdlib
    from dither.tasks.language_model.data.specs import ConvertedText

    folder = Path(os.environ["GROWTH_FOLDER"])
    text = "".join(document.load() for document in read_stdlib(docstrings=False))
    with (folder / "text.jsonl").open("w", encoding="utf-8") as file:
        for number in range(250 * megabytes):
            # Each with a number, as equal documents are taken once.
            start = number * 997 % (len(text) - 4000)
            document = f"{number} {text[start : start + 4000]}"
            file.write(json.dumps({"text": document}) + "\n")
    ids = folder / "ids"
    paths = [str(folder / "text.jsonl")]
    ConvertedText(paths=paths, tokenizer="bytes", to=str(ids)).prepare()
    return str(ids)


def in_process(axis: str, size: int) -> dict[str, float]:
    """Measure in a new process, whose memory is that of this size alone."""
    command = [sys.executable, __file__, "--only", axis, "--size", str(size)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        environment["GROWTH_FOLDER"] = folder
        output = subprocess.run(
            command, env=environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout
    measured: dict[str, float] = json.loads(output.splitlines()[-1])
    return measured


def exponent(sizes: tuple[int, ...], costs: list[float]) -> float:
    """Return the exponent of a power of the size between the last two sizes."""
    return log(costs[-1] / costs[-2]) / log(sizes[-1] / sizes[-2])


def main() -> None:
    """Print a table, or the measurement of one size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="axes whose names contain this text")
    parser.add_argument("--size", type=int, help="measure this size of an axis only")
    arguments = parser.parse_args()
    if arguments.size is not None:
        print(json.dumps(measure(arguments.only, arguments.size)))
        return
    print("| | sizes | steps a CPU second | exponent of time | MiB | of memory |")
    print("|---|---|---|---|---|---|")
    for axis, (_, _, sizes) in AXES.items():
        if arguments.only not in axis:
            continue
        rows = [in_process(axis, size) for size in sizes]
        seconds = [row["seconds"] for row in rows]
        memory = [row["bytes"] for row in rows]
        cells = [
            axis,
            ", ".join(f"{size:,}" for size in sizes),
            ", ".join(f"{1 / cost:.3g}" for cost in seconds),
            f"{exponent(sizes, seconds):.2f}",
            ", ".join(f"{cost / 2**20:.0f}" for cost in memory),
            f"{exponent(sizes, memory):.2f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
