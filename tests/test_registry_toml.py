"""registry.toml of this project is that of `dither registry sync`."""

from pathlib import Path

from dither.registry.plugins.manager import load_plugins
from dither.registry.plugins.policy import read_policy
from dither.registry.plugins.registry_file import check_components, sync_components

FILE = Path(__file__).parents[1] / "registry.toml"
OURS = "core-blocks,embeddings,engine,losses,processes,tasks"


def test_the_list_of_components_is_up_to_date(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", OURS)
    policy = read_policy(FILE)
    plugins = load_plugins(policy=policy)
    assert not check_components(policy, plugins), "run: dither registry sync"
    copy = tmp_path / "registry.toml"
    copy.write_bytes(FILE.read_bytes())
    assert sync_components(copy, plugins) == []
    assert copy.read_text() == FILE.read_text(), "run: dither registry sync"
