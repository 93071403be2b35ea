import torch

from dither.engine.training.batches import SampleOrder
from dither.engine.training.randomness import Stream, mix_seed, seed_generators

CPU = torch.device("cpu")


def test_every_epoch_is_another_permutation():
    order = SampleOrder(7, seed=1)
    epochs = [order.rows(7 * epoch, 7) for epoch in range(5)]
    assert all(sorted(rows) == list(range(7)) for rows in epochs)
    assert len({tuple(rows) for rows in epochs}) == 5


def test_rows_are_a_function_of_the_start():
    order = SampleOrder(7, seed=1)
    stream = order.rows(0, 50)
    for size in (1, 3, 10):
        batches = [order.rows(start, size) for start in range(0, 50, size)]
        assert [row for rows in batches for row in rows][:50] == stream
    assert SampleOrder(7, seed=1).rows(23, 9) == stream[23:32]
    assert SampleOrder(7, seed=2).rows(0, 50) != stream


def test_seeds_differ_in_the_low_32_bits():
    """torch's CPU generator uses only these."""
    low = {mix_seed(Stream.STEP, seed, step, 0) & 0xFFFFFFFF for seed in range(20) for step in range(2000)}
    assert len(low) > 40_000 - 5
    assert mix_seed(1, 2) != mix_seed(2, 1) != mix_seed(2, 1, 0)


def test_seeding_is_independent_of_earlier_draws():
    seed_generators(CPU, Stream.STEP, 5, 1, 0)
    torch.randn(3)  # the generator caches half a pair of normals
    first = []
    for _ in range(2):
        seed_generators(CPU, Stream.STEP, 5, 2, 0)
        first.append((torch.randn(5), torch.rand(5), torch.randperm(5)))
        torch.randn(3)
    assert all(torch.equal(a, b) for a, b in zip(*first, strict=True))
    seed_generators(CPU, Stream.STEP, 5, 3, 0)
    assert not torch.equal(torch.randn(5), first[0][0])
    seed_generators(CPU, Stream.DRAWING, 5, 2, 0)
    assert not torch.equal(torch.randn(5), first[0][0])
