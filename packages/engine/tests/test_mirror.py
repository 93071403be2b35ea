"""Mirrors of runs: copies, failures, reading, names of servers."""

import functools
import http.server
import shutil
import threading
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import dither
from dither.engine.cli import experiments, main
from dither.engine.config.plugins import recorded_checksums
from dither.engine.files.mirror import Mirror, copy_run, fetch_run
from dither.registry.config.errors import Refused
from dither.registry.files.addresses import address_of, service_options

CHECKPOINT = "checkpoints/step-00000001"


@pytest.fixture
def memory():
    store = fsspec.filesystem("memory")
    yield store
    store.store.clear()
    store.pseudo_dirs[:] = [""]


@pytest.fixture
def mirrored(experiment_file, tmp_path, memory, monkeypatch):
    """A finished run with a mirror, its directory and the address."""
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    runs = tmp_path / "runs"
    words = ["run.mirror=memory://box/runs", "--runs", str(runs)]
    assert main(["run", str(experiment_file), *words]) == 0
    (path,) = runs.glob("*-*")
    return path, f"memory://box/runs/{path.name}"


def plugin_of(experiment_file):
    """The plugin file, which a run from elsewhere may only execute if it is named."""
    return str(experiment_file.with_name("toy_plugin.py"))


def write_checkpoint(run, weights="weights"):
    """Write a checkpoint into the folder of a run, whose manifest depends on the weights."""
    folder = run / CHECKPOINT
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "weights").write_text(weights)
    (folder / "MANIFEST.json").write_text(weights[::-1])


@pytest.mark.slow
def test_a_mirror_has_every_file_of_the_run_and_is_loaded_sampled_and_evaluated(
    content, mirrored, experiment_file, cli, tmp_path
):
    path, address = mirrored
    copy = fetch_run(address, tmp_path / "copy")
    assert content(copy) == content(path)
    assert len(list((copy / "checkpoints").iterdir())) == 2

    shutil.rmtree(path)
    cli("sample", address, "--count", "2", code=2)
    plugin = plugin_of(experiment_file)
    assert len(dither.load(address, plugins=[plugin]).sample(2)) == 2
    cli("sample", address, "--count", "2", "-p", plugin)
    cli("evaluate", address, "-p", plugin)
    cli("report", address, "--out", str(tmp_path / "report.html"))
    cli("runs", "verify", address)
    cli("runs", "diff", address, address)
    cli("export", address, "--out", str(tmp_path / "export"), "-p", plugin)
    # The address is nobody else's business.
    assert "mirror" not in (tmp_path / "export" / "experiment.toml").read_text()
    assert len(dither.load(tmp_path / "export").sample(2)) == 2


@pytest.mark.slow
def test_a_run_is_resumed_from_its_mirror_never_over_a_local_one(
    content, mirrored, experiment_file, cli
):
    path, address = mirrored
    words = ["run", "--resume", address, "train.steps=30", "--runs", str(path.parent)]
    words += ["-p", plugin_of(experiment_file)]
    cli(*words, code=2)
    shutil.rmtree(path)
    cli(*words)
    assert (path / "checkpoints" / "step-00000030").is_dir()
    copied = fetch_run(address, path.parent / "copy")
    assert content(copied) == content(path)


