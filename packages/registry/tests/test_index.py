"""The index of plugins: read without a network, never trusted, and named where a component is missing."""

import io
import json

import pytest

from dither.registry.plugins import index
from dither.registry.plugins.index import (
    MAX_BYTES,
    indexed_plugin,
    parse_index,
    plugin_index,
    refresh_index,
    search_index,
)
from dither.registry.plugins.manager import load_plugins
from dither.registry.plugins.policy import Policy

WAVELET = {
    "distribution": "dither-wavelet",
    "version": "0.3",
    "plugin": "wavelet",
    "summary": "Losses in scales.",
    "dither": ">=0.1",
    "kit": {"passed": 41, "checks": 41},
    "components": [
        {"kind": "loss", "name": "wavelet-nll", "summary": "Cross entropy."}
    ],
}


def text_of(*entries):
    return json.dumps({"plugins": entries}).encode()


@pytest.fixture(autouse=True)
def snapshot(tmp_path, monkeypatch):
    """An index with one plugin; no download, and no network."""
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(index, "SNAPSHOT", tmp_path / "index.json")
    index.SNAPSHOT.write_bytes(text_of(WAVELET))
    monkeypatch.setattr("socket.socket", None)
    plugin_index.cache_clear()
    yield
    plugin_index.cache_clear()


def test_words_find_a_plugin():
    assert [entry.title for entry in search_index(["WAVE", "entropy"])] == [
        "dither-wavelet 0.3 (kit: 41 of 41)"
    ]
    assert not search_index(["wave", "sampler"])
    assert indexed_plugin("Dither_Wavelet") == indexed_plugin("wavelet")


def test_an_unknown_component_names_the_plugin_that_has_it(refusal):
    catalog = load_plugins().catalog
    for reference in ("wavelet-nll", "wavelet/wavelet-nll@1"):
        refused = refusal(catalog.find, "loss", reference)
        assert refused.codes == ["unknown-component"]
        assert str(refused.problems[0].message) == (
            'loss "wavelet-nll" is provided by dither-wavelet 0.3 (kit: 41 of 41): '
            "dither install dither-wavelet"
        )
    assert "provided" not in str(refusal(catalog.find, "block", "wavelet-nll"))
    for request in (load_plugins().request, lambda name: load_plugins([name])):
        (problem,) = refusal(request, "wavelet").problems
        assert problem.help == "dither install dither-wavelet"


def test_the_project_is_asked_before_the_index(refusal):
    known = {"wavelet": {"provides": ["loss:wavelet-nll"], "install": "make wavelet"}}
    catalog = load_plugins(policy=Policy(known=known)).catalog
    assert "make wavelet" in str(refusal(catalog.find, "loss", "wavelet-nll"))


def test_an_installed_plugin_that_fails_is_not_suggested_for_installation(
    install, refusal
):
    install("dither-wavelet", "raise ValueError('broken')", entry="wavelet")
    message = str(refusal(load_plugins().catalog.find, "loss", "wavelet-nll"))
    assert "is failed: ValueError: broken" in message
    assert "dither install" not in message


@pytest.mark.parametrize(
    "change",
    [
        {"distribution": "--index-url=x"},
        {"distribution": "a b"},
        {"distribution": "x @ https://y"},
        {"distribution": "dither-wavelet\n"},
        {"version": "1; rm"},
        {"plugin": "../wavelet"},
        {"components": [{"kind": "loss", "name": "x\x1b[2J"}]},
        {"kit": {"passed": 42, "checks": 41}},
    ],
    ids=str,
)
def test_a_damaged_entry_is_left_out(change):
    entries = parse_index(text_of("no table", WAVELET | change, WAVELET), "x")
    assert [entry.distribution for entry in entries] == ["dither-wavelet"]


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"[" * 100_000, "damaged-file"),
        (b"{}", "damaged-file"),
        (b" " * (MAX_BYTES + 1), "too-large"),
    ],
    ids=["deep", "empty", "large"],
)
def test_a_damaged_download_is_replaced_by_the_snapshot(
    data, code, refused, monkeypatch
):
    monkeypatch.setenv("DITHER_INDEX", "https://example.org/index.json")
    path = index._downloaded()
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert len(plugin_index()) == 1
    serve(monkeypatch, data)
    with refused(code):
        refresh_index()
    assert path.read_bytes() == data


def serve(monkeypatch, data, url="https://example.org/index.json"):
    def urlopen(address, timeout):
        response = io.BytesIO(data)
        response.url = url
        return response

    monkeypatch.setattr("urllib.request.urlopen", urlopen)


def test_refresh_replaces_the_index(monkeypatch, refused):
    monkeypatch.setenv("DITHER_INDEX", "http://example.org/index.json")
    with refused("invalid-value"):
        refresh_index()
    monkeypatch.setenv("DITHER_INDEX", "https://example.org/index.json")
    serve(monkeypatch, text_of(), url="http://example.org/index.json")
    with refused("download-failed"):
        refresh_index()
    assert len(plugin_index()) == 1
    serve(monkeypatch, text_of(WAVELET, WAVELET | {"distribution": "other"}))
    assert refresh_index() == 2
    assert [entry.distribution for entry in plugin_index()] == [
        "dither-wavelet",
        "other",
    ]
