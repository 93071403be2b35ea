"""Model repositories: card and config, upload and download against a local server, a program of torch.export."""

import base64
import hashlib
import json
import math
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard

import dither
from dither.engine import Diffusion, load_experiment
from dither.engine.cli import main
from dither.engine.runs.hub import _inputs, _Tensors, export_program
from dither.registry.config.errors import Refused

COMMIT = "0" * 40


class Hub(BaseHTTPRequestHandler):
    """The endpoints of the hub that an upload and a download of small files use."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes] = {}
    calls: list[str] = []

    def log_message(self, *arguments):
        self.calls.append(f"{self.command} {self.path}")

    def reply(self, body, code=200, **headers):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for name, value in {
            "Content-Length": len(content),
            "X-Repo-Commit": COMMIT,
            **headers,
        }.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if b'"other' in body or "/other/" in self.path:
            return self.reply({"error": "forbidden"}, 403)
        where = f"http://{self.headers['Host']}/me/model"
        if self.path.endswith("/preupload/main"):
            sent = [
                {"path": file["path"], "uploadMode": "regular"}
                for file in json.loads(body)["files"]
            ]
            return self.reply(
                {"files": [{**file, "shouldIgnore": False} for file in sent]}
            )
        if self.path.endswith("/commit/main"):
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(
                        line["value"]["content"]
                    )
            return self.reply(
                {"commitUrl": where, "commitOid": COMMIT, "hookOutput": ""}
            )
        return self.reply(
            {"url": where, "errors": [], "warnings": [], "id": "me/model"}
        )

    def do_GET(self):
        name = self.path.partition(f"/resolve/{COMMIT}/")[2]
        if "/other/" in self.path:
            return self.reply(
                {"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound"
            )
        if name:
            return self.reply(
                self.files[name],
                ETag=f'"{hashlib.sha256(self.files[name]).hexdigest()}"',
            )
        if "/tree/" in self.path:
            found = [
                {"type": "file", "path": path, "oid": "0", "size": len(file)}
                for path, file in self.files.items()
            ]
            return self.reply(found)
        files = [{"rfilename": path} for path in self.files]
        return self.reply(
            {
                "id": "me/model",
                "sha": COMMIT,
                "siblings": files,
                "private": False,
                "tags": [],
            }
        )

    do_HEAD = do_GET


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    """The folder for the hub of a run."""
    to = tmp_path_factory.mktemp("hub") / "mine"
    options = ["--license", "apache-2.0", "--data-license", "CC0"]
    assert main(["export", str(trained[1]), "--hub", "--out", str(to), *options]) == 0
    return to


def test_card_config_and_tokenizer(folder, trained):
    card = ModelCard.load(folder / "README.md")
    data = card.data
    assert (data.license, data.library_name) == ("apache-2.0", "dither")
    assert (data.pipeline_tag, data.data_license) == ("text-generation", "CC0")
    assert {"diffusion", "dither", "language-model", "absorbing"} == set(data.tags)
    metrics = json.loads((trained[1] / "summary.json").read_text())["metrics"]["valid"]
    results = {
        (one.dataset_name, one.dataset_split, one.metric_type): one.metric_value
        for one in data.eval_results
    }
    assert results["text-files", "valid", "nats_per_token"] == metrics["nats_per_token"]
    assert not any(metric.endswith("_ci95") for *_, metric in results)
    assert f"| valid | nats_per_token | {metrics['nats_per_token']:.4g}" in card.content
    assert "Licence of the data: CC0." in card.content
    assert f'dither.load("{folder.name}")' in card.content
    assert "`task.data.paths`" in card.content
    config = json.loads((folder / "config.json").read_text())
    assert config["experiment"]["model"]["width"] > 0
    assert config["parameters"] == sum(dither.load(folder).parameter_counts().values())


SCRIPT = """
import json, sys
import dither
from dither.engine.cli import main
from dither.registry.config.errors import Refused

folder, empty = sys.argv[1:]
pairs = ((folder, "me/model"), (folder, "other/model"), (empty, "me/model"))
codes = [main(["export", source, "--push", name]) for source, name in pairs]
total = sum(weights.double().sum().item() for weights in dither.load("me/model", device="cpu").model.parameters())
try:
    dither.load("other/model")
except Refused as refused:
    print(json.dumps([codes, total, refused.codes]))
"""


@pytest.mark.slow
def test_push_and_load_by_name(folder, tmp_path):
    Hub.files, Hub.calls = {}, []
    server = ThreadingHTTPServer(("localhost", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    names = {
        "HF_ENDPOINT": f"http://localhost:{server.server_port}",
        "HF_HOME": str(tmp_path),
        "HF_TOKEN": "hf_x",
    }
    command = [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path)]
    env = {
        **os.environ,
        **names,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    server.shutdown()
    server.server_close()
    assert done.returncode == 0, done.stderr
    codes, total, refused = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0, 2, 2], (done.stderr, Hub.calls)
    assert ["[upload-failed]" in done.stderr, "[file-not-found]" in done.stderr] == [
        True,
        True,
    ]
    assert refused == ["download-failed"]
    assert (
        Hub.files["weights.safetensors"]
        == (folder / "weights.safetensors").read_bytes()
    )
    mine = sum(
        weights.double().sum().item()
        for weights in dither.load(folder, device="cpu").model.parameters()
    )
    assert total == pytest.approx(mine)


@pytest.mark.slow
def test_program_is_compared_where_samples_are_valid(tmp_path):
    """A model without positions computes no padding; its program, traced for any batch, does."""
    pairs = [{"prompt": f"{n % 7}+1", "response": f"{n % 7 + 1}"} for n in range(40)]
    file = tmp_path / "pairs.jsonl"
    file.write_text("\n".join(map(json.dumps, pairs)))
    data = f"{{ use = 'prompt-response', paths = ['{file}'] }}"
    changes = [
        f"task.data={data}",
        "task.length=12",
        "task.documents=separate",
        "task.end_of_text=true",
        "task.ngrams=2",
        "model.width=16",
        "model.depth=1",
        "model.block.heads=2",
        "model.block.rope=false",
    ]
    experiment = load_experiment("language_model/attention", changes).experiment
    system = Diffusion.build(experiment).eval()
    for weights in system.model.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    program = torch.export.load(export_program(system)).module()
    inputs = _inputs(system, 4, 0.7, seed=9)
    valid = inputs[3]
    assert not valid.all()
    with torch.no_grad():
        expected = _Tensors(system.model)(*inputs)
        torch.testing.assert_close(
            program(*inputs)[valid], expected[valid], rtol=1e-4, atol=1e-4
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bubble_diagram/quick", "get_region/quick"])
def test_program_equals_the_model(name, monkeypatch):
    system = Diffusion.build(
        load_experiment(name, ["model.width=32", "model.depth=1"]).experiment
    ).eval()
    with torch.no_grad():
        for weights in system.model.parameters():
            weights.add_(0.05 * torch.randn_like(weights))
    program = torch.export.load(export_program(system)).module()
    inputs = _inputs(system, 4, 0.7, seed=9)
    outputs = _Tensors(system.model)(*inputs)
    torch.testing.assert_close(program(*inputs), outputs, rtol=1e-4, atol=1e-5)
    for value in (1.0, math.nan):
        wrong = SimpleNamespace(
            module=lambda value=value: lambda *_: torch.full_like(outputs, value)
        )
        monkeypatch.setattr(torch.export, "export", lambda *_, wrong=wrong, **__: wrong)
        with pytest.raises(Refused):
            export_program(system)
