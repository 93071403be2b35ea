"""Labels as conditions, and sums of conditions: rows, what is left out, sizes from the space, messages."""

from typing import ClassVar

import pytest
import torch
from torch import nn

from dither.embeddings.conditions import ConditionSum, LabelEmbedding
from dither.embeddings.specs import Label, Level, Sum
from dither.registry import Condition, FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.kinds import ConditionSpec

torch.set_num_threads(1)

TOLD = (Condition("cell", 3, ("K562", "HepG2", "hESC")), Condition("centre"))
SPACES = [FeatureSpace(4, 2, conditions=TOLD), TokenSpace((Field("a", 4, 2),), TOLD)]
LEVEL = torch.tensor([0.0, 0.3, 0.5, 0.9])


def test_a_label_is_a_row_and_what_is_not_told_is_the_last():
    torch.manual_seed(0)
    labels = LabelEmbedding("cell", 3, 5)
    rows = labels.table.weight
    assert rows.shape == (4, 5)
    told = torch.tensor([2, -1, 0, 1])
    assert torch.equal(labels(LEVEL, {"cell": told}), rows[[2, 3, 0, 1]])
    assert torch.equal(labels(LEVEL, {}), rows[[3, 3, 3, 3]])
    assert torch.equal(labels(LEVEL, {"tissue": told}), rows[[3, 3, 3, 3]]), "another condition"
    each = labels(LEVEL[:, None].expand(4, 6), {"cell": told})
    assert torch.equal(each, rows[[2, 3, 0, 1]][:, None].expand(4, 6, 5))
    with pytest.raises(IndexError):
        labels(LEVEL, {"cell": told + 2})


def test_labels_start_apart():
    """Vectors of 0.02, as DiT has them, are hardly told apart by blocks whose modulation starts at zero."""
    torch.manual_seed(0)
    assert LabelEmbedding("cell", 999, 64).table.weight.std().item() == pytest.approx(1.0, rel=0.02)
    assert LabelEmbedding("cell", 999, 64, std=0.02).table.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert Label().std == 1


def test_a_label_that_is_not_always_told_needs_dropout():
    """Cell types that are held out have none; nothing would train the vector that stands for that."""
    partial = FeatureSpace(4, 2, conditions=(Condition("cell", 2, partial=True), Condition("kind", 2)))
    (misfit,) = Label().over(partial).check(6)
    assert "nothing trains what stands for none" in misfit.message
    assert (misfit.path, misfit.related, misfit.help) == (("of",), ("task",), "dropout = 0.1")
    assert not list(Label(dropout=0.1).over(partial).check(6))
    assert not list(Label(of="kind").over(partial).check(6))
    (misfit,) = Sum(parts=[Level(), Label()]).over(partial).check(6)
    assert misfit.path == ("parts", 1, "of")


def test_labels_are_left_out_at_their_share_and_each_sample_by_itself():
    labels = LabelEmbedding("cell", 3, 5, dropout=0.1)
    told = torch.arange(60_000) % 3
    cond = {"cell": told, "centre": torch.ones(2)}
    torch.manual_seed(0)
    first, second = labels.leave_out(cond)["cell"], labels.leave_out(cond)["cell"]
    torch.manual_seed(0)
    assert torch.equal(labels.leave_out(cond)["cell"], first), "it is drawn from the generator of the step"
    for left in (first, second):
        kept = left >= 0
        assert torch.equal(left[kept], told[kept])
        for label in range(3):  # five standard deviations of a share of 20,000
            assert (~kept)[told == label].float().mean().item() == pytest.approx(0.1, abs=5 * (0.09 / 20_000) ** 0.5)
    both = ((first < 0) & (second < 0)).float().mean().item()
    assert both == pytest.approx(0.01, abs=5 * (0.01 / 60_000) ** 0.5), "drawn anew"
    assert torch.equal(cond["cell"], torch.arange(60_000) % 3)
    assert labels.leave_out(cond)["centre"] is cond["centre"]
    assert LabelEmbedding("cell", 3, 5).leave_out(cond) is cond
    assert labels.leave_out({}) == {}


