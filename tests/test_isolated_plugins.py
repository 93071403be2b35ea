"""Broken, slow and hostile plugins beside ours, in real processes: whoever does not use them does not notice them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = """
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec
class Block(BlockSpec):
    '''A block.'''
    name: ClassVar[str] = "{name}"
    def build(self, width, cond): raise NotImplementedError
@hookimpl
def register_components(): return [Block]
"""
HOSTILE = {
    "tp-raises": "raise RuntimeError('no luck')",
    "tp-exits": "import sys; sys.exit(0)",
    "tp-dies": "import os; os._exit(0)",
    "tp-sleeps": "import time; time.sleep(30)",
    "tp-prints": "print('noise'); import sys; sys.stdout.close()\n" + BLOCK.format(name="prints"),
    "tp-patches": "import builtins, json; builtins.open = json.loads = None\n" + BLOCK.format(name="patches"),
    "tp-lingers": "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
    + BLOCK.format(name="lingers"),
    "tp-half": BLOCK.format(name="half").replace("return [Block]", "yield Block; raise ValueError('half')"),
    "tp-twice": BLOCK.format(name="twice").replace("[Block]", "[Block, Block]"),
    "tp-arguments": "from dither.registry import hookimpl\n@hookimpl\ndef after_step(stepp): ...",
}
FAILED = set(HOSTILE) - {"tp-patches", "tp-lingers", "tp-prints"}


@pytest.fixture(scope="module")
def dither(tmp_path_factory):
    """Run `dither` where the hostile plugins are installed; one more of ours' name, and two of one name."""
    site = tmp_path_factory.mktemp("site")
    cache = tmp_path_factory.mktemp("cache")
    for name, source in {**HOSTILE, "tp-one": "", "tp-two": "", "tp-clash": BLOCK.format(name="adaln-zero")}.items():
        module = name.replace("-", "_")
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        entry = "tp-same" if name in ("tp-one", "tp-two") else name
        (info / "entry_points.txt").write_text(f"[dither.plugins]\n{entry} = {module}\n")

    def dither(*arguments, **environment):
        full = {**os.environ, "PYTHONPATH": str(site), "DITHER_DATA": str(cache), "DITHER_PLUGIN_SECONDS": "6"}
        command = [sys.executable, "-m", "experiments.run", *map(str, arguments)]
        return subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=full | environment, timeout=200, check=False
        )

    return dither


def test_every_hostile_plugin_is_listed_with_its_reason(dither):
    done = dither("plugins", "--json")
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert {name for name, row in rows.items() if row["state"] == "failed"} == FAILED
    assert rows["tp-same"]["state"] == "clash"
    assert "tp-one" in rows["tp-same"]["source"]
    assert "6 s" in rows["tp-sleeps"]["reason"]
    assert "exit code 0" in rows["tp-dies"]["reason"]
    assert rows["core-blocks"]["state"] == "loaded"
    assert "noise" not in done.stdout + done.stderr


@pytest.mark.parametrize("verb", [("list", "process"), ("describe", "process", "absorbing"), ("doctor",)])
def test_lists_go_on(dither, verb):
    done = dither(*verb)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0 or verb == ("doctor",)
    assert "absorbing" in done.stdout or "tp-raises" in done.stdout


def test_an_experiment_uses_its_own_plugins_only(dither, tmp_path):
    path = tmp_path / "exp.toml"
    base = ROOT / "experiments" / "bubble_diagram" / "quick.toml"
    path.write_text(f'extends = "{base}"\n[model]\nblock = {{ use = "core-blocks/adaln-zero" }}\n')
    tiny = ["train.steps=1", "train.checkpoint_every=1", "evaluate.samples=2", "sample.count=0", "train.batch_size=2"]
    changes = [
        part
        for change in [*tiny, "task.data.train=40", "task.data.valid=10", "task.data.test=4"]
        for part in ("--set", change)
    ]
    done = dither("run", path, *changes, "--runs", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").iterdir()
    assert not [name for name in json.loads((run / "manifest.json").read_text())["plugins"] if name.startswith("tp-")]


def test_a_clash_of_names_is_ambiguous_and_may_be_settled(dither, tmp_path):
    base = ROOT / "experiments" / "bubble_diagram" / "quick.toml"
    done = dither("validate", base)
    assert done.returncode == 2
    assert '"core-blocks/adaln-zero", "tp-clash/adaln-zero"' in done.stderr
    path = tmp_path / "exp.toml"
    path.write_text(f'extends = "{base}"\n')
    (tmp_path / "registry.toml").write_text('[prefer]\n"block:adaln-zero" = "core-blocks"\n')
    assert dither("validate", path).returncode == 0


def test_whoever_uses_one_is_told_whose_it_is(dither):
    base = ROOT / "experiments" / "bubble_diagram" / "quick.toml"
    done = dither("validate", base, "--set", "model.block=half")
    assert done.returncode == 2
    assert 'plugin "tp-half" (tp-half 1.0) failed to load' in done.stderr
    done = dither("validate", base, "-p", "tp-raises")
    assert done.returncode == 2
    assert 'plugin "tp-raises" (tp-raises 1.0) cannot be used' in done.stderr
    assert "Traceback" not in done.stderr
    done = dither("list", DITHER_STRICT_PLUGINS="1")
    assert done.returncode == 2
    assert "no luck" in done.stderr
