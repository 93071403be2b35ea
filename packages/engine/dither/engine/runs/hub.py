"""Exports as repositories of the Hugging Face hub: model card, config.json, upload."""

from __future__ import annotations

import importlib.metadata
import io
import json
import shutil
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.records import State
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import command_line, is_file
from dither.registry.kinds import TaskSpec
from dither.registry.plugins.catalog import bare_name
from dither.registry.plugins.manager import default_catalog
from dither.registry.spec import Spec

from ..files.installed_models import EXPERIMENT, WEIGHTS
from ..files.metrics_file import is_companion_metric, shown_baselines, with_interval
from ..training.diffusion import Diffusion
from .exports import export_run, first_line, import_hub, read_export_manifest
from .request_checks import Which
from .run_directory import ASSETS, read_manifest

__all__ = ["PROGRAM", "export_program", "export_to_hub_folder", "push"]

PROGRAM = "denoiser.pt2"
CARD = """# {name}

A diffusion transformer of [dither](#use): {components}; {parameters:,} parameters, step {step:,}.

## Use

```python
import dither

system = dither.load("{folder}")  # this folder, or the name of its repository
samples = system.sample(4, seed=0)
```

## Metrics

{metrics}

## Data

Task `{task}`, data `{data}`: {summary} {missing}

Licence of the data: {data_licence}.

## Training

`{experiment}` has every option. Weights are stored as safetensors; nothing here is unpickled.
"""


def export_to_hub_folder(
    run: Path,
    to: Path,
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
    licence: str = "unknown",
    data_licence: str = "not stated",
    changes: Sequence[str] = (),
) -> list[Path]:
    """Write an export with model card, config.json, and the tokenizer as `transformers` expects it.

    `licence` is an identifier of the hub, such as apache-2.0. Errors are those of `export_run`.
    """
    hub = import_hub("dither export --hub")
    files = export_run(run, to, checkpoint, select, changes)
    tree = tomllib.loads(read_text(to / EXPERIMENT))
    manifest = read_manifest(run)
    step = json.loads(read_text(to / "MANIFEST.json"))["step"]
    parameters = manifest["parameters"]["total"]
    config = {
        "model_type": "dither",
        "dither_version": importlib.metadata.version("dither-engine"),
        "step": step,
        "parameters": parameters,
        "experiment": tree,
    }
    task = _spec_of("task", tree["task"])
    # The plugin of the task may not be installed here.
    hub_task = TaskSpec.hub_task
    if task is not None:
        hub_task = cast(type[TaskSpec], task).hub_task
    card_data = hub.ModelCardData(
        license=licence,
        library_name="dither",
        pipeline_tag=hub_task,
        tags=["diffusion", "dither", _name_of(tree["task"]), _name_of(tree["process"])],
        data_license=data_licence,
        model_name=tree["name"],
        eval_results=_eval_results(run, tree, hub_task) or None,
    )
    text = _card_text(run, to, tree, step, parameters, data_licence)
    added = {
        # TOML has dates, JSON has not.
        "config.json": json.dumps(config, indent=2, default=str) + "\n",
        "README.md": str(hub.ModelCard(f"---\n{card_data}\n---\n{text}")),
    }
    if is_file(tokenizer := run / ASSETS / "tokenizer.json"):
        shutil.copyfile(tokenizer, to / tokenizer.name)
        files.append(to / tokenizer.name)
        # transformers requires the class of a bare tokenizer.json.
        added["tokenizer_config.json"] = (
            json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}) + "\n"
        )
    for name, content in added.items():
        (to / name).write_text(content, encoding="utf-8")
    return [*files, *(to / name for name in added)]


def _name_of(component: str | Mapping[str, Any] | None) -> str:
    name = component or "of the task"
    if isinstance(component, Mapping):
        name = component.get("use", "")
    return bare_name(str(name))


def _data_of(tree: Mapping[str, Any]) -> str:
    """Return the name of the data of an experiment."""
    task = tree["task"]
    return _name_of(task.get("data") if isinstance(task, Mapping) else None)


def _spec_of(kind: str, component: str | Mapping[str, Any] | None) -> type[Spec] | None:
    """Return the Spec of a component; None if its plugin is not installed."""
    catalog = default_catalog()
    name = _name_of(component)
    return catalog.find(kind, name).spec if name in catalog.names(kind) else None


def _eval_results(run: Path, tree: Mapping[str, Any], hub_task: str) -> list[Any]:
    """Return the metrics at the end of a run as the hub's EvalResult, by which models are searched."""
    hub = import_hub("dither export --hub")
    data = _data_of(tree)
    results = []
    for kind, name, metrics in _final_metrics(_summary(run)):
        results.append(
            hub.EvalResult(
                task_type=hub_task,
                task_name=_name_of(tree["task"]),
                dataset_type=data,
                dataset_name=data,
                dataset_split=kind,
                metric_type=name,
                metric_name=name,
                metric_value=metrics[name],
            )
        )
    return results


