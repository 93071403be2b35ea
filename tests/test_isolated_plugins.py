"""Broken plugins are installed beside ours: an experiment that does not use them is not affected."""

import json
import sys
from pathlib import Path

import pytest

from dither.engine.cli import main

ROOT = Path(__file__).parent.parent
BASE = ROOT / "experiments" / "bubble_diagram" / "quick.toml"
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
BROKEN = {
    "tp-raises": "raise RuntimeError('no luck')",
    "tp-exits": "import sys; sys.exit(0)",
    "tp-half": BLOCK.format(name="half").replace("return [Block]", "yield Block; raise ValueError('half')"),
    "tp-twice": BLOCK.format(name="twice").replace("[Block]", "[Block, Block]"),
    "tp-arguments": "from dither.registry import hookimpl\n@hookimpl\ndef after_step(stepp): ...",
}
OTHERS = {
    "tp-prints": "print('noise')\n" + BLOCK.format(name="prints"),
    "tp-lingers": "import threading, time\nthreading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
    + BLOCK.format(name="lingers"),
    "tp-one": "",
    "tp-two": "",
    "tp-clash": BLOCK.format(name="adaln-zero"),
}


@pytest.fixture(autouse=True)
def site(tmp_path_factory, monkeypatch):
    """Install the broken plugins, one with a block of our name, and two with one entry point."""
    site = tmp_path_factory.mktemp("site")
    for name, source in {**BROKEN, **OTHERS}.items():
        module = name.replace("-", "_")
        (site / f"{module}.py").write_text(source)
        info = site / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        entry = "tp-same" if name in ("tp-one", "tp-two") else name
        (info / "entry_points.txt").write_text(f"[dither.plugins]\n{entry} = {module}\n")
    monkeypatch.syspath_prepend(site)
    yield site
    for name in {**BROKEN, **OTHERS}:
        sys.modules.pop(name.replace("-", "_"), None)


@pytest.fixture
def dither(capsys, monkeypatch):
    """Run a command in the repository; return its exit code, standard output and standard error."""
    monkeypatch.chdir(ROOT)

    def dither(*words):
        code = main([str(word) for word in words]) or 0
        return code, *capsys.readouterr()

    return dither


def test_every_broken_plugin_is_listed_with_its_reason(dither):
    code, out, _ = dither("plugins", "--json")
    assert code == 0
    rows = {row["name"]: row for row in json.loads(out)}
    assert {name for name, row in rows.items() if row["state"] == "failed"} == set(BROKEN)
    assert all(row["reason"] for name, row in rows.items() if name in BROKEN)
    assert (rows["tp-same"]["state"], rows["tp-same"]["source"]) == ("clash", "tp-one, tp-two")
    assert rows["core-blocks"]["state"] == rows["tp-lingers"]["state"] == "loaded"
    assert dither("describe", "process", "absorbing")[0] == 0
    code, out, err = dither("doctor")
    assert (code, "tp-raises" in out, "Traceback" in err) == (1, True, False)


def test_an_experiment_imports_only_the_plugins_it_uses(dither):
    """registry.toml of this project lists the owner of each name."""
    assert dither("validate", BASE)[0] == 0
    assert not {"tp_raises", "tp_prints", "tp_clash", "tp_lingers"} & set(sys.modules)


def test_who_uses_a_broken_plugin_is_told_why_it_failed(dither, monkeypatch):
    code, _, err = dither("validate", BASE, "--set", "model.block=half")
    assert code == 2
    assert "[unknown-component]" in err
    assert 'plugin "tp-half" (tp-half 1.0)' in err
    code, _, err = dither("validate", BASE, "-p", "tp-raises")
    assert code == 2
    assert "[plugin-failed]" in err
    assert "no luck" in err
    monkeypatch.setenv("DITHER_STRICT_PLUGINS", "1")
    assert dither("list")[0] == 2
