"""Labels, sums of conditions and no condition."""

import pytest
import torch

from dither.embeddings.conditions import ConditionSum
from dither.embeddings.specs import Label, Level, Number, Outline, Sum
from dither.registry import Condition, FeatureSpace, NumberRange

LEVEL = torch.tensor([0.0, 0.3, 0.5, 0.9])


def labels_of(space, width, **options):
    return Label(**options).with_space(space).build(width)


def test_a_missing_label_is_the_last_row(cells):
    torch.manual_seed(0)
    labels = labels_of(cells, 5)
    rows = labels.table.weight
    assert rows.shape == (4, 5)
    labels_given = torch.tensor([2, -1, 0, 1])
    assert torch.equal(labels(LEVEL, {"cell": labels_given}), rows[[2, 3, 0, 1]])
    assert torch.equal(labels(LEVEL, {}), rows[[3, 3, 3, 3]])
    assert torch.equal(labels(LEVEL, {"tissue": labels_given}), rows[[3, 3, 3, 3]]), (
        "another condition is ignored"
    )
    each = labels(LEVEL[:, None].expand(4, 6), {"cell": labels_given})
    assert torch.equal(each, rows[[2, 3, 0, 1]][:, None].expand(4, 6, 5))
    with pytest.raises(IndexError):
        labels(LEVEL, {"cell": labels_given + 2})


def test_partial_labels_require_dropout():
    partial = FeatureSpace(
        4, 2, conditions=(Condition("cell", 2, partial=True), Condition("kind", 2))
    )
    (misfit,) = Label().with_space(partial).check(6)
    assert (misfit.path, misfit.related, misfit.help) == (
        ("of",),
        ("task",),
        "dropout = 0.1",
    )
    assert not list(Label(dropout=0.1).with_space(partial).check(6))
    assert not list(Label(of="kind").with_space(partial).check(6))
    (misfit,) = Sum(parts=[Level(), Label()]).with_space(partial).check(6)
    assert misfit.path == ("parts", 1, "of")


def test_labels_are_dropped_independently(cells):
    labels = labels_of(cells, 5, dropout=0.1)
    labels_given = torch.arange(60_000) % 3
    cond = {"cell": labels_given, "centre": torch.ones(2)}
    torch.manual_seed(0)
    first, second = (
        labels.drop_conditions(cond)["cell"],
        labels.drop_conditions(cond)["cell"],
    )
    torch.manual_seed(0)
    assert torch.equal(labels.drop_conditions(cond)["cell"], first), (
        "not drawn from torch's generator"
    )
    for left in (first, second):
        kept = left >= 0
        assert torch.equal(left[kept], labels_given[kept])
        for label in range(3):  # five standard deviations
            assert (~kept)[
                labels_given == label
            ].float().mean().item() == pytest.approx(
                0.1, abs=5 * (0.09 / 20_000) ** 0.5
            )
    both = ((first < 0) & (second < 0)).float().mean().item()
    assert both == pytest.approx(0.01, abs=5 * (0.01 / 60_000) ** 0.5), (
        "draws are not independent"
    )
    assert torch.equal(cond["cell"], torch.arange(60_000) % 3)
    assert labels.drop_conditions(cond)["centre"] is cond["centre"]
    assert labels_of(cells, 5).drop_conditions(cond) is cond
    assert labels.drop_conditions({}) == {}


def test_number_of_labels_comes_from_the_space(cells):
    label = Label(dropout=0.1).with_space(cells)
    built = label.build(6)
    assert (built.condition, built.size, built.dropout) == ("cell", 3, 0.1)
    assert sum(p.numel() for p in built.parameters()) == 4 * 6
    assert label.dropped() == ("cell",)
    assert Label().dropped() == ()
    assert not Label().conditions, "binding a space returns a copy"


@pytest.mark.parametrize(
    ("of", "help"), [("cel", 'did you mean "cell"?'), ("zebra", None), ("centre", None)]
)
def test_missing_labels(cells, of, help):
    (misfit,) = Label(of=of).with_space(cells).check(6)
    assert (misfit.path, misfit.related, misfit.help) == (("of",), ("task",), help)
    (misfit,) = Label(of=of).with_space(FeatureSpace(4, 2)).check(6)
    assert misfit.path == ("of",)
    with pytest.raises(ValueError, match="^of:"):
        Label(of=of).with_space(cells).build(6)


