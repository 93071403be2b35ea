"""A stranger's word on samples: any causal language model of Hugging Face, from a local folder.

Nothing is fetched, no code that comes with a model is run, and weights are read from safetensors only.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from math import exp, log
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Refused

__all__ = ["EXTRA", "READ", "FolderJudge", "judge_problems"]

EXTRA = "transformers"
"""What the extra `dither-tasks[judge]` installs."""
READ = 32
"""So many samples are read, the first ones: a large judge is slow."""


def judge_problems(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield why a folder cannot judge, as message and help, without importing anything heavy."""
    if importlib.util.find_spec(EXTRA) is None:
        yield f"a judge needs {EXTRA}, which is not installed", 'pip install "dither-tasks[judge]"'
    if not folder.is_dir():
        yield f"{folder} is not a folder", "save a model there with save_pretrained, and its tokenizer"
        return
    if not (folder / "config.json").is_file():
        yield f"{folder} has no config.json", "save a model there with save_pretrained"
    if not any(folder.glob("*.safetensors")):
        yield f"{folder} has no weights in safetensors", "save_pretrained(folder) writes them; others are not read"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json")):
        yield f"{folder} has no tokenizer", "tokenizer.save_pretrained(folder) writes it"


class FolderJudge:
    """A causal language model that reads texts.

    Args:
        folder: With config.json, weights as safetensors, and the tokenizer.

    Raises:
        Refused: It cannot be used; says why.
    """

    def __init__(self, folder: Path) -> None:
        if problems := list(judge_problems(folder)):
            raise Refused("; ".join(f"{message} ({fix})" for message, fix in problems))
        library: Any = importlib.import_module(EXTRA)
        damaged: type[Exception] = importlib.import_module("safetensors").SafetensorError
        safe: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            self._tokenizer = library.AutoTokenizer.from_pretrained(str(folder), **safe)
            model, notes = library.AutoModelForCausalLM.from_pretrained(
                str(folder), use_safetensors=True, output_loading_info=True, **safe
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, damaged) as error:
            raise Refused(f"{folder} cannot be read as a causal language model: {error}") from None
        if missing := sorted(notes["missing_keys"]):  # they would be random, and the figures without meaning
            raise Refused(f"{folder} lacks weights of its model: {', '.join(missing[:5])}")
        self._model = model.eval()
        self._longest = int(getattr(model.config, "max_position_embeddings", None) or 1024)

    def nats(self, text: str) -> tuple[float, int]:
        """Return the surprise of a text in nats and the number of the judge's tokens in it.

        A token that nothing stands before is not counted: the first one, and the first of each piece where the text is
        longer than the judge can read at once.
        """
        import torch

        ids = torch.tensor([self._tokenizer(text, add_special_tokens=False)["input_ids"]], dtype=torch.int64)
        total, count = 0.0, 0
        with torch.no_grad():
            for start in range(0, ids.shape[1] - 1, self._longest):
                piece = ids[:, start : start + self._longest]
                if piece.shape[1] < 2:
                    continue
                logits = self._model(piece).logits[0, :-1].double()
                total -= float(logits.log_softmax(-1).gather(-1, piece[0, 1:, None]).sum())
                count += piece.shape[1] - 1
        return total, count

    def figures(self, texts: Iterable[str]) -> dict[str, float]:
        """Return `judge_perplexity`, per token of the judge, and `judge_bits_per_char` of the first texts together."""
        total, count, characters = 0.0, 0, 0
        for text in list(texts)[:READ]:
            nats, tokens = self.nats(text)
            total, count, characters = total + nats, count + tokens, characters + len(text)
        if not count:
            return {"judge_perplexity": float("nan"), "judge_bits_per_char": float("nan")}
        mean = total / count
        return {
            "judge_perplexity": exp(mean) if mean < 700 else float("inf"),
            "judge_bits_per_char": total / log(2) / characters,
        }
