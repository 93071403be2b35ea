"""A data source: sentences of a small grammar, for the task language-model."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds import DataSpec

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split
    from dither.tasks.language_model.data.corpus import Corpus

GRAMMAR = {
    "S": ["the N V the N", "the N V", "the A N V the N", "a N V the A N"],
    "N": ["cat", "dog", "bird", "gardener", "child"],
    "V": ["sees", "likes", "follows", "paints", "hears"],
    "A": ["old", "small", "quiet", "red"],
}


class ExampleData(DataSpec):
    """Random sentences of a small grammar. Nothing to download."""

    name = "example-data"
    # The task says which value it requires.
    gives: ClassVar[str] = "text"
    sentences: int = Field(2000, ge=20, le=1_000_000)
    """Number of sentences; a tenth each for validation and testing."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of the random sentences."""

    def build(self) -> Corpus:
        """Generate the sentences."""
        from dither.tasks.language_model.data.corpus import Corpus, Document

        random = Random(self.seed)
        held_out = max(self.sentences // 10, 1)
        # Held-out sentences first, so that they do not depend on the size of the training split.
        counts: dict[Split, int] = {
            "valid": held_out,
            "test": held_out,
            "train": self.sentences - 2 * held_out,
        }
        splits: dict[Split, list[Document]] = {}
        for split, count in counts.items():
            sentences = [f"{expand('S', random)}.\n" for _ in range(count)]
            splits[split] = [Document.of(f"{self.name}/{split}", "".join(sentences))]
        return Corpus(self.name, splits)


def expand(symbol: str, random: Random) -> str:
    """Expand a symbol of the grammar; other words stay as they are."""
    words = random.choice(GRAMMAR[symbol]).split()
    return " ".join(expand(word, random) if word in GRAMMAR else word for word in words)


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleData]
