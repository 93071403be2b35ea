"""Score samples with an external causal language model of Hugging Face, from a local folder.

Nothing is downloaded, no code of the model folder is executed, and weights are read from
safetensors only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from math import exp, log
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused

from ...missing_library import missing_libraries

__all__ = ["READ", "FolderJudge", "judge_problems"]

READ = 32
"""Number of samples that are scored, the first ones: a large judge is slow."""


def judge_problems(folder: Path) -> Iterator[Problem]:
    """Yield why a folder cannot be used, without importing anything heavy."""
    yield from missing_libraries("judge", "a judge")
    if not folder.is_dir():
        fix = "save a model and its tokenizer there with save_pretrained"
        yield Problem(f"{folder} is not a folder", help=fix, code="file-not-found")
        return
    required = {
        "config.json": ("config.json", "model"),
        "safetensors weights": ("*.safetensors", "model"),
        "tokenizer": ("tokenizer*.json", "tokenizer"),
    }
    for name, (pattern, writer) in required.items():
        if not any(folder.glob(pattern)):
            fix = f"{writer}.save_pretrained(folder) writes it"
            yield Problem(f"{folder} has no {name}", help=fix, code="file-not-found")


class FolderJudge:
    """A causal language model that scores texts.

    Raises:
        Refused: It cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        if problems := list(judge_problems(folder)):
            raise Refused(problems)
        from safetensors import SafetensorError
        from transformers import AutoModelForCausalLM, AutoTokenizer

        loader: Any = AutoModelForCausalLM
        # Neither code of the folder nor files of another place are loaded.
        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(str(folder), **safe)
            model, notes = loader.from_pretrained(
                str(folder), use_safetensors=True, output_loading_info=True, **safe
            )
        except (
            OSError,
            ValueError,
            KeyError,
            ImportError,
            RuntimeError,
            SafetensorError,
        ) as error:
            message = f"{folder}: not a causal language model: {error}"
            raise Refused(message, code="damaged-file") from None
        # Missing weights would be random, and the scores meaningless.
        if missing := sorted(notes["missing_keys"]):
            message = f"{folder} lacks weights of its model: {', '.join(missing[:5])}"
            raise Refused(message, code="damaged-file")
        self._model = model.eval()
        # Models without position embeddings have no longest context.
        self._longest = int(
            getattr(model.config, "max_position_embeddings", None) or 1024
        )

    def nats(self, text: str) -> tuple[float, int]:
        """Return the negative log-likelihood of a text in nats, and its number of judge tokens.

        Tokens without context are not counted: the first one, and the first of each window where
        the text is longer than the context of the judge.
        """
        import torch

        numbers = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        ids = torch.tensor([numbers], dtype=torch.int64)
        nats = 0.0
        count = 0
        with torch.no_grad():
            for start in range(0, ids.shape[1] - 1, self._longest):
                piece = ids[:, start : start + self._longest]
                if piece.shape[1] < 2:
                    continue
                logits = self._model(piece).logits[0, :-1].double()
                nats -= float(
                    logits.log_softmax(-1).gather(-1, piece[0, 1:, None]).sum()
                )
                count += piece.shape[1] - 1
        return nats, count

    def metrics(self, texts: Iterable[str]) -> dict[str, float]:
        """Return `judge_perplexity`, per token of the judge, and `judge_bits_per_char`."""
        nats = 0.0
        tokens = 0
        characters = 0
        for text in islice(texts, READ):
            text_nats, count = self.nats(text)
            nats += text_nats
            tokens += count
            characters += len(text)
        if not tokens:
            return {
                "judge_perplexity": float("nan"),
                "judge_bits_per_char": float("nan"),
            }
        mean = nats / tokens
        return {
            "judge_perplexity": exp(mean) if mean < 700 else float("inf"),
            "judge_bits_per_char": nats / log(2) / characters,
        }