def test_a_sum_adds_its_conditions(cells):
    torch.manual_seed(0)
    level, label = Level(frequencies=8).build(6), labels_of(cells, 6, dropout=0.5)
    cond = {"cell": torch.tensor([0, 1, 2, -1])}
    for parts in ([level, label], [label, level]):
        both = ConditionSum(parts)
        torch.testing.assert_close(
            both(LEVEL, cond), level(LEVEL, {}) + label(LEVEL, cond)
        )
        each = LEVEL[:, None].expand(4, 3)
        torch.testing.assert_close(
            both(each, cond), both(LEVEL, cond)[:, None].expand(4, 3, 6)
        )
    assert (
        both.drop_conditions({"cell": torch.ones(99, dtype=torch.int64)})["cell"] < 0
    ).any()


def numbers_of(scale=1.0, shift=0.0, **options):
    known = NumberRange(shift + scale * 3, scale * 2, shift - scale, shift + scale * 9)
    space = FeatureSpace(5, 2, conditions=(Condition("activity", number=known),))
    torch.manual_seed(0)
    return Number(**options).with_space(space).build(4).double()


def test_a_number_does_not_depend_on_its_unit():
    values = torch.tensor([-1.0, 3.0, 4.5, 9.0], dtype=torch.float64)
    c = numbers_of()(LEVEL, {"activity": values})
    other = numbers_of(scale=8.0, shift=-64.0)
    torch.testing.assert_close(other(LEVEL, {"activity": 8 * values - 64}), c)
    # The statistics are saved with the weights.
    weights = other.state_dict()
    assert (weights["mean"].item(), weights["std"].item()) == (-40, 16)
    # The mean is embedded as 0.
    zero = numbers_of().mlp(torch.zeros(1, 1, dtype=torch.float64))[0]
    torch.testing.assert_close(c[1], zero)


def test_a_missing_number_is_a_vector_of_its_own():
    number = numbers_of(dropout=0.5)
    torch.nn.init.normal_(number.missing)
    nan = float("nan")
    values = torch.tensor([nan, 3.0, nan, 9.0], dtype=torch.float64)
    c = number(LEVEL, {"activity": values})
    assert torch.equal(c[[0, 2]], number(LEVEL, {})[[0, 2]])
    assert torch.equal(c[0], number.missing)
    c.sum().backward()
    assert all(p.grad.isfinite().all() for p in number.parameters())
    each = number(LEVEL[:, None].expand(4, 6), {"activity": values})
    assert torch.equal(each, c[:, None].expand(4, 6, 4))

    many = {"activity": torch.full((20_000,), 2.0)}
    dropped = number.drop_conditions(many)["activity"].isnan()
    # Five standard deviations
    share = dropped.double().mean().item()
    assert share == pytest.approx(0.5, abs=5 * 0.5 / 20_000**0.5)
    assert numbers_of().drop_conditions(many) is many


def test_bfloat16_does_not_round_statistics():
    number = numbers_of(scale=0.1, shift=100.0)
    values = {"activity": torch.tensor([99.9, 100.3, 100.5, 100.9])}
    c = number(LEVEL, values)
    cast = number.bfloat16()(LEVEL, values)
    # A few roundings to 8 bits
    torch.testing.assert_close(cast.double(), c, atol=0.02, rtol=0)


def test_bfloat16_keeps_translations_of_an_outline():
    space = FeatureSpace(5, 2, conditions=(Condition("boundary", length=10),))
    torch.manual_seed(0)
    outline = Outline().with_space(space).build(4).bfloat16()
    points = torch.tensor([[10, 0, 16, 0, 0, 0, 91, 0, 45, 72]])
    moved = points + 160
    vectors = [outline(LEVEL[:1], {"boundary": given}) for given in (points, moved)]
    assert torch.equal(*vectors)


def test_a_number_requires_a_number_of_the_task(cells):
    for of in ("cell", "centre", "activity"):
        (misfit,) = Number(of=of).with_space(cells).check(6)
        assert misfit.path == ("of",)
    numbered = FeatureSpace(
        5, 2, conditions=(Condition("x", number=NumberRange(0, 1, -1, 1)),)
    )
    (misfit,) = Label(of="x").with_space(numbered).check(6)
    assert misfit.path == ("of",)
    assert not list(Number(of="x").with_space(numbered).check(6))
