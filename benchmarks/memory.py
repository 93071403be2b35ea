"""Memory of a run, counted on the meta device, against the peak memory of a training step in a fresh process.

    python benchmarks/memory.py [EXPERIMENT ...]

The difference is activations, temporary buffers and data, which are not counted.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from alternate import peak_memory

from dither.engine.config.load_experiment import load_experiment

ROOT = Path(__file__).parent.parent / "experiments"
FILES = ("bubble_diagram/quick.toml", "get_region/quick.toml", "language_model/markov.toml")


def step(file: str) -> None:
    """Print the peak memory of two training steps, beyond imports, in MB."""
    from dither.engine.training.diffusion import Diffusion
    from dither.engine.training.trainer import Trainer

    imported = peak_memory()
    experiment = load_experiment(Path(file), ["train.device=cpu"]).experiment
    trainer = Trainer(Diffusion.build(experiment).train(), experiment.train, 0)
    for _ in range(2):
        trainer.advance()
    print(peak_memory() - imported)


def main() -> None:
    """Print counted and measured memory of each experiment."""
    if sys.argv[1:2] == ["step"]:
        step(sys.argv[2])
        return
    from dither.engine.training.model_summary import build_on_meta, memory_needs

    for file in sys.argv[1:] or [str(ROOT / name) for name in FILES]:
        experiment = load_experiment(Path(file)).experiment
        needs = memory_needs(experiment, build_on_meta(experiment))
        command = [sys.executable, __file__, "step", file]
        peak = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        terms = ", ".join(f"{name} {count / 1e6:.1f}" for name, count in needs.items())
        print(f"{file}: counted {sum(needs.values()) / 1e6:.1f} MB ({terms}), peak {peak:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
