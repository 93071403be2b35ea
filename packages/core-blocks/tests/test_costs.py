"""What a model says it takes, against what it takes: weights on the meta device, and what autograd keeps."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dither.core_blocks.block_specs import AdaLNZero
from dither.core_blocks.specs import DenoiserModel, PreNorm
from dither.registry import FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.flow.records import Context, State

TEXT = TokenSpace((Field("text", 12, 7),))
PLANS = TokenSpace((Field("nodes", 4, 5, 3, 4), Field("edges", 6, 3)))
REGIONS = FeatureSpace(5, 3)
AFFINE = st.sampled_from([True, False, "scale"])
POSITIONS = st.sampled_from(["none", "sinusoid", "learned"])

blocks = st.fixed_dictionaries(
    {"use": st.sampled_from(["adaln-zero", "pre-norm"]), "heads": st.sampled_from([1, 2, 4])},
    optional={
        "ratio": st.floats(0.2, 5),
        "norm": st.sampled_from(["layer", "rms"]),
        "affine": AFFINE,
        "mlp": st.sampled_from(["gelu", "gelu-tanh", "swiglu"]),
        "bias": st.booleans(),
        "qkv_bias": st.sampled_from([True, False, "qv"]),
        "out_bias": st.booleans(),
        "mlp_bias": st.booleans(),
        "rope": st.booleans(),
    },
)
ends = {
    TEXT: (st.fixed_dictionaries({"use": st.just("tokens"), "position": POSITIONS}), "tokens"),
    PLANS: (
        st.one_of(
            st.fixed_dictionaries({"use": st.just("tokens"), "position": POSITIONS}),
            st.fixed_dictionaries(
                {"use": st.just("graph"), "endpoint": st.sampled_from(["shared", "directed", "tied"])}
            ),
        ),
        "tokens",
    ),
    REGIONS: (
        st.fixed_dictionaries(
            {"use": st.just("regions"), "cls": st.booleans(), "elements": st.booleans(), "position": POSITIONS}
        ),
        "features",
    ),
}


@st.composite
def systems(draw):
    space = draw(st.sampled_from(list(ends)))
    embedding, head = ends[space]
    options = {
        "width": 8 * draw(st.integers(1, 4)),
        "depth": draw(st.integers(1, 3)),
        "cond": draw(st.none() | st.integers(1, 20)),
        "final": draw(st.sampled_from(["adaln", "norm"])),
        "norm": draw(st.sampled_from(["layer", "rms"])),
        "affine": draw(AFFINE),
        "block": draw(blocks),
        "embedding": draw(embedding),
        "condition": draw(st.sampled_from([{"use": "level", "frequencies": 4 + draw(st.integers(0, 16))}, "none"])),
        "head": {"use": head, "bias": draw(st.booleans())},
    }
    return space, {key: value for key, value in options.items() if value is not None}


@settings(max_examples=60)
@given(systems())
def test_weights_are_exact_part_by_part(system):
    space, options = system
    spec = default_catalog().parse("model", {"use": "denoiser", **options})
    with torch.device("meta"):
        model = spec.build(space)
    said = {stage.name: stage.parameters for stage in spec.stages(space)}
    said["blocks"] = said.get("blocks", 0) + said.pop("last block", 0)
    assert said == {name: sum(p.numel() for p in child.parameters()) for name, child in model.named_children()}


@settings(max_examples=20)
@given(systems())
def test_matrices_of_blocks_are_named_as_the_model_names_them(system):
    space, options = system
    spec = default_catalog().parse("model", {"use": "denoiser", **options})
    with torch.device("meta"):
        model = spec.build(space)
    there = {name: module.weight.shape for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    named = {matrix.name: (matrix.rows, matrix.columns) for matrix in spec.matrices(space)}
    assert named == {name: tuple(shape) for name, shape in there.items() if name.startswith("blocks.")}
    assert {matrix.times for matrix in spec.matrices(space)} == {1}


def test_one_layer_stands_for_many():
    found = list(DenoiserModel(depth=10**9).matrices(TEXT))
    assert len(found) == 64 * 5
    assert sum(matrix.times for matrix in found) == pytest.approx(5e9)


def saved(module, *inputs, **options):
    """Numbers of 4 bytes that autograd keeps for a way back, weights apart, each storage once."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        module(*inputs, **options)
    return sum(storage.nbytes() for storage in kept.values()) / 4


BLOCKS = [
    {},
    {"attention": "math"},
    {"affine": True, "mlp": "swiglu"},
    {"norm": "rms"},
    {"norm": "rms", "affine": True, "mlp": "swiglu", "rope": True},
    {"rope": True, "attention": "math"},
    {"dropout": 0.1},
    {"attention_dropout": 0.1},
    {"dropout": 0.1, "attention_dropout": 0.0},
]


