"""Numbers that are none, and too little memory: stopped before the update, or with a clear message."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fault_rows import Row
from fault_trial import Whole, digest, go_on, only
from safetensors.torch import load_file

NEEDED = ("step 7", "training samples", "the data: task", "the last checkpoint is that of step 6")
LARGE = ("model.width=512", "train.batch_size=16", "train.accumulate=1", "train.checkpoint_every=6")
"""So that what a step takes is more than what the process has free."""
RATES = (("train.lr_schedule.warmup=0",), ("train.checkpoint_every=1", "train.clip=0"))
"""Settings beside a rate that is much too large: as usual, and with a checkpoint after each step."""
KINDS = ("loss nan", "loss inf", "gradient nan", "gradient inf", "gradient -inf")


def numbers(whole: Whole, folder: Path, kinds: Iterable[str] = KINDS) -> Row:
    """Non-finite loss or gradient, and learning rates of 1e20 and more: stopped before this update or the next."""
    row = Row("loss or gradient NaN or infinite; learning rates 1e20 and 1e39")
    for kind in kinds:
        place = folder / kind.replace(" ", "-")
        command = whole.again(place, "poison", kind, 6)
        code, said = command.wait(), command.said
        wrong = "" if code == 4 else f"exit code {code}: {said[-300:]}"
        missing = [word for word in NEEDED if word not in said]
        wrong = wrong or (f"does not say {missing}: {said[-400:]}" if missing else "")
        row.add(wrong or go_on(whole, place), kind)
    for rate, more in ((rate, more) for rate in ("1e20", "1e39") for more in RATES):
        place = folder / f"{rate}-{len(more)}"
        command = whole.again(place, more=(f"train.optimizer.lr={rate}", *more))
        code, said = command.wait(), command.said
        good = code == 4 and "Traceback" not in said and ("step 1:" in said or "step 2:" in said)
        row.add(
            ("" if good else f"exit code {code}: {said[-500:]}") or _finite(only(place / "runs")), f"a rate of {rate}"
        )
    return row


def _finite(run: Path) -> str:
    """Return which checkpoints hold numbers that are none."""
    files = run.glob("checkpoints/*/*.safetensors")
    bad = [f"{path.parent.name}/{path.name}" for path in files if not _all_finite(path)]
    return f"not finite: {', '.join(bad)}" if bad else ""


def _all_finite(path: Path) -> bool:
    return all(tensor.isfinite().all() for tensor in load_file(path).values() if tensor.is_floating_point())


STEPS = tuple((kind, step) for kind in ("torch", "numpy", "python") for step in (0, 1, 7))


def needs(whole: Whole, folder: Path, steps: Iterable[tuple[str, int]] = STEPS) -> Row:
    """A step that needs more memory than there is, in torch, numpy and Python."""
    row = Row("a step that needs more memory than there is")
    for kind, step in steps:
        place = folder / f"memory-{kind}-{step}"
        command = whole.again(place, "memory", kind, step)
        code, said = command.wait(), command.said
        good = code == 5 and "stopped: out of memory" in said and "Traceback" not in said
        row.add(("" if good else f"exit code {code}: {said[-600:]}") or go_on(whole, place), f"{kind}, step {step}")
        shutil.rmtree(place)
    return row


def limits(whole: Whole, folder: Path, trials: int) -> Row:
    """A run that may have half to nearly all of the memory that it takes, wherever that is found out."""
    row, codes = Row("no more than 50 to 95 % of the memory that a run takes (RLIMIT_AS)"), {}
    file, large = folder / "taken", replace(whole, more=LARGE)
    assert large.again(folder / "measured", "measure_memory", str(file)).wait() == 0
    whole, taken = replace(large, digest=digest(only(folder / "measured" / "runs"))), int(file.read_text())
    for number in range(trials):
        place, share = folder / f"limit-{number}", 0.5 + 0.45 * number / max(trials - 1, 1)
        command = whole.again(place, "limit_memory", int(share * taken))
        code, said = command.wait(), command.said
        codes[code] = codes.get(code, 0) + 1
        good = (code in (0, 5) or code < 0) and "Traceback" not in said and (code != 5 or "stopped:" in said)
        row.add(("" if good else f"exit code {code}: {said[-900:]}") or go_on(whole, place), f"{share:.3f}")
        shutil.rmtree(place)
    row.note = f"{taken / 2**20:.0f} MiB taken; exit codes {dict(sorted(codes.items()))}"
    return row


def data(whole: Whole, folder: Path) -> Row:
    """A number of the data that is none: refused, or stopped before the update; never a run to its end."""
    row = Row("NaN or infinity in the data")
    table = whole.experiment.parent / "regions.csv"
    text = table.read_text()
    lines = text.splitlines()
    for value in ("nan", "inf", "-inf", "1e999", ""):
        table.write_text("\n".join([*lines[:40], lines[40].rpartition(",")[0] + "," + value, *lines[41:]]) + "\n")
        command = whole.again(folder / f"data-{value}")
        code, said = command.wait(), command.said
        good = code in (2, 4) and "regions.csv" in said and "Traceback" not in said
        row.add("" if good else f"exit code {code}: {said[-300:]}", repr(value))
    table.write_text(text)
    return row
