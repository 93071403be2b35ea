"""`dither plugins --fresh` asks every plugin anew."""

from dither.engine.cli import main
from dither.registry.plugins import manifest_cache as menus
from dither.registry.plugins.probe import probe


def test_fresh_asks_anew(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setenv("DITHER_MENUS", str(tmp_path))
    monkeypatch.setenv("DITHER_PLUGINS", "losses")
    monkeypatch.setattr(menus, "probe", lambda plugins: asked.append(len(plugins)) or probe(plugins))
    for _ in range(2):
        assert main(["plugins"]) in (0, None)
    assert asked == [1]
    assert main(["plugins", "--fresh"]) in (0, None)
    assert asked == [1, 1]
    assert "losses" in capsys.readouterr().out