def test_a_failing_mirror_is_a_warning_and_tried_again(tmp_path, memory, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    warnings = []
    mirror = Mirror(folder, "memory://box", warnings.append)
    put = type(memory).put_file

    def fail(*_, **__):
        raise OSError("https://host/a?X-Amz-Signature=secret refused")

    monkeypatch.setattr(type(memory), "put_file", fail)
    mirror.close()
    mirror.close()
    assert mirror.failures == 2
    assert "failure 2" in warnings[1]
    assert "secret" not in "".join(warnings)
    monkeypatch.setattr(type(memory), "put_file", put)
    mirror.close()
    assert memory.cat("/box/run/a.txt") == b"a"
    assert len(warnings) == 2


def test_a_mirror_in_a_local_folder_is_read(content, tmp_path):
    write_checkpoint(tmp_path / "run")
    address = f"file://{tmp_path}/mirror"
    Mirror(tmp_path / "run", address, pytest.fail).close()
    # As a command reads it from its arguments.
    address = address_of(Path(f"{address}/run"))
    assert content(fetch_run(address, tmp_path / "copy")) == content(tmp_path / "run")


@pytest.mark.slow
def test_a_run_ends_well_without_its_mirror(
    experiment_file, tmp_path, capfd, monkeypatch
):
    blocked = tmp_path / "blocked"
    blocked.write_text("a file, below which there are no folders")
    words = [f"run.mirror=file://{blocked}", "--runs", str(tmp_path / "runs")]
    assert main(["run", str(experiment_file), *words]) == 0
    assert "the next checkpoint tries again" in " ".join(capfd.readouterr().out.split())


def test_a_checkpoint_is_complete_once_its_manifest_is_there(
    tmp_path, memory, monkeypatch
):
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000001"
    checkpoint.mkdir(parents=True)
    for name in ("MANIFEST.json", "a.safetensors", "z.json"):
        (checkpoint / name).write_text(name)
    order = []
    put = type(memory).put_file

    def record(self, source, target, **options):
        order.append(Path(source).name)
        put(self, source, target, **options)

    monkeypatch.setattr(type(memory), "put_file", record)
    mirror = Mirror(tmp_path / "run", "memory://box", pytest.fail)
    mirror.close()
    assert order == ["a.safetensors", "z.json", "MANIFEST.json"]
    # Removed by the run, and so by the mirror, once it has the next; nothing is copied twice.
    mirror.close()
    checkpoint.rename(checkpoint.with_name("step-00000002"))
    mirror.close()
    assert len(order) == 6
    assert not memory.exists("/box/run/checkpoints/step-00000001/MANIFEST.json")


def test_what_is_lost_in_the_mirror_is_copied_again(content, tmp_path, memory):
    write_checkpoint(tmp_path / "run")
    (tmp_path / "run" / "resolved.toml").write_text("experiment")
    mirror = Mirror(tmp_path / "run", "memory://box", pytest.fail)
    mirror.close()
    # An upload that was cut short, and files that somebody deleted.
    memory.pipe_file(f"/box/run/{CHECKPOINT}/weights", b"wei")
    memory.rm_file("/box/run/resolved.toml")
    mirror.close()
    assert content(fetch_run("memory://box/run", tmp_path / "copy")) == content(
        tmp_path / "run"
    )


def test_a_newer_checkpoint_of_another_copy_of_the_run_stays(tmp_path, memory):
    write_checkpoint(tmp_path / "run")
    newer = "/box/run/checkpoints/step-00000009/MANIFEST.json"
    memory.pipe_file(newer, b"{}")
    memory.pipe_file("/box/run/checkpoints/step-00000000/MANIFEST.json", b"{}")
    warnings = []
    mirror = Mirror(tmp_path / "run", "memory://box", warnings.append)
    mirror.close()
    mirror.close()
    assert memory.exists(newer)
    assert not memory.exists("/box/run/checkpoints/step-00000000/MANIFEST.json")
    assert len(warnings) == 1


def test_a_checkpoint_stays_until_the_next_is_copied(
    content, tmp_path, memory, monkeypatch
):
    """Also where the best one is copied already, which is older."""
    write_checkpoint(tmp_path / "run")
    best = tmp_path / "run" / CHECKPOINT
    second = shutil.copytree(best, best.with_name("step-00000002"))
    mirror = Mirror(tmp_path / "run", "memory://box", pytest.fail)
    put = type(memory).put_file

    def replaced(self, source, target, **options):
        put(self, source, target, **options)
        if source == str(second / "MANIFEST.json"):
            second.rename(best.with_name("step-00000003"))

    monkeypatch.setattr(type(memory), "put_file", replaced)
    mirror._update()
    assert memory.exists("/box/run/checkpoints/step-00000002/MANIFEST.json")
    mirror._update()
    assert content(fetch_run("memory://box/run", tmp_path / "copy")) == content(
        tmp_path / "run"
    )


def test_the_mirror_of_a_run_that_is_deleted_stays(tmp_path, memory):
    write_checkpoint(tmp_path / "run")
    mirror = Mirror(tmp_path / "run", "memory://box", pytest.fail)
    mirror.close()
    shutil.rmtree(tmp_path / "run")
    mirror.close()
    assert memory.exists(f"/box/run/{CHECKPOINT}/MANIFEST.json")


def test_what_is_new_during_a_copy_is_copied_after_it(tmp_path, memory, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "a").write_text("a")
    begun = threading.Event()
    proceed = threading.Event()
    done = threading.Event()
    put = type(memory).put_file

    def slowly(self, source, target, **options):
        begun.set()
        assert proceed.wait(10)
        put(self, source, target, **options)
        if target.endswith("/b"):
            done.set()

    monkeypatch.setattr(type(memory), "put_file", slowly)
    mirror = Mirror(folder, "memory://box", pytest.fail)
    mirror.update()
    assert begun.wait(10)
    (folder / "b").write_text("b")
    mirror.update()
    proceed.set()
    assert done.wait(10)


@pytest.mark.parametrize("stopped_before", [False, True])
def test_a_signal_ends_the_wait_for_a_mirror_that_does_not_respond(
    tmp_path, memory, monkeypatch, stopped_before
):
    """Unless the signal has ended the run: then its last checkpoint is copied."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_text("a")
    respond = threading.Event()
    put = type(memory).put_file

    def hang(self, source, target, **options):
        assert respond.wait(10)
        put(self, source, target, **options)

    monkeypatch.setattr(type(memory), "put_file", hang)
    warnings = []
    signals = iter([stopped_before])
    mirror = Mirror(tmp_path / "run", "memory://box", warnings.append)
    if stopped_before:
        threading.Timer(0.5, respond.set).start()
    mirror.close(lambda: next(signals, True))
    respond.set()
    assert len(warnings) == (not stopped_before)
    assert memory.exists("/box/run/a") or not stopped_before


def test_the_wait_for_a_mirror_is_limited_and_explained(tmp_path, memory, monkeypatch):
    """As after a signal under torchrun, which kills ranks 30 seconds after it."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_text("a")
    respond = threading.Event()
    monkeypatch.setattr(type(memory), "put_file", lambda *_, **__: respond.wait(10))
    monkeypatch.setattr("dither.engine.files.mirror.QUIET_SECONDS", 0.0)
    warnings = []
    Mirror(tmp_path / "run", "memory://box", warnings.append).close(seconds=0.5)
    respond.set()
    assert ["Ctrl-C" in text for text in warnings] == [True, False]


class Buckets(MemoryFileSystem):
    """Like s3fs: a path begins with a bucket, which `makedirs` creates."""

    protocol = "buckets"
    root_marker = ""
    buckets = {"box"}

    @classmethod
    def _strip_protocol(cls, path):
        return path.removeprefix("buckets://").strip("/")

    def makedirs(self, path, exist_ok=False):
        self.buckets.add(path.partition("/")[0])

    def put_file(self, source, target, **options):
        bucket, _, key = target.partition("/")
        if bucket not in self.buckets:
            raise FileNotFoundError("The specified bucket does not exist")
        fsspec.filesystem("memory").pipe_file(key, Path(source).read_bytes())

    def find(self, path, **options):
        return {}


def test_a_mirror_never_creates_a_bucket(tmp_path, memory):
    """Its name may be misspelled."""
    fsspec.register_implementation("buckets", Buckets, clobber=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a").write_text("a")
    warnings = []
    Mirror(tmp_path / "run", "buckets://bos/runs", warnings.append).close()
    assert len(warnings) == 1
    assert Buckets.buckets == {"box"}
    Mirror(tmp_path / "run", "buckets://box/runs", pytest.fail)._update()
    assert memory.cat("/runs/run/a") == b"a"


def test_a_checkpoint_that_was_written_again_is_read_again(content, tmp_path, memory):
    for content_of_weights in ("old", "new"):
        write_checkpoint(tmp_path / "run", content_of_weights)
        Mirror(tmp_path / "run", "memory://box", pytest.fail).close()
        copy = fetch_run("memory://box/run", tmp_path / "copy")
        assert content(copy) == content(tmp_path / "run")


def test_a_checkpoint_may_be_removed_while_a_mirror_is_read(
    content, tmp_path, memory, monkeypatch
):
    write_checkpoint(tmp_path / "run")
    mirror = Mirror(tmp_path / "run", "memory://box", pytest.fail)
    mirror.close()
    get = type(memory).get_file

    def replaced(self, source, target, **options):
        if "step-00000001" in source and source.endswith("weights"):
            checkpoint = tmp_path / "run" / CHECKPOINT
            checkpoint.rename(checkpoint.with_name("step-00000002"))
            mirror.close()
        get(self, source, target, **options)

    monkeypatch.setattr(type(memory), "get_file", replaced)
    copy = fetch_run("memory://box/run", tmp_path / "copy")
    assert content(copy) == content(tmp_path / "run")


def test_a_run_is_copied_whole_or_not_at_all(content, tmp_path, memory, monkeypatch):
    write_checkpoint(tmp_path / "run")
    Mirror(tmp_path / "run", "memory://box", pytest.fail).close()
    runs = tmp_path / "runs"
    get = type(memory).get_file

    def fail(self, source, target, **options):
        if source.endswith("weights"):
            raise OSError("refused")
        get(self, source, target, **options)

    monkeypatch.setattr(type(memory), "get_file", fail)
    with pytest.raises(Refused):
        copy_run("memory://box/run", runs)
    assert list(runs.iterdir()) == []
    monkeypatch.setattr(type(memory), "get_file", get)
    assert content(copy_run("memory://box/run", runs)) == content(tmp_path / "run")


def test_plugin_files_of_a_download_run_only_if_they_are_named(
    tmp_path, memory, monkeypatch
):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    write_checkpoint(tmp_path / "run")
    (tmp_path / "run" / "plugins").mkdir()
    (tmp_path / "run" / "plugins" / "mine.py").write_text("raise SystemExit")
    (tmp_path / "run" / "resolved.toml").write_text("")
    (tmp_path / "run" / "manifest.json").write_text('{"sha256": "1"}')
    Mirror(tmp_path / "run", "memory://box", pytest.fail).close()

    assert recorded_checksums(tmp_path / "run") == {"1"}
    assert recorded_checksums(fetch_run("memory://box/run")) == set()
    with pytest.raises(Refused) as refused:
        copy_run("memory://box/run", tmp_path / "runs")
    assert refused.value.codes == ["untrusted-plugin"]
    assert copy_run("memory://box/run", tmp_path / "runs", ["mine.py"]).is_dir()


def test_the_main_rank_copies_a_run_and_ranks_that_start_again_find_it(
    tmp_path, memory, monkeypatch
):
    write_checkpoint(tmp_path / "run")
    Mirror(tmp_path / "run", "memory://box", pytest.fail).close()
    runs = tmp_path / "runs"
    copies = []

    def copy(rank):
        copies.append(experiments._copy_of_mirror("memory://box/run", runs, None))

    monkeypatch.setattr(experiments, "COPY_SECONDS", 0.01)
    monkeypatch.setenv("RANK", "1")
    other = threading.Thread(target=copy, args=(1,), daemon=True)
    other.start()
    time.sleep(0.05)
    assert copies == []
    monkeypatch.setenv("RANK", "0")
    copy(0)
    other.join(10)
    assert copies == [runs / "run", runs / "run"]
    with pytest.raises(Refused):
        copy(0)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    copy(0)


def test_a_run_is_read_where_the_service_of_its_mirror_is_missing(
    experiment_file, tmp_path, cli
):
    text = f'{experiment_file.read_text()}\n[run]\nmirror = "nonsense://box"\n'
    resolved = experiment_file.with_name("resolved.toml")
    resolved.write_text(text)
    cli("validate", str(resolved), "-p", plugin_of(experiment_file))


def test_validation_does_not_connect_to_the_service(
    experiment_file, monkeypatch, memory, cli
):
    monkeypatch.setattr(type(memory), "__init__", pytest.fail)
    fsspec.filesystem("memory").clear_instance_cache()
    cli("validate", str(experiment_file), "run.mirror=memory://elsewhere")


def test_names_of_a_server_never_leave_the_folder(tmp_path, memory, monkeypatch):
    find = {"/box/run/../../evil": {"size": 1}}
    monkeypatch.setattr(type(memory), "find", lambda *_, **__: find)
    with pytest.raises(Refused) as refused:
        fetch_run("memory://box/run", tmp_path / "copy")
    assert refused.value.codes == ["invalid-value"]
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "address",
    [
        "s3://key:secret@bucket/x",
        "https://host/x?sig=1",
        "nonsense://x",
        # These would be folders of this machine.
        "memory://",
        "memory:///",
        "file://relative",
        # The command line could not name it.
        "memory://box//runs",
        "memory://box/./runs",
    ],
)
def test_addresses_of_mirrors_that_are_refused(experiment_file, address, cli):
    cli("validate", str(experiment_file), f"run.mirror={address}", code=2)


@pytest.mark.parametrize(
    ("path", "address"),
    [
        (Path("s3://bucket/run"), "s3://bucket/run"),
        ("http://host:80/run", "http://host:80/run"),
        (Path("file:///tmp/run"), "file:///tmp/run"),
        ("local:///tmp/run", "local:///tmp/run"),
        ("C:/run", None),
        ("runs/x", None),
        ("/abs/s3:/x", None),
    ],
)
def test_an_address_survives_as_a_path(path, address):
    assert address_of(path) == address


@pytest.mark.slow
def test_a_run_is_read_from_a_web_server(content, mirrored, tmp_path):
    pytest.importorskip("aiohttp")
    path, _ = mirrored
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=path.parent
    )
    with http.server.ThreadingHTTPServer(("localhost", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://localhost:{server.server_port}/{path.name}"
        copy = fetch_run(address, tmp_path / "copy")
        server.shutdown()
    assert content(copy) == content(path)


@pytest.mark.parametrize(
    ("service", "option", "ours"),
    [("s3", "config_kwargs", "retries"), ("http", "client_kwargs", "timeout")],
)
def test_the_configuration_of_fsspec_is_completed(monkeypatch, service, option, ours):
    """An option of a call replaces that of the configuration, such as a proxy."""
    given = {option: {"proxy": "one"}, "use_ssl": True}
    monkeypatch.setitem(fsspec.config.conf, service, given)
    options = service_options(f"{service}://bucket/runs")
    assert set(options) == {option}
    assert set(options[option]) == {"proxy", ours}


def test_what_a_killed_download_left_is_deleted(tmp_path, memory):
    memory.pipe_file("/box/run/a", b"a")
    folder = fetch_run("memory://box/run", tmp_path)
    (folder / ".tmp-0123456789ab").write_text("half")
    fetch_run("memory://box/run", tmp_path)
    assert [path.name for path in folder.iterdir()] == ["a"]