@pytest.mark.parametrize("space", SPACES, ids=["features", "tokens"])
def test_the_size_comes_from_the_space(space):
    label = Label(dropout=0.1).over(space)
    assert not list(label.check(6))
    built = label.build(6)
    assert (built.of, built.size, built.dropout) == ("cell", 3, 0.1)
    assert label.cost(6).parameters == sum(p.numel() for p in built.parameters()) == 4 * 6
    assert label.left_out() == ("cell",)
    assert Label().left_out() == ()
    assert not Label().told, "the options as they were read stay as they are"


@pytest.mark.parametrize(
    ("of", "words", "hint"),
    [
        ("cel", 'the task tells no "cel" beside a sample; it tells "cell", "centre"', 'did you mean "cell"?'),
        ("zebra", 'the task tells no "zebra"', None),
        ("centre", 'the task tells "centre" as one number per position, and one label per sample is needed', None),
    ],
)
def test_what_the_task_does_not_tell_is_refused(of, words, hint):
    (misfit,) = Label(of=of).over(SPACES[0]).check(6)
    assert words in misfit.message
    assert (misfit.path, misfit.related, misfit.help) == (("of",), ("task",), hint)
    (misfit,) = Label(of=of).over(FeatureSpace(4, 2)).check(6)
    assert "it tells nothing" in misfit.message
    with pytest.raises(ValueError, match="of: the task tells"):
        Label(of=of).over(SPACES[0]).build(6)


def test_a_sum_is_the_sum_of_its_parts():
    torch.manual_seed(0)
    level, label = Level(frequencies=8).build(6), LabelEmbedding("cell", 3, 6, dropout=0.5)
    cond = {"cell": torch.tensor([0, 1, 2, -1])}
    for parts in ([level, label], [label, level]):
        both = ConditionSum(parts)
        torch.testing.assert_close(both(LEVEL, cond), level(LEVEL, {}) + label(LEVEL, cond))
        each = LEVEL[:, None].expand(4, 3)
        torch.testing.assert_close(both(each, cond), both(LEVEL, cond)[:, None].expand(4, 3, 6))
    assert (both.leave_out({"cell": torch.ones(99, dtype=torch.int64)})["cell"] < 0).any()


class PerSample(ConditionSpec):
    """A stranger's part that says one vector per sample, whatever the level is like, and never heard of spaces."""

    name: ClassVar[str] = "per-sample"

    def build(self, width):
        return Constant(width)


class Constant(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.vector = nn.Parameter(torch.arange(width) * 1.0)

    def forward(self, level, cond):
        return self.vector.expand(len(level), -1)


@pytest.mark.parametrize("front", [True, False])
def test_parts_of_strangers_take_part_as_they_are(front):
    parts = [PerSample(), Level(frequencies=4), Label(dropout=0.2)]
    spec = Sum(parts=parts if front else parts[::-1]).over(SPACES[0])
    assert not list(spec.check(4))
    assert spec.left_out() == ("cell",)
    assert spec.cost(4).silent == ('condition "per-sample"',)
    built = spec.build(4)
    each = LEVEL[:, None].expand(4, 5)
    want = sum(part(LEVEL, {}) for part in built.parts)
    torch.testing.assert_close(built(each, {}), want[:, None].expand(4, 5, 4))
    said = PerSample().over(SPACES[0])
    assert said == PerSample().over(SPACES[1])
    assert said.told == TOLD


def test_options_of_a_sum_from_tables_and_what_does_not_fit():
    catalog = default_catalog()
    table = {
        "use": "sum",
        "parts": [{"use": "level", "frequencies": 3, "freq_shift": 1}, {"use": "label", "of": "tissue"}],
    }
    spec = catalog.parse("condition", table).over(SPACES[0])
    assert [misfit.path for misfit in spec.check(6)] == [("parts", 0, "frequencies"), ("parts", 1, "of")]
    plain = catalog.parse("condition", {"use": "sum"})
    assert [part.name for part in plain.parts] == ["level"]


def test_a_sum_of_sums_counts_its_weights():
    inner = Sum(parts=[Label(dropout=0.3), Level(frequencies=5)])
    spec = Sum(parts=[inner, Level(frequencies=6)]).over(SPACES[0])
    built = spec.build(7)
    assert spec.cost(7).parameters == sum(p.numel() for p in built.parameters())
    assert spec.left_out() == ("cell",)
    cond = {"cell": torch.zeros(500, dtype=torch.int64)}
    share = (built.leave_out(cond)["cell"] < 0).float().mean().item()
    assert share == pytest.approx(0.3, abs=0.11)
