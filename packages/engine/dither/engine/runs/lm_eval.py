"""Runs as models of lm-evaluation-harness (extra `lm-eval`): log-likelihoods of continuations, and generated text."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import TextTask
from dither.registry.contracts.records import Clean
from dither.registry.plugins.install_command import install_command

from ..sampling.session import draw
from .exports import load
from .loading import Which

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
else:
    try:
        from lm_eval.api.model import LM
        from lm_eval.api.registry import register_model
    except ImportError:
        LM = object

        def register_model(name: str) -> Any:
            return lambda cls: cls


__all__ = ["HarnessModel", "evaluate_tasks"]


@register_model("dither")
class HarnessModel(LM):  # type: ignore[misc]
    """A run or export as a model of the harness: `--model dither --model_args path=runs/NAME`.

    Log-likelihoods are lower bounds, estimated with `samples` draws of noise; contexts are known
    tokens. The end of a text longer than a window is kept; a continuation is greedy if its ids are
    the likeliest, one by one.

    Args:
        path: A run directory or an export; or a system.
        samples: Draws of noise per request.
        seed: Seed of these draws and of generated text.
    """

    def __init__(
        self,
        path: str | Path | System,
        samples: int = 32,
        seed: int = 0,
        **_: Any,
    ) -> None:
        super().__init__()
        self.system = path if isinstance(path, System) else load(path)
        if not isinstance(self.system.task, TextTask):
            raise Refused(
                Problem("the harness requires a task about text", ("task",), code="misfit")
            )
        self.task = self.system.task
        self.samples = int(samples)
        self.seed_ = int(seed)
        self.calls = 0
        self.length: int = self.system.process.space.length

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the bound on log p(continuation | context) of each request, and whether it is the likeliest."""
        results = []
        for context, continuation in (request.args for request in requests):
            before = self.task.tokens(context)
            after = self.task.tokens(context + continuation)
            cut = next(
                (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
                len(before),
            )
            results.append(self._score(after, min(cut, max(len(after) - 1, 0))))
        return results

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the bound on log p of each text, cut into windows."""
        totals = []
        for (text,) in (request.args for request in requests):
            ids = self.task.tokens(text)
            parts = [ids[start : start + self.length] for start in range(0, len(ids), self.length)]
            totals.append(sum(self._score(part, 0, greedy=False)[0] for part in parts))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return text drawn after each context, up to the first stop text or the end of the window."""
        texts = []
        for context, options in (request.args for request in requests):
            stops = options.get("until") or []
            count = min(int(options.get("max_gen_toks", self.length // 2)), self.length - 1)
            before = self.task.tokens(context)[-(self.length - count) :]
            x0 = self._row([*before, *[0] * count])
            known = torch.arange(self.length)[None] < len(before)
            valid = torch.arange(self.length)[None] < len(before) + count
            drawn = draw(self.system, Clean.of(x0, valid, known), self.seed_)
            text = self.task.text(drawn[0, len(before) : len(before) + count].tolist())
            for stop in [stops] if isinstance(stops, str) else stops:
                text = text.partition(stop)[0] if stop else text
            texts.append(text)
        return texts

    def _row(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([[*ids, *[0] * (self.length - len(ids))]], dtype=torch.long)

    def _score(self, ids: Sequence[int], cut: int, greedy: bool = True) -> tuple[float, bool]:
        """Return the bound on log p(ids[cut:] | ids[:cut]), and whether these ids are the likeliest."""
        over = max(len(ids) - self.length, 0)
        if cut < over:
            logging.getLogger(__name__).warning(
                "a continuation is longer than a window; only its end is scored"
            )
        ids = ids[over:]
        cut = max(cut - over, 0)
        if not ids:
            return 0.0, True
        x0 = torch.tensor([ids])
        place = torch.arange(len(ids))[None]
        value = float(
            self.system.log_likelihood(x0, place < cut, self.samples, self.seed_).values[0]
        )
        return value, greedy and self._greedy(ids, cut)

    @torch.no_grad()
    def _greedy(self, ids: Sequence[int], cut: int) -> bool:
        """Whether each id is the likeliest after the true ones; under other noise than masks an estimate."""
        system = self.system
        device = next(self.system.model.parameters()).device
        place = torch.arange(self.length)[None]
        for i in range(cut, len(ids)):
            like = Clean.of(self._row(ids), place < len(ids), place < i).to(device)
            state = system.process.prior(like)
            t = torch.ones(1, device=device)
            log = system.denoise(state, t, like, context=system.context(like)).log_clean()[0, i]
            if int(log.argmax()) != ids[i]:
                return False
        return True


def evaluate_tasks(
    path: Path,
    tasks: Sequence[str],
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
    limit: int | None = None,
    samples: int = 32,
) -> dict[str, dict[str, Any]]:
    """Return the results of tasks of the harness by name; a task that is a YAML file brings its folder with it.

    Nothing is downloaded for tasks whose files name local data.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.tasks import TaskManager
    except ImportError as error:
        message = f"lm-evaluation-harness cannot be imported: {error}"
        fix = install_command("dither-engine", "lm-eval")
        raise Refused(Problem(message, help=fix, code="missing-dependency")) from None
    files = [Path(task) for task in tasks if task.endswith((".yaml", ".yml"))]
    if missing := [file for file in files if not file.is_file()]:
        raise Refused(
            [Problem(f"no such task file: {file}", code="file-not-found") for file in missing]
        )
    manager = TaskManager(include_path=[str(file.resolve().parent) for file in files] or None)
    names = [_task_name(Path(task)) if Path(task) in files else task for task in tasks]
    if unknown := [name for name in names if name not in manager.all_tasks]:
        raise Refused(
            [Problem(f'the harness has no task "{name}"', code="unknown-value") for name in unknown]
        )
    model = HarnessModel(load(path, checkpoint, plugins=select), samples)
    results = simple_evaluate(
        model=model,
        tasks=names,
        limit=limit,
        task_manager=manager,
        bootstrap_iters=0,
    )
    return {name: dict(values) for name, values in results["results"].items()} if results else {}


def _task_name(file: Path) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "task":
            return value.strip().strip("\"'")
    raise Refused(Problem(f"{file} has no line `task: NAME`", code="missing-key"))
