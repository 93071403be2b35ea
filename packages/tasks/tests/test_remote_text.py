"""Text at addresses: a server on this machine, and memory:// of fsspec."""

from __future__ import annotations

import gzip
import json
import lzma
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from dither.engine.files.mirror import local_run
from dither.registry.config.errors import Refused
from dither.registry.files import addresses
from dither.tasks.language_model.data import remote_files
from dither.tasks.language_model.data.documents import find_sources, read_documents
from dither.tasks.language_model.data.file_formats import record_format
from dither.tasks.language_model.data.pairs import Keys, read_examples
from dither.tasks.language_model.data.published_splits import splits_of_sources
from dither.tasks.language_model.data.remote_files import (
    RandomReader,
    RangeReader,
    RemotePath,
    RemoteReader,
    file_stamp,
)
from dither.tasks.language_model.data.remote_files import (
    remote_files as find,
)
from dither.tasks.language_model.data.remote_shards import (
    BLOCKS,
    BlockCache,
    fetch_store,
    open_remote,
)
from dither.tasks.language_model.data.specs import (
    ConvertedText,
    PromptResponse,
    ShardFolder,
    TextFiles,
)
from dither.tasks.language_model.data.text_files import (
    NotText,
    find_files,
    open_data,
    read_files,
)
from dither.tasks.language_model.task import LanguageModelling

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")

TEXTS = [f"text {n} of the corpus\nwith a line {n * n}" for n in range(40)]


def tag_of(data: bytes) -> str:
    return f'"{zlib.crc32(data)}"'


class Handler(SimpleHTTPRequestHandler):
    """A server without ranges, like that of Python; `breaks` are bytes after which it hangs up."""

    breaks: list[int] = []
    replacements: dict[str, bytes] = {}
    ranges = False
    refuses = 0
    requests: list[str | None] = []
    refused: list[int] = []

    def log_message(self, *args: object) -> None:
        pass

    def end_headers(self) -> None:
        if self.command == "HEAD":
            content = Path(self.translate_path(self.path))
            if content.is_file():
                self.send_header("ETag", tag_of(content.read_bytes()))
        super().end_headers()

    def do_GET(self) -> None:
        content = Path(self.translate_path(self.path))
        if not content.is_file():
            super().do_GET()
            return
        if self.refuses:
            type(self).refused.append(self.refuses)
            self.send_error(self.refuses)
            return
        data = content.read_bytes()
        if self.headers.get("If-Match", tag_of(data)) != tag_of(data):
            self.send_error(412)
            return
        asked = self.headers.get("Range")
        type(self).requests.append(asked)
        start = 0
        stop = len(data)
        if self.ranges and asked is not None and not data:
            self.send_error(416)
            return
        if self.ranges and asked is not None:
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first)
            stop = min(int(last) + 1, stop) if last else stop
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(stop - start))
        self.send_header("ETag", tag_of(data))
        self.end_headers()
        if self.breaks:
            stop = min(stop, start + self.breaks.pop(0))
            self.close_connection = True
            content.write_bytes(self.replacements.get(content.name, data))
        self.wfile.write(data[start:stop])


class Server(ThreadingHTTPServer):
    # Blocks of a batch are requested together; others wait for seconds.
    request_queue_size = 128


