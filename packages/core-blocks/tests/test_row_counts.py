"""Numbers of rows are rounded where kernels are compiled for each."""

import torch

from dither.core_blocks.blocks import _rows
from dither.core_blocks.row_counts import rounded_up


def test_rows_are_added_in_half_precision_only():
    counts = range(10_000)
    assert [rounded_up(count) for count in counts] == list(counts)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = [rounded_up(count) for count in counts]
    assert rounded[:17] == list(range(17))
    assert all(
        count <= more < max(1.125 * count, count + 1)
        for count, more in zip(counts, rounded, strict=True)
    )
    # Eight values from each power of two to the next
    assert len({more for more in rounded if 512 <= more < 1024}) == 8


def test_a_compiled_block_serves_many_counts():
    """Reading bits of the count would compile it for each."""
    compiled = []

    def record(graph, inputs):
        compiled.append(graph)
        return graph

    @torch.compile(backend=record)
    def chosen(x, requested):
        rows = _rows(requested)
        return x.index_select(0, rows)

    x = torch.arange(200.0)
    with torch.autocast("cpu", torch.bfloat16):
        for count in range(20, 200, 10):
            requested = torch.arange(200)[None] < count
            assert torch.equal(chosen(x, requested)[:count], x[:count])
    assert len(compiled) < 8