def _card_text(
    run: Path,
    to: Path,
    tree: Mapping[str, Any],
    step: int,
    parameters: int,
    data_licence: str,
) -> str:
    data = tree["task"].get("data") if isinstance(tree["task"], Mapping) else None
    # A task without components of data describes its data itself.
    spec = _spec_of("data", data) or _spec_of("task", tree["task"])
    summary = "" if spec is None else (spec.__doc__ or "").strip().partition("\n")[0]
    missing = ", ".join(f"`{option}`" for option, _ in read_export_manifest(to)[0])
    if missing:
        missing = f"Data files are not part of this repository: {missing}."
    kinds = ("task", "process", "model", "loss", "sampler")
    return CARD.format(
        name=tree["name"],
        folder=to.name,
        components=", ".join(f"{kind} {_name_of(tree[kind])}" for kind in kinds),
        parameters=parameters,
        step=step,
        metrics="\n".join(_metrics_table(run)) or "Not evaluated.",
        task=_name_of(tree["task"]),
        data=_data_of(tree),
        summary=summary,
        missing=missing,
        data_licence=data_licence,
        experiment=EXPERIMENT,
    )


def _summary(run: Path) -> dict[str, Any]:
    """Return the summary of a run; empty if it has not ended."""
    file = run / "summary.json"
    return dict(json.loads(read_text(file))) if is_file(file) else {}


def _metrics_table(run: Path) -> Iterator[str]:
    """Yield a table of the metrics at the end of a run, if it has ended."""
    summary = _summary(run)
    if not summary:
        return
    yield from ("| | metric | model | baselines |", "| --- | --- | --- | --- |")
    for kind, name, known in _final_metrics(summary):
        baselines = ", ".join(shown_baselines(kind, name, summary["baselines"]))
        yield f"| {kind} | {name} | {with_interval(name, known)} | {baselines} |"


def _final_metrics(
    summary: Mapping[str, Any],
) -> Iterator[tuple[str, str, dict[str, float]]]:
    """Yield kind and name of each finite metric, with all of that kind."""
    for kind, values in summary.get("metrics", {}).items():
        # null is NaN or inf.
        known = {name: value for name, value in values.items() if value is not None}
        for name in known:
            # An interval is part of its metric.
            if not is_companion_metric(name, values):
                yield kind, name, known


class _Tensors(nn.Module):
    """A model with tensors as arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        x: Tensor,
        masked: Tensor,
        level: Tensor,
        valid: Tensor,
        cond: dict[str, Tensor],
    ) -> Tensor:
        out: Tensor = self.model(State(x, masked), level, valid, cond)
        return out


@torch.no_grad()
def export_program(system: Diffusion, size: int = 4) -> io.BytesIO:
    """Return the denoiser as a file of torch.export, which runs without dither.

    Its arguments are those of `State` (x, masked), the noise level, `valid` and a dict of
    conditions. Refused if it differs from the model on other samples and noise levels than those it
    was traced with, or reads its previous prediction.
    """
    if system.self_conditioning:
        message = "a program of torch.export has no input for the previous prediction"
        path = ("model", "self_conditioning")
        raise Refused(Problem(message, path, code="misfit"))
    # Arguments of a program are tensors and containers of them, not records.
    module = _Tensors(system.model).eval()
    arguments = _inputs(system, size, 0.5)
    # AUTO, as a model that requires one batch size is then exported for it.
    names = {name: {0: torch.export.Dim.AUTO} for name in arguments[-1]}
    shapes = (*({0: torch.export.Dim.AUTO} for _ in arguments[:-1]), names)
    program = torch.export.export(
        module, arguments, dynamic_shapes=shapes, strict=False
    )
    # Other levels, noise and batch sizes: a constant of the trace would show.
    for seed, count in enumerate((size, size, size + 1), 1):
        inputs = _inputs(system, count, 0.2 * seed, seed)
        try:
            out = program.module()(*inputs)
        # Its guards: some models are traced for one batch size.
        except AssertionError:
            if count == size:
                raise
            continue
        expected = module(*inputs)
        # A model may skip padding, which its program, traced for any batch, computes.
        valid = inputs[3]
        # Equal where -inf.
        if not torch.allclose(out[valid], expected[valid], rtol=0, atol=1e-3):
            raise Refused(
                "the exported program differs from the model by more than 0.001",
                code="non-finite",
            )
    # In memory: torch reports a full disk as an internal error, or aborts.
    content = io.BytesIO()
    torch.export.save(program, content)
    return content


def _inputs(
    system: Diffusion,
    size: int,
    t: float,
    seed: int = 0,
) -> tuple[Any, ...]:
    clean = system.task.like(size, seed=seed)
    times = torch.full((size,), t)
    state = system.process.corrupt(clean, times).state
    return (
        state.x,
        state.masked,
        system.process.level(times),
        clean.valid,
        dict(clean.cond),
    )


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload a folder of `dither export --hub` as a model repository; return its address."""
    hub = import_hub("dither export --push")
    if missing := [
        file
        for file in (WEIGHTS, EXPERIMENT, "README.md")
        if not is_file(folder / file)
    ]:
        hint = command_line("export", "RUN", "--hub", "--out", folder)
        raise Refused(
            Problem(
                f"{folder} lacks {', '.join(missing)}", help=hint, code="file-not-found"
            )
        )
    try:
        api = hub.HfApi(library_name="dither")
        # A second upload is another commit of the same repository.
        url = api.create_repo(name, private=private, exist_ok=True)
        # create_repo leaves an existing public repository as it is.
        if private and not api.model_info(name).private:
            raise ValueError("the repository exists and is public")
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Upload with dither"
        )
        return str(url)
    except (OSError, ValueError) as error:
        hint = "check the name, the network, HF_ENDPOINT and HF_TOKEN"
        message = f"{folder} could not be uploaded to {name}: {first_line(error)}"
        raise Refused(Problem(message, help=hint, code="upload-failed")) from None
