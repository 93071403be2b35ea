"""Every file of a run damaged in every way: named, or passed over, never silent; and no pickle is ever executed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import fault_damages
from fault_rows import Row
from fault_trial import Command, Whole, digest, go_on, resume

Chosen = Callable[[str, int], bool]
"""Tells by the name of a file and a number that counts up whether to try."""


def damages(whole: Whole, folder: Path, kinds: Iterable[str], chosen: Chosen = lambda name, number: True) -> Row:
    """Each file of a run that was killed half way, damaged in each way: named, or passed over, or not needed."""
    row = Row("every file truncated, emptied, zeroed, flipped, deleted, replaced, no permission")
    flag, base = folder / "executed", whole.half(folder / "half")
    named = safe = number = 0
    for name in _files(base):
        for kind in kinds:
            number += 1
            if not chosen(name, number):
                continue
            trial = folder / "damaged"
            copy = Path(shutil.copytree(base, trial / base.name))
            if fault_damages.DAMAGES[kind](copy / name, flag):
                before = ("bound_by_permissions",) if kind == "no permission" else ()
                command = resume(copy, trial / "log", *before)
                wrong, told = _judged(whole, copy, name, command.wait(), command.said)
                named, safe = named + told, safe + (not told and not wrong)
                row.add("a pickle was executed" if flag.exists() else wrong, f"{name} {kind}")
            shutil.rmtree(trial)
    row.note = f"{named} named, {safe} not needed or made anew"
    return row


def learned_from(whole: Whole, folder: Path, kinds: Iterable[str] = fault_damages.DAMAGES) -> Row:
    """The file that a run learns from is damaged while the run is stopped: it does not go on, and names the file."""
    row, flag = Row("the data of a stopped run truncated, flipped, replaced"), folder / "executed"
    base, table = whole.half(folder / "half"), whole.experiment.parent / "regions.csv"
    before = table.read_bytes()
    for kind in kinds:
        fault_damages.DAMAGES[kind](table, flag)
        hook = ("bound_by_permissions",) if kind == "no permission" else ()
        command = resume(base, folder / "log", *hook)
        code, said = command.wait(), command.said
        good = code == 2 and table.name in said and "Traceback" not in said and not flag.exists()
        row.add("" if good else f"exit code {code}: {said[-400:]}", kind)
        shutil.rmtree(table) if table.is_dir() else table.unlink(missing_ok=True)
        table.write_bytes(before)
    row.add(go_on(whole, folder / "half"), "brought back")
    return row


def pickles(whole: Whole, folder: Path, chosen: Chosen = lambda name, number: True) -> Row:
    """A pickle in the place of each file of a run, under every verb that reads one: none is executed."""
    row, number = Row("a pickle in the place of each file, under each verb that reads a run"), 0
    flag, place = folder / "executed", folder / "planted"
    for name in _files(whole.path):
        copy = Path(shutil.copytree(whole.path, place / whole.path.name))
        fault_damages.a_pickle(copy / name, flag)
        verbs = (
            ["evaluate", str(copy)],
            ["sample", str(copy), "--count", "1", "--out", str(place / "drawn")],
            ["runs", "verify", str(copy)],
            ["runs", "list", str(copy.parent)],
            ["report", str(copy), "--out", str(place / "page.html")],
            ["export", str(copy), "--to", str(place / "given")],
            ["diff", str(whole.path), str(copy)],
        )
        for verb in verbs:
            number += 1
            if not chosen(name, number):
                continue
            command = Command(verb, folder / "planted-log").start()
            code, said = command.wait(), command.said
            wrong = "executed" if flag.exists() else ""
            if code not in (0, 1, 2, 3) or "Traceback" in said:
                wrong = wrong or f"exit code {code}: {said[-600:]}"
            row.add(wrong, f"{name}, {verb[0]}")
        shutil.rmtree(place)
    return row


def _files(run: Path) -> list[str]:
    return sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())


def _judged(whole: Whole, run: Path, name: str, code: int, said: str) -> tuple[str, bool]:
    """Return what is wrong with how a run went on from a damaged file, and whether the file was named."""
    part = Path(name).name if not name.startswith("checkpoints") else "/".join(Path(name).parts[1:2])
    told = part in said
    if "Traceback" in said or code not in (0, 2, 3):
        return f"exit code {code}: {said[-700:]}", told
    if code:
        return ("" if told else f"not named: {said[-300:]}"), told
    found = digest(run)
    excused = {Path(name).name, "state.json"} if told and name == "metrics.jsonl" else set()  # it holds their hash
    wrong = [key for key, value in whole.digest.items() if found[key] != value and key not in excused]
    return (f"silently {', '.join(wrong)}" if wrong else ""), told


def flips(whole: Whole, folder: Path, trials: int) -> Row:
    """One bit flipped anywhere in a checkpoint: `verify` finds it."""
    import random

    from dither.engine.files.checksums import verify

    row, dice = Row("a bit flipped anywhere in a checkpoint"), random.Random(0)
    copy = Path(shutil.copytree(sorted((whole.path / "checkpoints").iterdir())[-1], folder / "flipped"))
    files = [path for path in sorted(copy.iterdir()) for _ in range(1 + path.stat().st_size // 2048)]
    assert verify(copy) is None
    for _ in range(trials):
        path = dice.choice(files)
        data = path.read_bytes()
        at, bit = dice.randrange(len(data)), dice.randrange(8)
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :])
        reason = verify(copy)
        row.add("" if reason and path.name in reason else f"{reason}", f"{path.name}, byte {at}, bit {bit}")
        path.write_bytes(data)
    return row
