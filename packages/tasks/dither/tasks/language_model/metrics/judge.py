"""Score samples with an external causal language model of Hugging Face, from a local folder.

Nothing is downloaded, no code of the model folder is executed, and weights are read from
safetensors only.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from math import exp, log
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused
from dither.registry.plugins.install_command import install_command

__all__ = ["READ", "FolderJudge", "judge_problems"]

EXTRA = "transformers"  # of the extra judge
READ = 32
"""Number of samples that are scored, the first ones: a large judge is slow."""


def judge_problems(folder: Path) -> Iterator[Problem]:
    """Yield why a folder cannot be used, without importing anything heavy."""
    if importlib.util.find_spec(EXTRA) is None:
        fix = install_command("dither-tasks", "judge")
        yield Problem(
            f"a judge requires {EXTRA}, which is not installed", help=fix, code="missing-dependency"
        )
    if not folder.is_dir():
        fix = "save a model and its tokenizer there with save_pretrained"
        yield Problem(f"{folder} is not a folder", help=fix, code="file-not-found")
        return
    tokenizers = ("tokenizer.json", "tokenizer_config.json")
    for what, there, call in (
        ("config.json", (folder / "config.json").is_file(), "model.save_pretrained"),
        ("safetensors weights", any(folder.glob("*.safetensors")), "model.save_pretrained"),
        (
            "tokenizer",
            any((folder / name).is_file() for name in tokenizers),
            "tokenizer.save_pretrained",
        ),
    ):
        if not there:
            yield Problem(
                f"{folder} has no {what}", help=f"{call}(folder) writes it", code="file-not-found"
            )


class FolderJudge:
    """A causal language model that scores texts, from a folder with config.json, safetensors and tokenizer.

    Raises:
        Refused: It cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        if problems := list(judge_problems(folder)):
            raise Refused(problems)
        library: Any = importlib.import_module(EXTRA)
        damaged: type[Exception] = importlib.import_module("safetensors").SafetensorError
        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._tokenizer = library.AutoTokenizer.from_pretrained(str(folder), **safe)
            model, notes = library.AutoModelForCausalLM.from_pretrained(
                str(folder), use_safetensors=True, output_loading_info=True, **safe
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, damaged) as error:
            raise Refused(
                f"{folder}: not a causal language model: {error}", code="damaged-file"
            ) from None
        if missing := sorted(
            notes["missing_keys"]
        ):  # they would be random, and the scores meaningless
            raise Refused(
                f"{folder} lacks weights of its model: {', '.join(missing[:5])}",
                code="damaged-file",
            )
        self._model = model.eval()
        self._longest = int(getattr(model.config, "max_position_embeddings", None) or 1024)

    def nats(self, text: str) -> tuple[float, int]:
        """Return the negative log-likelihood of a text in nats, and the number of the judge's tokens.

        Tokens without context are not counted: the first one, and the first of each window where
        the text is longer than the context of the judge.
        """
        import torch

        ids = torch.tensor(
            [self._tokenizer(text, add_special_tokens=False)["input_ids"]], dtype=torch.int64
        )
        total = 0.0
        count = 0
        with torch.no_grad():
            for start in range(0, ids.shape[1] - 1, self._longest):
                piece = ids[:, start : start + self._longest]
                if piece.shape[1] < 2:
                    continue
                logits = self._model(piece).logits[0, :-1].double()
                total -= float(logits.log_softmax(-1).gather(-1, piece[0, 1:, None]).sum())
                count += piece.shape[1] - 1
        return total, count

    def metrics(self, texts: Iterable[str]) -> dict[str, float]:
        """Return `judge_perplexity`, per token of the judge, and `judge_bits_per_char` over the first texts."""
        total = 0.0
        count = 0
        characters = 0
        for text in list(texts)[:READ]:
            nats, tokens = self.nats(text)
            total = total + nats
            count = count + tokens
            characters = characters + len(text)
        if not count:
            return {"judge_perplexity": float("nan"), "judge_bits_per_char": float("nan")}
        mean = total / count
        return {
            "judge_perplexity": exp(mean) if mean < 700 else float("inf"),
            "judge_bits_per_char": total / log(2) / characters,
        }