@contextmanager
def serving(folder: Path, *, breaks: tuple[int, ...] = (), **changes: object):
    handler = type(
        "Served",
        (Handler,),
        {"breaks": [*breaks], "requests": [], "refused": [], **changes},
    )
    server = Server(("localhost", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    try:
        yield f"http://localhost:{server.server_port}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(remote_files.time, "sleep", lambda seconds: None)


def write_corpus(folder: Path) -> list[str]:
    """Write the same texts in every format, and return the names of the files."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import feather, parquet

    lines = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()
    cells = "text\n" + "".join(f'"{text}"\n' for text in TEXTS)
    table = pyarrow.table({"text": TEXTS})
    contents = {
        "a.jsonl": lines,
        "b.jsonl.gz": gzip.compress(lines),
        "c.jsonl.xz": lzma.compress(lines),
        "d.csv": cells.encode(),
        "e.json": json.dumps([{"text": text} for text in TEXTS]).encode(),
        "f.jsonl.zst": pyarrow.compress(lines, "zstd", asbytes=True),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    parquet.write_table(table, folder / "g.parquet", row_group_size=7)
    feather.write_feather(table, folder / "h.feather")
    return [*contents, "g.parquet", "h.feather"]


def texts_of(path: Path) -> list[str]:
    return ["".join(document.pieces) for document in read_documents(path, "text")]


def test_every_format_reads_like_a_local_file(tmp_path) -> None:
    names = write_corpus(tmp_path)
    store = fsspec.filesystem("memory")
    for name in names:
        store.pipe_file(f"/corpus/{name}", (tmp_path / name).read_bytes())
    with serving(tmp_path, ranges=True) as (host, _):
        for name in names:
            assert texts_of(tmp_path / name) == TEXTS
            for address in (f"{host}/{name}", f"memory://corpus/{name}"):
                (path,) = find(address)
                assert str(path) == address
                assert record_format(path) == record_format(Path(name))
                assert texts_of(path) == TEXTS
    found = find("memory://corpus/*.jsonl*")
    assert [path.name for path in found] == [
        "a.jsonl",
        "b.jsonl.gz",
        "c.jsonl.xz",
        "f.jsonl.zst",
    ]
    assert len(find("memory://corpus", folders=True)) == len(names)


@pytest.mark.parametrize("ranges", [False, True])
def test_broken_connections_go_on_where_they_broke(tmp_path, ranges) -> None:
    data = np.random.default_rng(0).integers(1, 128, 3_000_000, np.uint8).tobytes()
    (tmp_path / "x.txt").write_bytes(data)
    with (
        serving(tmp_path, ranges=ranges, breaks=(1_000_000, 1_500_000)) as (
            host,
            handler,
        ),
        open_data(RemotePath(f"{host}/x.txt")) as file,
    ):
        assert file.read() == data
    assert len(handler.requests) == 3
    starts = [
        int(asked.removeprefix("bytes=").rstrip("-")) for asked in handler.requests
    ]
    assert starts[0] == 0 < starts[1] <= 1_000_000


def test_connections_that_always_break_are_errors(tmp_path) -> None:
    (tmp_path / "x.txt").write_bytes(b"text " * 1000)
    with (
        serving(tmp_path, breaks=(100,) * 9) as (host, _),
        pytest.raises(NotText, match="ayload|content length"),
        open_data(RemotePath(f"{host}/x.txt")) as file,
    ):
        file.read()


def test_prepared_remote_text_is_that_of_local_files(tmp_path) -> None:
    names = write_corpus(tmp_path)
    spec = {"tokenizer": "bytes", "end_of_text": True}
    ConvertedText(
        paths=[str(tmp_path / names[0])], to=str(tmp_path / "local"), **spec
    ).prepare()
    with serving(tmp_path) as (host, _):
        # A server without ranges serves everything but tables.
        remote = ConvertedText(
            paths=[f"{host}/{names[5]}"], to=str(tmp_path / "remote"), **spec
        )
        remote.prepare()
    for split in ("train", "valid", "test"):
        local = np.load(tmp_path / "local" / f"{split}.npy")
        assert np.array_equal(local, np.load(tmp_path / "remote" / f"{split}.npy"))
    assert not [*remote.check()]
    # A folder in the cache is named after the address, in whatever working directory.
    assert (
        ConvertedText(paths=["memory://a/b"]).folder()
        == ConvertedText(paths=["memory://a/b"]).folder()
    )


def test_examples_and_splits_at_addresses(tmp_path) -> None:
    store = fsspec.filesystem("memory")
    for split in ("train", "test"):
        rows = [{"prompt": f"{n}", "response": split} for n in range(4)]
        store.pipe_file(
            f"/pairs/{split}.jsonl", "\n".join(map(json.dumps, rows)).encode()
        )
    files = find("memory://pairs/*")
    assert splits_of_sources(files) == ["test", "train"]
    examples = read_examples(
        tuple((file, 0) for file in files), Keys("prompt", "response"), None
    )
    assert [example.published for example in examples] == ["test"] * 4 + ["train"] * 4
    assert examples[0].name == "memory://pairs/test.jsonl:1"
    assert not [*PromptResponse(paths=["memory://pairs/*.jsonl"]).check()]
    store.pipe_file("/pairs/train.txt", b"one\ntwo")
    (document,) = read_files(["memory://pairs/train.txt"])
    assert document.load() == "one\ntwo"
    assert document.name == "memory://pairs/train.txt"


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("{host}/missing.txt", "file-not-found"),
        ("memory://nowhere/x.txt", "file-not-found"),
        ("memory://nowhere/*.txt", "file-not-found"),
        ("{nobody}/x.txt", "download-failed"),
        ("nosuchservice://host/x.txt", "missing-dependency"),
        ("https://user:word@host/x.txt", "invalid-value"),
        ("https://host/x.txt?signature=1", "invalid-value"),
        ("{host}//x.txt", "invalid-value"),
        ("{host}/a/./x.txt", "invalid-value"),
        ("{host}/", "unreadable-file"),
        ("http://[bad/a.txt", "invalid-value"),
        ("zip://a.txt::http://u:word@host/z.zip", "invalid-value"),
        ("github://owner/name/x.txt", "download-failed"),
        ("reference://x.txt", "download-failed"),
        ("dir://x/y.txt", "download-failed"),
        ("filecache://x.txt", "download-failed"),
    ],
)
def test_addresses_without_text_are_named(tmp_path, refusal, address, code) -> None:
    with serving(tmp_path) as (host, _):
        # The port of discarded data, to which nothing answers.
        nobody = host.rpartition(":")[0] + ":9"
        address = address.format(host=host, nobody=nobody)
        (problem,) = refusal(find, address).problems
        assert problem.code == code
        assert "word" not in problem.message
        (misfit,) = TextFiles(paths=[address]).check()
        assert misfit.path == ("paths", 0)


def test_compressed_remote_files_keep_to_the_size_policy(monkeypatch) -> None:
    from dither.registry.files import limits

    monkeypatch.setattr(limits, "FREE_BYTES", 1000)
    store = fsspec.filesystem("memory")
    store.pipe_file("/bomb.txt.gz", gzip.compress(bytes(10_000_000)))
    with (
        pytest.raises(NotText, match="size policy"),
        open_data(RemotePath("memory://bomb.txt.gz")) as file,
    ):
        file.read()


@pytest.fixture
def shards(tmp_path, monkeypatch) -> Path:
    """Token ids in a folder, to be served; the cache is empty."""
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    fetch_store.cache_clear()
    text = " ".join(map(str, np.random.default_rng(0).integers(10**9, size=60_000)))
    (tmp_path / "a.txt").write_text(text)
    folder = tmp_path / "served" / "ids"
    paths = [str(tmp_path / "a.txt")]
    ConvertedText(paths=paths, tokenizer="chars", to=str(folder)).prepare()
    return folder


def published(shards: Path) -> str:
    """Copy shards to memory://, and return the address."""
    store = fsspec.filesystem("memory")
    for file in shards.iterdir():
        store.pipe_file(f"/ids/{file.name}", file.read_bytes())
    return "memory://ids"


def reads(task: LanguageModelling, count: int) -> list[np.ndarray]:
    """Return batches of windows in random order, twice."""
    rows = np.random.default_rng(1).permutation(task.size("train"))
    return [
        task.batch("train", part).x0.numpy()
        for part in [*rows[: 8 * count].reshape(count, 8)] * 2
    ]


@pytest.mark.parametrize(
    ("service", "limit"),
    [("memory", 0), ("memory", 3), ("memory", 5), ("memory", None), ("http", 4)],
)
def test_remote_batches_are_local_ones_with_a_bounded_cache(
    shards, limit, service
) -> None:
    local = ShardFolder(path=str(shards)).build()
    if limit is not None:
        limit = limit * (1 << 15) + 100
    with serving(shards.parent, ranges=True) as (host, _):
        address = f"{host}/ids" if service == "http" else published(shards)
        remote = open_remote(address, "once", limit)
        tasks = []
        for store in (local, remote):
            tasks.append(LanguageModelling(store, store.tokenizer, length=100))
        for ours, theirs in zip(*(reads(task, 12) for task in tasks), strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert tasks[0].baselines() == tasks[1].baselines()
        for split, stream in local.splits.items():
            ids = remote.splits[split].ids
            np.testing.assert_array_equal(ids[:], stream.ids)
            np.testing.assert_array_equal(ids[-7:-2], stream.ids[-7:-2])
            assert ids[5:3].size == 0
    used = (fetch_store(address) / BLOCKS).stat().st_blocks * 512
    assert used <= (1 << 20 if limit is None else limit + 4096)
    # Larger than the smaller caches.
    assert (shards / "train.npy").stat().st_size > 400_000


def test_cached_blocks_need_no_address(shards) -> None:
    local = ShardFolder(path=str(shards)).build()
    with serving(shards.parent, ranges=True) as (host, handler):
        first = ShardFolder(path=f"{host}/ids").build()
        ids = first.splits["train"].ids[:]
        count = len(handler.requests)
        again = ShardFolder(path=f"{host}/ids").build()
        np.testing.assert_array_equal(again.splits["train"].ids[:], ids)
        # The end of each split, to know that the server has ranges.
        assert len(handler.requests) == count + 3
    np.testing.assert_array_equal(ids, local.splits["train"].ids)
    # A place that was not written to its end.
    blocks = fetch_store(f"{host}/ids") / BLOCKS
    content = bytearray(blocks.read_bytes())
    content[1000] ^= 1
    blocks.write_bytes(content)
    # The server is gone.
    with pytest.raises(Refused, match="train.npy"):
        again.splits["train"].ids[:10]
    np.testing.assert_array_equal(again.splits["train"].ids[-10:], ids[-10:])


def test_remote_shards_after_broken_connections(shards) -> None:
    local = ShardFolder(path=str(shards)).build()
    with serving(shards.parent, ranges=True, breaks=(100,) * 4) as (host, handler):
        spec = ShardFolder(path=f"{host}/ids")
        assert not [*spec.check()]
        handler.breaks[:] = [100] * 4
        remote = spec.build()
        handler.breaks[:] = [100] * 4
        ids = remote.splits["train"].ids[:]
    np.testing.assert_array_equal(ids, local.splits["train"].ids)
    np.testing.assert_array_equal(
        remote.splits["train"].starts, local.splits["train"].starts
    )
    assert remote.tokenizer.fingerprint == local.tokenizer.fingerprint


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        ("missing", "file-not-found"),
        ("short", "damaged-file"),
        ("changed", "damaged-file"),
        ("manifest", "damaged-file"),
        ("without", "other-version"),
        ("whole", "download-failed"),
    ],
)
def test_damaged_remote_shards_are_refused(shards, refused, damage, code) -> None:
    file = shards / "train.npy"
    if damage in ("manifest", "without"):
        file = shards / "manifest.json"
    content = file.read_bytes()
    file.unlink()
    if damage == "short":
        file.write_bytes(content[:-1])
    if damage in ("changed", "whole"):
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    if damage == "manifest":
        file.write_text("{}")
    if damage == "without":
        file.write_bytes(content.replace(b"-checksums", b"-other"))
    ranges = damage != "whole"
    with serving(shards.parent, ranges=ranges) as (host, _), refused(code):
        ShardFolder(path=f"{host}/ids").build()


EXPERIMENT = """
seed = 3
sampler = "ancestral"
process = "absorbing"
loss = "masked-ce"

[task]
use = "language-model"
length = 32
data = { use = "token-shards", path = "ADDRESS" }

[model]
use = "denoiser"
width = 16
depth = 1
blocks = [{ use = "adaln-zero", heads = 2 }]
embedding = "tokens"
condition = "level"
head = "tokens"

[train]
steps = 120
batch_size = 8
checkpoint_every = 10
workers = 2
# Does not depend on the number of steps.
lr_schedule = "constant"

[evaluate]
every = 60
samples = 64
"""

PROGRAM = """
import sys
from pathlib import Path
import fsspec
from dither.engine.cli import main
store = fsspec.filesystem("memory")
for file in Path(sys.argv[1]).iterdir():
    store.pipe_file(f"/ids/{file.name}", file.read_bytes())
sys.exit(main(sys.argv[2:]))
"""
"""memory:// is that of a process."""


@pytest.mark.slow
@pytest.mark.parametrize("service", ["http", "memory"])
def test_killed_runs_on_remote_shards_are_resumed_exactly(
    shards, tmp_path, service
) -> None:
    from dither.engine.checkpoints.sharded_checkpoint import part_of, read_tensors

    def program(name: str, *words: str) -> subprocess.Popen:
        command = [sys.executable, "-c", PROGRAM, str(shards), "run", *words]
        if "--resume" not in words:
            command += ["--runs", str(tmp_path / name)]
        return subprocess.Popen(command)

    def steps(name: str) -> list[Path]:
        return sorted((tmp_path / name).glob("*/checkpoints/step-*"))

    with serving(shards.parent, ranges=True) as (host, _):
        address = f"{host}/ids" if service == "http" else "memory://ids"
        # A fifth of the ids fits into the cache.
        options = f'{address}", cache_gb = 1e-4, verify = "once'
        (tmp_path / "remote.toml").write_text(EXPERIMENT.replace("ADDRESS", options))
        # It cannot end before it is killed.
        running = program("remote", str(tmp_path / "remote.toml"), "train.steps=100000")
        while len(steps("remote")) < 2 and running.poll() is None:
            time.sleep(0.005)
        running.kill()
        assert running.wait(100) == -signal.SIGKILL
        last = steps("remote")[-1]
        more = f"train.steps={int(last.name.removeprefix('step-')) + 50}"
        resumed = program("remote", "--resume", str(last.parent.parent), more)
        assert resumed.wait(200) == 0
    (tmp_path / "local.toml").write_text(EXPERIMENT.replace("ADDRESS", str(shards)))
    assert program("local", str(tmp_path / "local.toml"), more).wait(200) == 0
    whole, again = (
        read_tensors(part_of(steps(name)[-1], "model")) for name in ("local", "remote")
    )
    assert whole.keys() == again.keys()
    for name, tensor in whole.items():
        assert tensor.equal(again[name]), name


def test_data_at_addresses_are_compared_by_content(
    shards, tmp_path, monkeypatch
) -> None:
    (shards.parent / "a.txt").write_text("one text")
    store = fsspec.filesystem("memory")
    with serving(shards.parent, ranges=True) as (host, _):
        text = TextFiles(paths=[f"{host}/a.txt"]).describe_elsewhere()
        ids = ShardFolder(path=f"{host}/ids").describe_elsewhere()
        # A tag of the time of the file, as that of many servers.
        monkeypatch.setattr(sys.modules[__name__], "tag_of", lambda data: '"5f3e-8"')
        assert TextFiles(paths=[f"{host}/a.txt"]).describe_elsewhere() == text
    store.pipe_file("/a.txt", b"one text")
    assert TextFiles(paths=["memory://a.txt"]).describe_elsewhere() == text
    store.pipe_file("/a.txt", b"two text")
    assert TextFiles(paths=["memory://a.txt"]).describe_elsewhere() != text
    # Another version of dither may write the same manifest otherwise.
    manifest = json.loads((shards / "manifest.json").read_text())
    (shards / "manifest.json").write_text(json.dumps(manifest, indent=7))
    address = published(shards)
    fetch_store.cache_clear()
    assert ShardFolder(path=address).describe_elsewhere() == ids
    assert ids["path"]["bytes"] > (shards / "train.npy").stat().st_size


def test_a_cache_that_another_process_made_smaller_stays_small(tmp_path) -> None:
    entry = 8 + (1 << 15)
    large = BlockCache(tmp_path / "blocks", 1 << 22, 100 * entry)
    small = BlockCache(tmp_path / "blocks", 1 << 22, 4 * entry)
    content = b"a" * (1 << 15)
    for number in range(100):
        large.write(number, content)
    assert (tmp_path / "blocks").stat().st_size == 4 * entry
    found = [small.read(n, len(content), zlib.crc32(content)) for n in range(5)]
    assert found == [content] * 4 + [None]


def test_a_block_of_a_disk_that_fails_is_missing(tmp_path) -> None:
    cache = BlockCache(tmp_path / "blocks", 1 << 16, None)
    cache.write(0, b"ab")
    assert cache.read(0, 2, zlib.crc32(b"ab")) == b"ab"
    # Descriptors of folders cannot be read.
    folder = os.open(tmp_path, os.O_RDONLY)
    os.dup2(folder, cache._file)
    os.close(folder)
    assert cache.read(0, 2, zlib.crc32(b"ab")) is None


def test_shards_are_read_without_a_cache_where_none_can_be_written(
    shards, caplog
) -> None:
    address = published(shards)
    # No file can be opened in its place.
    (fetch_store(address) / BLOCKS).mkdir()
    ids = ShardFolder(path=address).build().splits["train"].ids
    local = ShardFolder(path=str(shards)).build().splits["train"].ids
    np.testing.assert_array_equal(ids[:], local)
    assert "no cache" in caplog.text


def test_a_cache_of_local_files_is_a_misfit(shards) -> None:
    (misfit,) = ShardFolder(path=str(shards), cache_gb=1).check()
    assert misfit.path == ("cache_gb",)
    assert not [*ShardFolder(path=published(shards), cache_gb=1).check()]


def test_short_answers_are_asked_again(tmp_path, monkeypatch) -> None:
    data = bytes(range(250)) * 8
    fsspec.filesystem("memory").pipe_file("/x", data)
    reader = RangeReader(RemotePath("memory://x"))
    whole = type(reader._file_system).cat_ranges
    asked = []

    def half_at_first(self, paths, starts, stops, **options):
        asked.append(len(paths))
        if len(asked) == 1:
            stops = [stops[0] - 500, *stops[1:]]
        return whole(self, paths, starts, stops, **options)

    monkeypatch.setattr(type(reader._file_system), "cat_ranges", half_at_first)
    parts = {}
    ranges = [range(1000), range(1500, 1600)]
    reader.read(ranges, lambda part, content: parts.update({part: content}))
    assert parts == {part: data[part.start : part.stop] for part in ranges}
    assert asked == [2, 1]


@pytest.mark.parametrize(("status", "count"), [(403, 1), (503, 5)])
def test_what_is_forbidden_is_asked_once(tmp_path, status, count) -> None:
    (tmp_path / "x.txt").write_text("text")
    with serving(tmp_path, ranges=True, refuses=status) as (host, handler):
        reader = RangeReader(RemotePath(f"{host}/x.txt"))
        with pytest.raises(OSError, match=str(status)):
            reader.read([range(4)], lambda part, content: None)
        assert handler.refused == [status] * count


@pytest.fixture
def silent():
    """The address of a host that answers no request for a connection."""
    with socket.socket() as listener, socket.socket() as first:
        listener.bind(("localhost", 0))
        # A queue of one, which is full: Linux drops what else arrives.
        listener.listen(0)
        first.connect(listener.getsockname())
        yield f"http://localhost:{listener.getsockname()[1]}/x"


@pytest.fixture
def closed():
    """An address at which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    return f"http://localhost:{port}/x"


@pytest.mark.parametrize("host", ["silent", "closed"])
@pytest.mark.parametrize(
    "read",
    [
        fetch_store,
        find,
        lambda address: remote_files.file_digest(RemotePath(address)),
        lambda address: file_stamp(RemotePath(address)),
        lambda address: local_run(Path(address)),
    ],
)
def test_a_host_that_never_answered_is_given_up(
    host, read, request, monkeypatch, refused
):
    address = request.getfixturevalue(host)
    monkeypatch.setattr(addresses, "CONNECT", 0.2)
    # `time.sleep` refuses it: these are for hosts that have answered.
    monkeypatch.setattr(remote_files, "WAITS", (-1.0,))
    monkeypatch.setattr(remote_files, "FIRST_WAITS", (0.0,))
    with refused("download-failed", match="onnect"):
        read(address)


def test_a_service_that_refuses_access_is_asked_once(monkeypatch) -> None:
    """s3fs and others raise PermissionError, without a status of HTTP."""
    fsspec.filesystem("memory").pipe_file("/x", b"text")
    reader = RangeReader(RemotePath("memory://x"))
    asked = []

    def refuse(self, paths, starts, stops, **options):
        asked.append(paths)
        raise PermissionError("no credentials")

    monkeypatch.setattr(type(reader._file_system), "cat_ranges", refuse)
    monkeypatch.setattr(remote_files, "WAITS", (0.0, 0.0))
    with pytest.raises(OSError, match="no credentials"):
        reader.read([range(4)], lambda part, content: None)
    assert len(asked) == 1


def test_changed_data_at_addresses_are_not_resumed(shards, tmp_path) -> None:
    from dither.engine.config.load_experiment import load_experiment
    from dither.engine.config.provenance import changed_data, data_record

    def record(data: str) -> dict:
        task = f'task={{use="language-model",length=32,data={data}}}'
        if "prompt-response" in data:
            task = task[:-1] + ',documents="packed",end_of_text=true,tokenizer="bytes"}'
        (tmp_path / "a.toml").write_text(EXPERIMENT.replace("ADDRESS", str(shards)))
        return data_record(load_experiment(tmp_path / "a.toml", [task]).experiment)

    (shards.parent / "a.txt").write_text("one text")
    pairs = '{"prompt": "a", "response": "b"}\n'
    (shards.parent / "a.jsonl").write_text(pairs)
    with serving(shards.parent, ranges=True) as (host, _):
        sources = [
            f'{{use="token-shards",path="{host}/ids"}}',
            f'{{use="text-files",paths=["{host}/a.txt"]}}',
            f'{{use="prompt-response",paths=["{host}/a.jsonl"]}}',
        ]
        before = [record(source) for source in sources]
        assert [len(found) for found in before] == [1, 1, 1]
        fetch_store.cache_clear()
        assert [record(source) for source in sources] == before
        (shards.parent / "a.txt").write_text("two text")
        (shards.parent / "a.jsonl").write_text(pairs.replace("b", "c"))
        manifest = json.loads((shards / "manifest.json").read_text())
        manifest["arrays"]["train"]["sha256"] = "0" * 64
        (shards / "manifest.json").write_text(json.dumps(manifest))
        fetch_store.cache_clear()
        for source, old in zip(sources, before, strict=True):
            (change,) = changed_data(old, record(source))
            assert "contents differ" in change


@pytest.mark.parametrize("service", ["http", "memory"])
def test_shards_that_change_while_they_are_read_are_refused(shards, service) -> None:
    with serving(shards.parent, ranges=True) as (host, _):
        address = f"{host}/ids" if service == "http" else published(shards)
        ids = open_remote(address, "once", None).splits["train"].ids
        first = ids[:10]
        content = bytearray((shards / "train.npy").read_bytes())
        content[200_000] ^= 1
        (shards / "train.npy").write_bytes(content)
        published(shards)
        np.testing.assert_array_equal(ids[:10], first)
        with pytest.raises(Refused, match=r"train.npy: has changed"):
            ids[180_000:210_000]


@pytest.mark.parametrize("ranges", [False, True])
def test_files_that_change_while_they_are_read_are_refused(tmp_path, ranges) -> None:
    (tmp_path / "x.txt").write_bytes(b"a" * 1_000_000)
    changes = {"ranges": ranges, "replacements": {"x.txt": b"b" * 1_000_000}}
    with (
        serving(tmp_path, breaks=(300_000,), **changes) as (host, _),
        pytest.raises(NotText, match="has changed"),
        open_data(RemotePath(f"{host}/x.txt")) as file,
    ):
        file.read()

    store = fsspec.filesystem("memory")
    store.pipe_file("/x.txt", b"a" * 100)
    with RemoteReader(RemotePath("memory://x.txt")) as reader:
        assert reader.read(10) == b"a" * 10
        reader._forget()
        store.pipe_file("/x.txt", b"b" * 100)
        with pytest.raises(OSError, match="has changed"):
            reader.read(10)


def test_tables_that_change_while_they_are_read_are_refused(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(remote_files, "PIECE", 100)
    (tmp_path / "x.parquet").write_bytes(b"a" * 1000)
    with (
        serving(tmp_path, ranges=True) as (host, handler),
        RandomReader(RemotePath(f"{host}/x.parquet")) as reader,
    ):
        assert reader.read(10) == b"a" * 10
        # A connection that breaks is opened again.
        handler.breaks[:] = [3, 5]
        reader.seek(300)
        assert reader.read(10) == b"a" * 10
        (tmp_path / "x.parquet").write_bytes(b"b" * 1000)
        reader.seek(500)
        with pytest.raises(OSError, match="has changed"):
            reader.read(10)


@pytest.mark.parametrize("ranges", [False, True])
def test_empty_files_are_empty(tmp_path, refusal, ranges) -> None:
    (tmp_path / "x.txt").write_bytes(b"")
    with serving(tmp_path, ranges=ranges) as (host, _):
        (problem,) = refusal(read_files, [f"{host}/x.txt"]).problems
    assert problem.message.endswith("x.txt: empty")


@pytest.mark.parametrize(
    ("status", "code"), [(403, "unreadable-file"), (404, "file-not-found")]
)
def test_files_that_are_listed_but_not_served(tmp_path, refusal, status, code) -> None:
    names = write_corpus(tmp_path)
    (tmp_path / "x.txt").write_text("text")
    with serving(tmp_path, ranges=True, refuses=status) as (host, _):
        (problem,) = refusal(read_files, [f"{host}/x.txt"]).problems
        assert problem.code == code
        for name in names:
            (rejected,) = read_documents(RemotePath(f"{host}/{name}"), "text")
            assert "aiohttp" not in rejected.message
            assert rejected.sort in ("unreadable", "missing")


def test_remote_tables_are_closed(tmp_path, monkeypatch) -> None:
    files = []
    open_http = fsspec.get_filesystem_class("http")._open

    def opened(*args, **options):
        files.append(open_http(*args, **options))
        return files[-1]

    monkeypatch.setattr(fsspec.get_filesystem_class("http"), "_open", opened)
    names = write_corpus(tmp_path)
    with serving(tmp_path, ranges=True) as (host, _):
        for name in names[-2:]:
            assert texts_of(RemotePath(f"{host}/{name}")) == TEXTS
    assert len(files) == 2
    assert all(file.closed for file in files)


def test_hidden_files_and_folders_are_no_documents(tmp_path) -> None:
    store = fsspec.filesystem("memory")
    names = ["a.txt", "b/c.txt", ".d.txt", ".e/f.txt"]
    for name in names:
        store.pipe_file(f"/tree/{name}", b"text")
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("text")
    patterns = {
        "": 2,
        "/*": 1,
        "/**": 2,
        "/a*": 1,
        "/**/*.txt": 2,
        "/.e/*": 1,
        "/.d.txt": 1,
    }
    for pattern, count in patterns.items():
        found = find(f"memory://tree{pattern}", folders=True)
        assert len(found) == count
        local = find_files(f"{tmp_path}{pattern}", folders=True)
        assert [f.name for f in found] == [f.name for f in local]
    with serving(tmp_path) as (host, _):
        assert [str(path) for path in find(f"{host}/*")] == [f"{host}/a.txt"]
        assert len(find(f"{host}/**")) == 2


def test_links_with_signatures_are_left_out(tmp_path, refusal, caplog) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="a.txt">a</a> <a href="?C=N;O=D">by name</a> '
        '<a href="b.txt?sig=SECRET">b</a> <a href="c/?C=N">c</a> '
        '<a href="./a.txt">again</a> <a href="./d.txt">d</a> <a href="d.txt#top">top</a> '
        '<a href="mailto:a@b.c">mail</a> <a href="javascript:void(0)">up</a>'
    )
    (tmp_path / "signed").mkdir()
    (tmp_path / "signed" / "index.html").write_text('<a href="s.txt?sig=SECRET">s</a>')
    with serving(tmp_path) as (host, _):
        assert [path.name for path in find(f"{host}/*")] == ["a.txt", "d.txt"]
        assert "left out: 2" in caplog.text
        (problem,) = refusal(find, f"{host}/signed/*").problems
    assert problem.code == "file-not-found"
    assert "SECRET" not in problem.message + caplog.text


def test_remote_folders_of_data_sets(tmp_path) -> None:
    write_corpus(tmp_path)
    store = fsspec.filesystem("memory")
    data = (tmp_path / "h.feather").read_bytes()
    store.pipe_file("/saved/train/data-00000-of-00001.arrow", data)
    for name in ("dataset_dict.json", "train/state.json", "train/dataset_info.json"):
        store.pipe_file(f"/saved/{name}", b"{}")
    (source,) = find_sources(["memory://saved"])
    assert texts_of(source) == TEXTS
    assert len(find_sources(["memory://saved/train/*.json"])) == 2


def test_the_order_of_documents_is_that_of_every_working_directory(
    tmp_path, monkeypatch
) -> None:
    fsspec.filesystem("memory").pipe_file("/order.txt", b"text")
    (tmp_path / "x.txt").write_text("text")
    orders = []
    for folder in ("/", tmp_path):
        monkeypatch.chdir(folder)
        documents = read_files(["memory://order.txt", str(tmp_path / "x.txt")])
        orders.append([document.name for document in documents])
    assert orders[0] == orders[1] == [str(tmp_path / "x.txt"), "memory://order.txt"]


@pytest.mark.parametrize("address", ["file:///a/x.txt", "file://a/x.txt"])
def test_paths_of_this_machine_are_no_addresses(refusal, address) -> None:
    (problem,) = refusal(find_files, address).problems
    assert problem.code == "invalid-value"
    assert problem.help == "/a/x.txt"
    (misfit,) = ShardFolder(path=address).check()
    assert (misfit.path, misfit.help) == (("path",), problem.help)


def test_remote_sizes_that_cannot_be_asked_are_named(tmp_path, refused) -> None:
    with serving(tmp_path) as (host, _), refused("file-not-found"):
        file_stamp(RemotePath(f"{host}/missing.txt"))
