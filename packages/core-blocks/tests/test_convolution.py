"""The convolutional block: torch's Conv1d as oracle, masks of documents and padding, hybrid stacks."""

import pytest
import torch
from torch import nn

from dither.core_blocks.convolution import DepthwiseConvolution
from dither.core_blocks.specs import AdaLNZero, Conv, DenoiserModel
from dither.registry.contracts.records import State


@pytest.mark.parametrize("dilation", [1, 2, 5])
@pytest.mark.parametrize("kernel", [1, 3, 9])
def test_equals_conv1d(kernel, dilation):
    ours = DepthwiseConvolution(6, kernel, dilation).double()
    reach = kernel // 2 * dilation
    theirs = nn.Conv1d(
        6, 6, kernel, padding=reach, dilation=dilation, groups=6, dtype=torch.float64
    )
    nn.init.normal_(ours.bias)
    theirs.weight.data = ours.weight.data.T[:, None].contiguous()
    theirs.bias.data = ours.bias.data.clone()
    x = torch.randn(2, 7, 6, dtype=torch.float64)
    expected = theirs(x.mT).mT
    torch.testing.assert_close(ours(x, None), expected)


def test_documents_are_convolved_apart():
    conv = DepthwiseConvolution(4, 5, 1).double()
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    document = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1]])
    mask = document[:, None, :, None] == document[:, None, None, :]
    whole = conv(x, mask)
    apart = torch.cat([conv(x[:, :4], None), conv(x[:, 4:], None)], 1)
    torch.testing.assert_close(whole, apart)


def test_padding_equals_the_end_of_the_sequence():
    conv = DepthwiseConvolution(4, 5, 2).double()
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    valid = torch.arange(9) < 6
    padded = conv(x, valid[None, None, None])
    torch.testing.assert_close(padded[:, :6], conv(x[:, :6], None))


def test_layers_take_dilations_and_blocks_in_turn(text):
    spec = DenoiserModel(
        width=8, depth=5, blocks=[Conv(dilation=[1, 4]), Conv(), AdaLNZero(heads=2)]
    )
    assert not list(spec.check(text))
    model = spec.build(text)
    kinds = [type(block).__name__ for block in model.blocks]
    assert kinds == [
        "ConvBlock",
        "ConvBlock",
        "AdaLNZeroBlock",
        "ConvBlock",
        "ConvBlock",
    ]
    dilations = [
        block.depthwise.dilation
        for block in model.blocks
        if hasattr(block, "depthwise")
    ]
    assert dilations == [1, 1, 4, 1]
    state = State.of(torch.zeros(2, text.length, dtype=torch.long))
    out = model(state, torch.rand(2), torch.ones(2, text.length, dtype=torch.bool), {})
    assert out.shape[:2] == (2, text.length)


def test_dilations_count_the_layers_of_their_block(text):
    blocks = [Conv(dilation=[1, 4]), AdaLNZero(heads=2)]
    model = DenoiserModel(width=8, depth=6, blocks=blocks).build(text)
    dilations = [block.depthwise.dilation for block in list(model.blocks)[::2]]
    assert dilations == [1, 4, 1]


def test_problems_of_a_stack_have_a_place(text):
    spec = DenoiserModel(
        width=8,
        block_size=2,
        block=AdaLNZero(heads=2),
        blocks=[AdaLNZero(heads=3), Conv(kernel=4)],
    )
    paths = {misfit.path for misfit in spec.check(text)}
    assert paths == {
        ("block",), ("blocks",), ("blocks", 0, "heads"), ("blocks", 1, "kernel"),
    }  # fmt: skip
    messages = "".join(misfit.message for misfit in spec.check(text))
    assert 'block "adaln-zero" has no effect next to blocks' in messages
    assert 'block "conv" does not support a key-value cache' in messages