@pytest.mark.parametrize(("length", "width"), [(40, 48), (90, 48), (40, 768), (90, 768)])
@pytest.mark.parametrize("options", BLOCKS, ids=str)
@pytest.mark.parametrize("kind", [AdaLNZero, PreNorm])
def test_a_block_keeps_what_it_says(kind, options, length, width):
    batch = 3
    spec = kind(heads=4, **options)
    block = spec.build(width, 16)
    x, c = torch.randn(batch, length, width, requires_grad=True), torch.randn(batch, 16)
    mask = torch.ones(batch, 1, 1, length, dtype=torch.bool)
    kept = saved(block, x, c, mask=mask) - c.numel() * (kind is AdaLNZero)  # the condition is that of all blocks
    share = 0.01 if width < 768 else 0.02  # the table of angles is one for all samples, and so not counted
    assert spec.cost(width, 16, length).eager().kept == pytest.approx(kept / batch, rel=share)


@pytest.mark.parametrize("kind", [AdaLNZero, PreNorm])
def test_what_is_made_again_is_told_apart_from_what_is_kept(kind):
    """Elsewhere than on a CPU without a compiler, a wide block keeps as much for each number as a narrow one."""
    wide, narrow = (kind(heads=4).cost(width, 16, 40) for width in (768, 384))
    assert wide.kept == pytest.approx(2 * narrow.kept, rel=0.02)
    assert narrow.remade == 0 < wide.remade < wide.kept
    assert wide.eager().kept == wide.kept - wide.remade


@pytest.mark.parametrize(("batch", "tiled"), [(2, True), (2000, False)])
def test_weights_are_kept_in_bfloat16_while_they_are_few(batch, tiled):
    cost = AdaLNZero(heads=4).cost(48, 16, 90)
    assert cost.eager(batch).kept - cost.eager().kept == tiled * 4 * 90 * 90 // 2
    for options in ({"attention": "sdpa"}, {"attention": "math"}, {"dropout": 0.1}):
        assert AdaLNZero(heads=4, **options).cost(48, 16, 90).rounded == 0
    assert AdaLNZero(heads=4).cost(48, 16, 64).rounded == 0


def test_recomputed_blocks_keep_what_enters_and_pass_the_rest():
    plain, again = (
        DenoiserModel(width=16, depth=3, checkpointing=checkpointing).stages(TEXT)[2] for checkpointing in (False, True)
    )
    assert again.cost.kept == 12 * 16
    assert again.cost.passing == plain.cost.passing + plain.cost.kept
    assert again.parameters == plain.parameters


def test_block_causal_attention_keeps_who_sees_whom():
    options = {"use": "denoiser", "head": "features", "embedding": "regions"}
    parse = default_catalog().parse
    plain, causal = (
        parse("model", options | size).stages(REGIONS)[2].cost.kept for size in ({}, {"block_size": 4})
    )  # fmt: skip
    assert causal - plain == 6 * 6


@pytest.mark.parametrize("options", [{}, {"rope": True, "norm": "rms", "mlp": "swiglu"}], ids=str)
@pytest.mark.parametrize("length", [20, 100])
def test_block_diffusion_keeps_two_samples(options, length):
    """What a layer more takes, and all layers, of which the last makes only keys and values of the clean half."""
    space, batch, kept, said = TokenSpace((Field("text", length, 7),)), 3, [], []
    ids, valid = torch.zeros(batch, length, dtype=torch.long), torch.ones(batch, length, dtype=torch.bool)
    for depth in (2, 3):
        spec = DenoiserModel(width=48, depth=depth, block_size=10, block=AdaLNZero(heads=4, **options))
        context = Context(State.of(ids), torch.zeros(batch))
        model = spec.build(space)
        kept.append(saved(model, State.of(ids), torch.rand(batch, length), valid, {}, context=context) / batch)
        said.append(sum(stage.kept for stage in spec.stages(space)))
    assert said[1] - said[0] == pytest.approx(kept[1] - kept[0], rel=0.1)
    assert said[0] == pytest.approx(kept[0], rel=0.1)


def test_a_class_token_is_one_position_more():
    longer, shorter = (
        default_catalog()
        .parse("model", {"use": "denoiser", "head": "features", "embedding": {"use": "regions", "cls": cls}})
        .stages(REGIONS)[2]
        .cost.kept
        for cls in (True, False)
    )
    assert longer == AdaLNZero().cost(128, 128, 6).kept
    assert shorter == AdaLNZero().cost(128, 128, 5).kept


def test_no_size_is_too_large_to_be_estimated():
    spec = DenoiserModel(width=2**40, depth=2**40)
    assert sum(stage.parameters for stage in spec.stages(TEXT)) > 2**120
    assert not list(spec.check(TEXT))
    (misfit,) = AdaLNZero(heads=10**9).check(128, 128)
    assert misfit.message.endswith("heads may be 1, 2, 4, 8, 16, 32, 64, 128")
    (misfit,) = AdaLNZero(heads=10**9 + 7).check(10**9, 128)
    assert "heads may be 1, 2, 4, 5, 8, 10," in misfit.message


def test_a_misfit_of_a_block_names_the_width_too():
    misfits = list(DenoiserModel(width=10, block=AdaLNZero(heads=4)).check(TEXT))
    assert [(misfit.path, misfit.related) for misfit in misfits] == [(("block", "heads"), ("model", "width"))]
