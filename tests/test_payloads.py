"""Malicious runs, data and experiment files: no code runs, and nothing is written elsewhere.

A payload that runs makes the file FLAG. Outside the folder that a verb may write to, everything stays as it was.
"""

import io
import json
import os
import pickle
import resource
import shutil
import tomllib
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import dither
from dither.engine.cli import main
from dither.engine.runs.exports import export_run
from dither.registry.config.errors import Refused
from dither.registry.files.atomic import sha256_of

ROOT = Path(__file__).parents[1]
FLAG = "payload-ran"
CODE = f"open({FLAG!r}, 'w').close()\n"


class Payload:
    def __reduce__(self):
        return open, (FLAG, "w")


PICKLE = pickle.dumps(Payload())


def snapshot(folder, but):
    """Every file below a folder, with size and time, but those below another one."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_relative_to(but) and path != folder / FLAG:
            facts = path.lstat()
            found[str(path)] = (
                facts.st_size,
                None if path.is_dir() else facts.st_mtime_ns,
            )
    return found


@pytest.fixture
def place(trained, tmp_path, monkeypatch):
    """A folder with a copy of the run, what is to stay as it is beside it, and the flag looked for at the end."""
    shutil.copytree(trained[1], tmp_path / "mine" / "run")
    shutil.copyfile(trained[0], tmp_path / "mine" / "exp.toml")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious.txt").write_text("precious\n")
    (tmp_path / "outside" / "evil.py").write_text(CODE)
    monkeypatch.chdir(tmp_path / "outside")
    before = snapshot(tmp_path, tmp_path / "mine")
    yield tmp_path / "mine"
    assert not list(tmp_path.rglob(FLAG)), "it ran"
    assert snapshot(tmp_path, tmp_path / "mine") == before, (
        "something was written elsewhere"
    )


def verbs(place, *wanted):
    """Do with a run what can be done with it; each verb ends with a code, and none with a traceback."""
    run = str(place / "run")
    known = {
        "verify": ["runs", "verify", run],
        "list": ["runs", "list", str(place)],
        "evaluate": ["evaluate", run],
        "sample": ["sample", run, "-n", "1"],
        "report": ["report", run, "--out", str(place / "page.html")],
        "diff": ["runs", "diff", run, str(place / "exp.toml")],
        "export": ["export", run, "--out", str(place / "exported")],
        "resume": ["run", "--resume", run, "--set", "train.steps=4"],
        "start": [
            "run",
            str(place / "exp.toml"),
            "--set",
            f"train.start_from={run}",
            "--runs",
            str(place / "more"),
        ],
    }
    codes = {name: main(known[name]) for name in wanted or known}
    assert set(codes.values()) <= {0, 2, 3}
    return codes


def reseal(folder, name):
    """Update the manifest of a checkpoint to a changed file, as an attacker would."""
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest.pop("sha256", None)
    file = folder / name
    manifest["files"][name] = {"size": file.stat().st_size, "sha256": sha256_of(file)}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))


FILES = [
    "resolved.toml",
    "manifest.json",
    "metrics.jsonl",
    "summary.json",
    "experiment.toml",
]
WRITTEN = [
    "model.safetensors",
    "ema.safetensors",
    "optimizer.safetensors",
    "state.json",
    "MANIFEST.json",
]


def replace(path, kind):
    path.unlink()
    match kind:
        case "pickle":
            path.write_bytes(PICKLE)
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "sparse":
            with path.open("wb") as file:
                file.truncate(50 << 30)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FILES, *WRITTEN])
def test_a_pickle_in_place_of_a_file_of_a_run(place, name):
    checkpoint = place / "run" / "checkpoints" / "step-00000003"
    folder = checkpoint if name in WRITTEN else place / "run"
    replace(folder / name, "pickle")
    if name in WRITTEN and name != "MANIFEST.json":
        reseal(checkpoint, name)
    verbs(place)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pipe", "device", "sparse"])
@pytest.mark.parametrize("name", ["MANIFEST.json", "state.json", *FILES[:4]])
def test_special_files_are_refused_by_name_in_little_memory(place, name, kind, capsys):
    (file, *_) = (place / "run").rglob(name)
    replace(file, kind)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 31), limits[1]))
    try:
        for verb in ("verify", "report", "resume"):
            (code,) = verbs(place, verb).values()
            output = "".join(capsys.readouterr())
            assert "Traceback" not in output
            assert "emory" not in output
            assert (
                code == 0
                or name in output
                or "checkpoint" in output
                or "not a run" in output
            ), (
                verb,
                output,
            )
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_pickled_exports_and_start_weights(place):
    export_run(place / "run", place / "given")
    for name in ("weights.safetensors", "experiment.toml"):
        (place / "given" / name).write_bytes(PICKLE)
        reseal(place / "given", name)
        with pytest.raises(Refused):
            dither.load(place / "given")
    torch.save({"a": Payload()}, place / "x.pt")
    (place / "x.bin").write_bytes(pickle.dumps({"a": Payload()}))
    for name in ("x.pt", "x.bin"):
        for more in (
            [],
            ["--set", "train.start_layout=get"],
            ["--set", "train.start_layout=sedd"],
        ):
            assert (
                main(
                    [
                        "run",
                        str(place / "exp.toml"),
                        "--set",
                        f"train.start_from={place / name}",
                        *more,
                    ]
                )
                == 2
            )


def test_names_that_are_paths(place):
    checkpoint = place / "run" / "checkpoints" / "step-00000003"
    for name in ("model", "ema"):
        weights = load_file(checkpoint / f"{name}.safetensors")
        save_file(
            {**weights, "../../../outside/x": torch.ones(1)},
            checkpoint / f"{name}.safetensors",
        )
        reseal(checkpoint, f"{name}.safetensors")
    manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
    manifest["files"]["../../../../outside/precious.txt"] = {
        "size": 9,
        "sha256": "0" * 64,
    }
    (checkpoint / "MANIFEST.json").write_text(json.dumps(manifest))
    with (place / "run" / "metrics.jsonl").open("a") as lines:
        lines.write(
            json.dumps({"step": 1, "kind": "../../outside", "../../../outside/x": 1.0})
            + "\n"
        )
    verbs(place, "verify", "evaluate", "report", "start")


def test_a_run_with_links_of_a_tracker_is_resumed_sampled_and_evaluated(
    place, tmp_path_factory
):
    """wandb links the log of its process, which is in the cache of the user."""
    log = tmp_path_factory.mktemp("cache") / "core.log"
    log.touch()
    (place / "run" / "wandb").mkdir()
    (place / "run" / "wandb" / "debug-core.log").symlink_to(log)
    codes = verbs(place, "resume", "sample", "evaluate")
    assert set(codes.values()) == {0}


def test_a_run_that_names_external_code_and_files(place):
    text = (place / "run" / "resolved.toml").read_text().partition("# sha256")[0]
    for plugin in (
        "../../outside/evil.py",
        str(place.parent / "outside" / "evil.py"),
        "plugins/link.py",
    ):
        (place / "run" / "plugins").mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (place / "run" / "plugins" / "link.py").symlink_to(
                place.parent / "outside" / "evil.py"
            )
        (place / "run" / "resolved.toml").write_text(
            text.replace("plugins = []", f"plugins = [{json.dumps(plugin)}]")
        )
        assert set(verbs(place, "evaluate", "resume").values()) == {2}


LINES = {
    "_target_": 'loss = { _target_ = "os.system", command = "touch FLAG" }',
    "a dotted name": 'loss = "os.system"',
    "a long name with a path": 'loss = "../../outside/evil.py/masked-ce@1"',
    "a plugin above": 'plugins = ["../outside/evil.py"]',
    "a plugin anywhere": 'plugins = ["OUTSIDE/evil.py"]',
    "a plugin behind a link": 'plugins = ["./link.py"]',
    "a module": 'plugins = ["os"]',
    "interpolation": 'name = "${oc.env:HOME}"',
    "an expression": "seed = \"__import__('os').system('touch FLAG')\"",
    "a pickled tokenizer": 'task.tokenizer = "MINE/pickle.json"',
    "a judge with code": 'task.judge = "MINE/judge"',
}


@pytest.mark.parametrize("name", LINES)
def test_an_experiment_file_that_names_external_code(place, name, capsys):
    (place / "link.py").symlink_to(place.parent / "outside" / "evil.py")
    (place / "pickle.json").write_bytes(PICKLE)
    (place / "judge").mkdir()
    (place / "judge" / "pytorch_model.bin").write_bytes(PICKLE)
    (place / "judge" / "config.json").write_text(
        '{"auto_map": {"AutoModelForCausalLM": "evil.Model"}}'
    )
    (place / "judge" / "evil.py").write_text(CODE)
    line = (
        LINES[name]
        .replace("MINE", str(place))
        .replace("OUTSIDE", str(place.parent / "outside"))
    )
    text = (place / "exp.toml").read_text()
    if line.startswith("task."):
        key, _, value = line.partition(" = ")
        assert (
            main(
                [
                    "run",
                    str(place / "exp.toml"),
                    "--set",
                    f"{key}={value}",
                    "--runs",
                    str(place / "more"),
                ]
            )
            == 2
        )
    else:
        text = (
            text.replace('loss = "masked-ce"', "") if line.startswith("loss") else text
        )
        (place / "exp.toml").write_text(f"{line}\n{text}")
        for verb in ("validate", "run", "resolve"):
            assert main([verb, str(place / "exp.toml")]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_plugin_files_and_modules_shadow_no_installed_one(place, cli):
    for name in (
        "torch.py",
        "numpy.py",
        "dither_losses.py",
        "conftest.py",
        "sitecustomize.py",
    ):
        (place / name).write_text(CODE)
    assert main(["validate", str(place / "exp.toml")]) == 0
    text = (place / "exp.toml").read_text()
    for name in ("core-blocks.py", "engine.py", "losses.py"):
        (place / name).write_text("raise RuntimeError('it ran')\n" + CODE)
        (place / "exp.toml").write_text(f'plugins = ["./{name}"]\n' + text)
        assert "it ran" not in cli("validate", str(place / "exp.toml"), code=2).err


def bomb(path):
    """A compressed npz file with an array far larger than the file."""
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("features.npy", header.getvalue() + bytes(1 << 24))


def objects(path):
    array = np.empty(1, dtype=object)
    array[0] = Payload()
    np.savez(path, features=array, motifs=array)


def out_of_the_archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("../../outside/x.npy", PICKLE)
        file.writestr("/features.npy", PICKLE)


@pytest.mark.parametrize(
    "make", [bomb, objects, out_of_the_archive, lambda path: path.write_bytes(PICKLE)]
)
def test_payloads_as_data(place, make, cli):
    make(place / "x.npz")
    data = f"task.data={{ use = 'region-file', path = '{place}/x.npz' }}"
    words = [str(ROOT / "experiments/get_region/quick.toml"), "--set", data]
    assert main(["validate", *words]) == 2
    assert "x.npz" in cli("run", *words, "--runs", str(place / "more"), code=2).err


def test_pickled_plans(place, cli):
    (place / "plans.pkl").write_bytes(PICKLE)
    options = f"source={place}/plans.pkl", "format=resplan", f"destination={place}/out"
    words = [word for option in options for word in ("--set", option)]
    assert "got Stub" in cli("prepare", "plans", *words, code=2).err


EVIL = "\x1b]0;owned\x07\u202etxt.exe\x9b2J"


@pytest.fixture
def run(trained, tmp_path, monkeypatch):
    """A run in a folder of a hostile name, with such strings in its experiment, metrics and manifest."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(trained[0], tmp_path / "exp.toml")
    run = Path(shutil.copytree(trained[1], tmp_path / "runs" / f"x{EVIL}"))
    resolved = (
        (run / "resolved.toml")
        .read_text()
        .rpartition("# sha256")[0]
        .replace('name = "text"', "")
    )
    lines = [
        line
        for line in resolved.splitlines()
        if not line.startswith(("name =", "prompt ="))
    ]
    text = json.dumps(EVIL)
    (run / "resolved.toml").write_text(
        "\n".join([f"name = {text}", *lines]).replace(
            "[task]", f"[task]\nprompt={text}"
        )
    )
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["environment"][EVIL] = EVIL
    manifest.pop("sha256")
    (run / "manifest.json").write_text(json.dumps(manifest))
    return run


@pytest.mark.parametrize("wide", [True, False])
def test_no_control_characters_reach_the_terminal(
    run, tmp_path, capsys, monkeypatch, wide
):
    if wide:
        monkeypatch.setenv("COLUMNS", "100")
    commands = (
        ["runs", "list", "runs"], ["runs", "verify", str(run)], ["evaluate", str(run)],
        ["runs", "diff", str(run), "exp.toml"],
        ["resolve", str(run / "resolved.toml")],
        ["resolve", str(run / "resolved.toml"), "--origins"], ["run", "--resume", str(run)],
        ["validate", str(run / "resolved.toml")], ["report", str(run)], ["sweep", "status", str(run)],
    )  # fmt: skip
    for command in commands:
        main(command)
        captured = capsys.readouterr()
        for text in (captured.out, captured.err):
            assert all(letter == "\n" or letter.isprintable() for letter in text), (
                command,
                text,
            )


def test_resolve_escapes_what_cannot_be_printed(run, cli):
    changes = ["--set", f"task.prompt={json.dumps(EVIL)}", "--set", "task.length=64"]
    assert (
        tomllib.loads(cli("resolve", "exp.toml", *changes).out)["task"]["prompt"]
        == EVIL
    )
