"""Trained models as models of lm-evaluation-harness (extra `lm-eval`).

The harness requests log-likelihoods of continuations and for generated text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import TrainedModel
from dither.registry.contracts.records import Clean

from ..missing_library import require_extra
from .text_task import require_text

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
else:
    # Without the extra, the error comes where the harness is used, not at import.
    try:
        from lm_eval.api.model import LM
    except ImportError:
        LM = object

__all__ = ["HarnessModel", "evaluate_tasks", "find_tasks"]

logger = logging.getLogger(__name__)

MAX_LOGITS = 1 << 27
"""Log-probabilities of a batch of texts, 0.5 GB."""

DEPTH = 3
"""Samplers inside of each other that are searched for a temperature."""


class HarnessModel(LM):  # type: ignore[misc]
    """A trained model as a model of the harness.

    Log-likelihoods are exact for autoregressive models (masks, blocks of one token), read at t = 1,
    and lower bounds for others, estimated with `samples` draws of noise; contexts are known tokens.
    The end of a text longer than a window is kept; a continuation is greedy if its ids are the
    likeliest, one by one.

    Args:
        model: The model, as of `Engine.load`.
        samples: Draws of noise per request.
        seed: Seed of these draws and of generated text.
    """

    def __init__(self, model: TrainedModel, samples: int = 32, seed: int = 0) -> None:
        super().__init__()
        self.model = model
        self.task = require_text(model.task)
        self.samples = samples
        self.seed_ = seed
        self.length: int = model.task.space.length

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return log p(continuation | context), and whether it is the likeliest."""
        return self._scores([self._encode(*request.args) for request in requests])

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return log p of each text, cut into windows."""
        windows = []
        owners = []
        for number, request in enumerate(requests):
            ids = self.task.tokens(*request.args)
            # Windows do not overlap, so that each id is scored once.
            for start in range(0, len(ids), self.length):
                windows.append((ids[start : start + self.length], 0))
                owners.append(number)
        values = [0.0] * len(requests)
        scores = self._scores(windows, greedy=False)
        for owner, (value, _) in zip(owners, scores, strict=True):
            values[owner] += value
        return values

    def generate_until(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[str]:
        """Return text drawn after each context, up to the first stop text or the window's end."""
        texts = []
        positions = torch.arange(self.length)[None]
        for context, options in (request.args for request in requests):
            ids = self.task.tokens(context)
            count = int(options.get("max_gen_toks", self.length // 2))
            # A request for more than a window leaves the context at least half of it.
            if count >= self.length:
                count = max(self.length - len(ids), self.length // 2)
                logger.warning("max_gen_toks is lowered to %d, to keep context", count)
            room = self.length - count
            if len(ids) > room:
                logger.warning(
                    "a context of %d ids is cut to its last %d", len(ids), room
                )
            before = ids[-room:]
            start = len(before)
            end = start + count
            like = Clean.of(self._row(before), positions < end, positions < start)
            drawn = self._draw(like, options)
            text = self.task.text(drawn[0, start:end].tolist())
            stops = options.get("until") or []
            if isinstance(stops, str):
                stops = [stops]
            for stop in filter(None, stops):
                text = text.partition(stop)[0]
            texts.append(text)
        return texts

    def _draw(self, like: Clean, options: Mapping[str, Any]) -> Tensor:
        """Draw a sample with the temperature of a request, if the sampler has one."""
        temperature = options.get("temperature")
        if temperature is None and options.get("do_sample") is False:
            temperature = 0.0
        if temperature is None:
            return self.model.sample(like, self.seed_)
        changes: dict[str, Any] = {"temperature": float(temperature)}
        # Samplers of blocks, and of several samples, have it in the sampler inside.
        for _ in range(DEPTH):
            try:
                return self.model.sample(like, self.seed_, changes)
            except Refused as refused:
                if set(refused.codes) != {"unknown-key"}:
                    raise
            changes = {"inner": changes}
        logger.warning("the sampler has no temperature, and keeps its options")
        return self.model.sample(like, self.seed_)

    def _row(self, ids: Sequence[int]) -> Tensor:
        row = torch.zeros(1, self.length, dtype=torch.long)
        row[0, : len(ids)] = torch.tensor(ids)
        return row

    def _encode(self, context: str, continuation: str) -> tuple[Sequence[int], int]:
        """Return the ids of a text that fit into a window, and how many of them are context."""
        before = self.task.tokens(context)
        ids = self.task.tokens(context + continuation)
        # Tokens may merge across the border: the continuation begins where ids first differ.
        cut = len(before)
        for place, (old, new) in enumerate(zip(before, ids, strict=False)):
            if old != new:
                cut = place
                break
        # At least one token is scored.
        cut = min(cut, max(len(ids) - 1, 0))

        excess = max(len(ids) - self.length, 0)
        if cut < excess:
            logger.warning(
                "a continuation is longer than a window; only its end is scored"
            )
        return ids[excess:], max(cut - excess, 0)

    def _scores(
        self, texts: Sequence[tuple[Sequence[int], int]], greedy: bool = True
    ) -> list[tuple[float, bool]]:
        """Return log p(ids[cut:] | ids[:cut]) of texts, and whether these ids are the likeliest."""
        scores: dict[int, tuple[float, bool]] = {}
        several = []
        for number, (ids, cut) in enumerate(texts):
            if not ids:
                scores[number] = (0.0, True)
            elif self.model.is_autoregressive:
                several.append(number)
            else:
                scores[number] = self._score(ids, cut, greedy)

        vocabulary = self.model.task.space.vocab
        batch = max(1, MAX_LOGITS // (self.length * vocabulary))
        for start in range(0, len(several), batch):
            numbers = several[start : start + batch]
            part = self._conditionals([texts[number] for number in numbers])
            scores.update(zip(numbers, part, strict=True))
        return [scores[number] for number in range(len(texts))]

    def _score(
        self, ids: Sequence[int], cut: int, greedy: bool = True
    ) -> tuple[float, bool]:
        """Return a bound on log p, and whether the ids are the likeliest one by one."""
        known = torch.arange(len(ids))[None] < cut
        # One seed, so that the score of a request does not depend on those before.
        bound = self.model.log_likelihood(
            torch.tensor([ids]), known, self.samples, self.seed_
        )
        return float(bound.values[0]), greedy and self._is_greedy(ids, cut)

    @torch.no_grad()
    def _conditionals(
        self, texts: Sequence[tuple[Sequence[int], int]]
    ) -> list[tuple[float, bool]]:
        """Return log p of texts under an autoregressive model: one call has log p(x_i | x_<i) of every i."""
        rows = torch.cat([self._row(ids) for ids, _ in texts])
        lengths = torch.tensor([len(ids) for ids, _ in texts])
        cuts = torch.tensor([cut for _, cut in texts])
        # B L
        positions = torch.arange(self.length)
        valid = positions < lengths[:, None]
        known = positions < cuts[:, None]
        scored = valid & ~known

        # log p(x_i | x_<i): B L V, and of the ids of the texts: B L
        log_clean = self.model.log_clean(Clean.of(rows, valid, known))
        log_p = log_clean.gather(2, rows[..., None]).squeeze(2)
        values = log_p.double().where(scored, 0.0).sum(1)
        likeliest = log_clean.argmax(2) == rows
        greedy = (likeliest | ~scored).all(1)
        return list(zip(values.tolist(), greedy.tolist(), strict=True))

    @torch.no_grad()
    def _is_greedy(self, ids: Sequence[int], cut: int) -> bool:
        """Return whether each id is the likeliest after the true ones before it.

        An estimate under other noise than masks.
        """
        positions = torch.arange(self.length)[None]
        for place in range(cut, len(ids)):
            like = Clean.of(self._row(ids), positions < len(ids), positions < place)
            log_clean = self.model.log_clean(like)
            if int(log_clean[0, place].argmax()) != ids[place]:
                return False
        return True


def find_tasks(tasks: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the `TaskManager` that knows tasks of the harness, and their names; Refused if one is unknown.

    A task that is a YAML file brings its folder with it.
    """
    require_extra("lm-eval", "lm-eval")
    from lm_eval.tasks import TaskManager

    files = [Path(task) for task in tasks if task.endswith((".yaml", ".yml"))]
    if missing := [file for file in files if not file.is_file()]:
        raise Refused(
            [
                Problem(f"no such task file: {file}", code="file-not-found")
                for file in missing
            ]
        )
    manager = TaskManager(
        include_path=[str(file.resolve().parent) for file in files] or None
    )
    names = [_task_name(Path(task)) if Path(task) in files else task for task in tasks]
    if unknown := [name for name in names if name not in manager.all_tasks]:
        raise Refused(
            [
                Problem(f'the harness has no task "{name}"', code="unknown-value")
                for name in unknown
            ]
        )
    return manager, names


def evaluate_tasks(
    model: TrainedModel,
    found: tuple[Any, Sequence[str]],
    limit: int | None = None,
    samples: int = 32,
) -> dict[str, dict[str, Any]]:
    """Return the results of tasks that `find_tasks` found, by name.

    Nothing is downloaded for tasks whose files name local data.
    """
    from lm_eval import simple_evaluate

    manager, names = found
    results = simple_evaluate(
        model=HarnessModel(model, samples),
        tasks=list(names),
        limit=limit,
        task_manager=manager,
        bootstrap_iters=0,
    )
    if not results:
        return {}
    return {name: dict(values) for name, values in results["results"].items()}


def _task_name(file: Path) -> str:
    for line in file.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "task":
            return value.strip().strip("\"'")
    raise Refused(f"{file} has no line `task: NAME`", code="missing-key")
