"""The menu: every combination of its main components is validated, and random accepted experiments are run."""

from __future__ import annotations

import itertools
import random
import shutil
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

from fault_trial import ROOT, Command, Row, Whole, write_experiment

from dither.engine.config.load_experiment import load_experiment
from dither.registry import Refused
from dither.registry.plugins.manager import default_catalog

DNA = f"""
extends = "{ROOT}/experiments/dna_sequence/quick.toml"
task.data = {{ use = "sequence-file", path = "{{folder}}/dna.csv", numbers = ["activity"] }}
[model]
width = 16
depth = 1
block = {{ use = "adaln-zero", heads = 2 }}
condition.parts = ["level", "label", {{ use = "number", dropout = 0.1 }}]
"""
DNA_ROWS = [f"{'ACGGATAAGT'[n % 7 :]:T<24},cell-{n % 2},{n / 4}" for n in range(80)]
"""Sequence, label and activity."""
TASKS = {"bubble": "graph", "region": "regions", "language": "tokens", "dna": "tokens"}
"""Embedding of each task."""
STEPS = (
    "train.steps=3", "train.batch_size=8", "train.log_every=1", "train.checkpoint_every=2", "train.threads=1",
    "train.device=cpu", "evaluate.every=2", "evaluate.samples=8", "sample.count=2",
)  # fmt: skip
OPTIONS = {
    "train.ema": ("0", "0.9"), "train.accumulate": ("1", "2", "4"), "train.precision": ("float32", "bfloat16"),
    "train.async_save": ("true", "false"), "train.workers": ("0", "2"), "train.known": ("0", "0.5"),
    "train.buckets": ("false",), "train.keep_best": ("true", "false"), "train.clip": ("0", "1"),
    "train.lora": ("{on=['mlp'],rank=2}",), "train.freeze": ("['embedding.*']",),
    "evaluate.repeats": ("1", "3"), "sample.every": ("1", "2"), "sample.batch_size": ("1",), "model.block_size": ("8",),
    "model.checkpointing": ("true",), "model.block.mlp": ("swiglu", "gelu"), "model.block.rope": ("true", "false"),
    "model.block.kv_heads": ("1",), "sampler.steps": ("1", "3"), "sampler.temperature": ("0.5",),
    "sampler.top_k": ("2",), "sample.cond.activity": ("3.5",),
    "sample.guidance": ("{condition='activity',weight=2.0}",),
}  # fmt: skip
"""Other options; each is set in one of three experiments."""
SLOTS = {
    "process.schedule": "schedule", "model.block": "block", "model.condition": "condition",
    "train.optimizer": "optimizer", "train.lr_schedule": "lr-schedule", "model.embedding.positions": "position",
}  # fmt: skip


@cache
def variants(kind: str, option: str = "") -> tuple[str, ...]:
    """Return every component of a kind, with each value of an option, if it has it."""
    found: list[str] = []
    for part in default_catalog().parts(kind):
        field = part.spec.model_fields.get(option)
        values = get_args(field.annotation) if field else ()
        if "reward" in part.spec.model_fields:
            option, values = "reward", ("id-share",)
        found += [
            f"{{use='{part.spec.name}',{option}='{value}'}}" for value in values
        ] or [part.spec.name]
    return tuple(found)


def combinations() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each task with every process, prediction, loss, target, sampler and head."""
    keys = {"process": "predict", "loss": "target", "sampler": "", "model.head": ""}
    menus = [
        variants(key.removeprefix("model."), option) for key, option in keys.items()
    ]
    for task, *choice in itertools.product(TASKS, *menus):
        yield (
            task,
            tuple(f"{key}={value}" for key, value in zip(keys, choice, strict=True)),
        )


def _write(folder: Path) -> dict[str, Path]:
    files = {
        task: write_experiment(folder / task, task) for task in TASKS if task != "dna"
    }
    files["region"].write_text(
        files["region"]
        .read_text()
        .replace("regions.csv", f"{folder}/region/regions.csv")
    )
    files["dna"] = folder / "dna.toml"
    files["dna"].write_text(DNA.replace("{folder}", str(folder)))
    table = "\n".join(["sequence,label,activity", *DNA_ROWS])
    (folder / "dna.csv").write_text(f"{table}\n")
    return files


def _validate(file: Path, changes: tuple[str, ...]) -> tuple[bool, str]:
    """Return whether an experiment is accepted, and what is wrong with the answer."""
    try:
        load_experiment(file, changes)
    except Refused as refused:
        lost = [
            str(problem)
            for problem in refused.problems
            if not problem.path or not problem.origin
        ]
        return False, "; ".join(f"without a place: {text}" for text in lost)
    except BaseException:
        return False, traceback.format_exc()
    return True, ""


def cross(_: Whole, folder: Path, every: int = 1) -> Row:
    """Validate every combination: accepted, or refused with a place in the file."""
    row, files, accepted = (
        Row("every task, process, loss, sampler and head validated"),
        _write(folder),
        0,
    )
    for task, changes in itertools.islice(combinations(), 0, None, every):
        valid, wrong = _validate(files[task], changes)
        accepted += valid
        row.add(wrong, f"{task} {changes}")
    row.note = f"{accepted} accepted"
    return row


def experiments(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Run random accepted experiments for three steps, with evaluation and sampling."""
    row, dice, files = (
        Row("random accepted experiments run for three steps"),
        random.Random(seed),
        _write(folder),
    )
    choices, drawn = list(combinations()), 0
    while row.trials < trials:
        task, changes = dice.choice(choices)
        drawn += 1
        if not _validate(files[task], changes)[0]:
            continue
        menu: dict[str, Any] = {
            key: variants(kind) for key, kind in SLOTS.items()
        } | OPTIONS
        for key in dice.sample([*menu], len(menu) // 3):
            more = (*changes, f"{key}={dice.choice(menu[key])}")
            changes = more if _validate(files[task], more)[0] else changes
        words = [word for change in (*STEPS, *changes) for word in ("--set", change)]
        command = Command(
            ["run", str(files[task]), "--runs", str(folder / "runs"), *words],
            folder / "log",
            (),
            folder,
        )
        row.add(command.start().wrong(0), f"{task} {changes}")
        shutil.rmtree(folder / "runs", ignore_errors=True)
    row.note = f"{drawn} drawn"
    return row
