"""Data sets of the Hugging Face Hub by name, from a local server."""

import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from huggingface_hub import constants

from dither.tasks.language_model.data.hub import hub_files
from dither.tasks.language_model.data.specs import (
    ConvertedText,
    PromptResponse,
    TextFiles,
)

COMMIT = "1" * 40


class Server(BaseHTTPRequestHandler):
    """The endpoints that list a data set and download its files."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes] = {}

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        headers = {"X-Repo-Commit": COMMIT}
        name = self.path.partition(f"/resolve/{COMMIT}/")[2]
        code = 200
        if "/nobody/" in self.path or "/revision/v2" in self.path:
            code = 404
            headers["X-Error-Code"] = "RepoNotFound"
            content = b"{}"
        elif name:
            content = self.files[name]
            headers["ETag"] = f'"{hashlib.sha256(content).hexdigest()}"'
        else:
            siblings = [{"rfilename": name} for name in self.files]
            info = {"id": "me/data", "sha": COMMIT, "siblings": siblings}
            content = json.dumps(info).encode()
        self.send_response(code)
        for key, value in {**headers, "Content-Length": len(content)}.items():
            self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET


@pytest.fixture
def serve(tmp_path, monkeypatch):
    """Serve these files as the data set me/data; return a function that ends the server."""
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    server = ThreadingHTTPServer(("localhost", 0), Server)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://localhost:{server.server_port}")

    def stop():
        server.shutdown()
        server.server_close()

    def start(files):
        monkeypatch.setattr(Server, "files", files)
        return stop

    yield start
    stop()


def lines(split: str, count: int) -> bytes:
    rows = [
        {"text": f"{split} {n}", "prompt": "p", "response": f"{split} {n}"}
        for n in range(count)
    ]
    return "\n".join(map(json.dumps, rows)).encode()


FILES = {
    "README.md": b"about",
    "LICENSE.txt": b"about",
    "dataset_infos.json": b"{}",
    "data/train-00000-of-00002.jsonl": lines("train", 6),
    "data/train-00001-of-00002.jsonl": lines("more", 5),
    "data/validation.jsonl": lines("valid", 3),
}


def test_published_splits_and_later_use_without_a_network(serve, monkeypatch, refused):
    stop = serve(FILES)
    for address in ("hub:me/data", "hub:me/data@v1", "hub:me/data/data/*"):
        corpus = PromptResponse(paths=[address], test=0.0).build()
        sizes = {split: len(documents) for split, documents in corpus.splits.items()}
        assert sizes == {"train": 11, "valid": 3, "test": 0}
    stop()
    # The commit of the first use stays.
    assert [path.name for path in hub_files("hub:me/data")] == [
        "train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl", "validation.jsonl",
    ]  # fmt: skip
    assert COMMIT in str(hub_files("hub:me/data")[0])
    # Another server has other data.
    monkeypatch.setenv("HF_ENDPOINT", "http://localhost")
    with refused("download-failed"):
        hub_files("hub:me/data")


def test_data_sets_are_converted_to_ids(serve, tmp_path):
    serve(FILES)
    spec = ConvertedText(
        paths=["hub:me/data"], to=str(tmp_path / "ids"), tokenizer="bytes", test=0.0
    )
    assert "11" in spec.prepare()
    store = spec.build()
    text = bytes(store.splits["valid"].ids.tolist()).decode()
    assert text == "valid 0\n\nvalid 1\n\nvalid 2"


def test_folders_of_splits_belong_together(serve):
    serve({"train/0.jsonl": lines("train", 6), "test/0.jsonl": lines("test", 3)})
    corpus = PromptResponse(paths=["hub:me/data"]).build()
    assert len(corpus.splits["test"]) == 3


def test_plain_text(serve):
    serve({"a/train.txt": b"one two three" * 9, "a/test.txt": b"four"})
    corpus = TextFiles(paths=["hub:me/data/a/*.txt"]).build()
    assert corpus.splits["test"][0].load() == "four"


@pytest.mark.parametrize(
    ("address", "files", "code"),
    [
        ("hub:data", FILES, "invalid-value"),
        ("hub:me/data@", FILES, "invalid-value"),
        ("hub:../data", FILES, "download-failed"),
        ("hub:nobody/data", FILES, "download-failed"),
        ("hub:me/data@v2", FILES, "download-failed"),
        ("hub:me/data/*.parquet", FILES, "file-not-found"),
        ("hub:me/data", {"README.md": b""}, "file-not-found"),
        ("hub:me/data", {"en/a.csv": b"", "fr/a.csv": b""}, "misfit"),
    ],
)
def test_addresses_that_do_not_fit(serve, refused, address, files, code):
    serve(files)
    with refused(code):
        hub_files(address)


def test_no_network(serve, refused):
    serve(FILES)()
    (misfit,) = TextFiles(paths=["hub:me/data"]).check()
    assert (misfit.code, misfit.path) == ("download-failed", ("paths", 0))
