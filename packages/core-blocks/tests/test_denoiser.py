"""The denoiser: initial output, dependencies between positions, gradients, options, tied embeddings."""

import copy
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model
from torch import nn

from dither.core_blocks import blocks, denoiser, merge_identical
from dither.registry import default_catalog
from dither.registry.contracts.records import Context, State


def everywhere(state):
    return torch.ones(state.x.shape[:2], dtype=torch.bool)


LEVEL = torch.tensor([0.2, 0.9])


def finite(out):
    return out.masked_fill(out == -torch.inf, 0.0)


def test_initial_logits_are_zero(model_of, graph, state_of):
    state = state_of(graph)
    out = model_of(graph, embedding="graph")(state, LEVEL, everywhere(state), {})
    assert torch.equal(out == 0, graph.usable().expand(2, -1, -1))
    assert torch.equal(out == -torch.inf, ~graph.usable().expand(2, -1, -1))


@pytest.mark.parametrize("block", [{}, {"rope": True}, {"attention": "sdpa"}], ids=str)
@pytest.mark.parametrize("block_size", [None, 3])
def test_padding_never_influences_valid_positions(
    model_of, graph, opened, block, block_size, state_of
):
    model = opened(
        model_of(graph, embedding="graph", block=block, block_size=block_size)
    )
    state, valid = state_of(graph), everywhere(state_of(graph))
    valid[0, 2:4] = valid[0, 6:] = False
    valid[1] = False
    other = State.of(torch.where(valid, state.x, state_of(graph, seed=1).x))
    a, b = model(state, LEVEL, valid, {}), model(other, LEVEL, valid, {})
    assert not torch.equal(a, b)
    assert torch.equal(a[valid], b[valid])
    assert finite(a).isfinite().all(), "a sample of padding only"
    assert not torch.allclose(
        finite(model(state, LEVEL, everywhere(state), {}))[0, 0], finite(a)[0, 0]
    )


def test_order_in_which_weights_get_gradients(model_of, graph, state_of):
    """Erratum E5 of seed 001: first the heads, then their inputs and the gates, then everything else."""
    model = model_of(graph, embedding="graph", affine=True, block={"affine": True})
    state = state_of(graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learning = []
    for _ in range(3):
        optimizer.zero_grad()
        out = model(state, LEVEL, everywhere(state), {})
        torch.nn.functional.cross_entropy(
            out.flatten(0, 1), state_of(graph, seed=1).x.flatten()
        ).backward()
        learning.append(
            {
                name
                for name, weight in model.named_parameters()
                if weight.grad.abs().max() > 0
            }
        )
        optimizer.step()
    heads = {name for name, _ in model.named_parameters() if name.startswith("head.")}
    assert learning[0] == heads
    second = learning[1] - learning[0]
    assert {name.split(".")[0] for name in second} == {"embedding", "blocks", "final"}
    assert all("modulation" in name for name in second if name.startswith("blocks."))
    third = learning[2] - learning[1]
    for part in (
        "condition.enter",
        "condition.leave",
        "attention.qkv",
        "attention.out",
        "mlp.up",
        "mlp.down",
        "norm1",
    ):
        assert any(part in name for name in third), part
    assert learning[2] == {name for name, _ in model.named_parameters()}


def test_checkpointing_changes_no_gradient(model_of, text, opened, state_of):
    gradients = []
    for checkpointing in (False, True):
        model = opened(
            model_of(text, checkpointing=checkpointing, block={"dropout": 0.3})
        ).train()
        state = state_of(text)
        torch.manual_seed(3)
        model(state, LEVEL, everywhere(state), {}).square().sum().backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_bfloat16_autocast_comes_close(model_of, graph, opened, state_of):
    model = opened(
        model_of(
            graph,
            embedding="graph",
            norm="rms",
            block={"norm": "rms", "affine": True, "rope": True},
        ),
        0.1,
    )
    state = state_of(graph)
    args = (state, LEVEL, everywhere(state), {})
    with torch.autocast("cpu", torch.bfloat16):
        out = model(*args)
    torch.testing.assert_close(
        finite(out).float(), finite(model(*args)), atol=0.05, rtol=0.05
    )


def test_check_reports_every_component(regions):
    table = {
        "width": 10,
        "cond": 8,
        "embedding": {"use": "tokens", "position": "learned"},
        "condition": {"use": "level", "frequencies": 2, "freq_shift": 1},
        "block": {"use": "adaln-zero", "heads": 4},
        "head": "features",
    }
    spec = default_catalog().parse("model", {"use": "denoiser", **table})
    paths = [misfit.path for misfit in spec.check(regions)]
    assert paths == [("embedding",), ("condition", "frequencies"), ("block", "heads")]
    assert spec.facts().block_size is None
    assert (
        default_catalog()
        .parse("model", {"use": "denoiser", "block_size": 4})
        .facts()
        .block_size
        == 4
    )


def test_common_padding_is_dropped_exactly(model_of, graph, state_of, opened):
    """As in a batch of one bucket: the same padding in every sample; and with more of it in one."""
    model = opened(model_of(graph, embedding="graph"))
    state = state_of(graph, 3)
    valid = torch.ones(state.x.shape, dtype=torch.bool)
    valid[:, -2:], valid[:, 1] = False, False
    level, lengths = torch.rand(3), []
    model.blocks[0].register_forward_pre_hook(
        lambda module, given: lengths.append(given[0].shape[1])
    )
    for one_more in (False, True):
        valid[0, 0] = valid[0, 0] & ~torch.tensor(one_more)
        results = []
        for drop in (True, False):
            model.drop_padding = drop
            model.zero_grad()
            out = model(state, level, valid, {})
            out[valid].clamp_min(-50).square().sum().backward()
            results.append(
                (
                    out[valid],
                    [p.grad.clone() for p in model.parameters() if p.grad is not None],
                )
            )
        torch.testing.assert_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-4)
    length = state.x.shape[1]
    assert lengths == [length - 3, length] * 2


def outputs_and_gradients(model, state, requested, given, **options):
    """Outputs at requested positions, and gradients of a loss over these."""
    model.zero_grad()
    out = finite(model(state, *given, **options))
    assert out.isfinite().all()
    out[requested].square().sum().backward()
    return [
        out[requested].detach(),
        *(p.grad.clone() for p in model.parameters() if p.grad is not None),
    ]


@pytest.mark.parametrize(("checkpointing", "unit"), [(False, 1), (True, 1), (False, 8)])
@pytest.mark.parametrize("drop_padding", [False, True])
@pytest.mark.parametrize(
    ("space", "options"),
    [
        ("graph", {"embedding": "graph"}),
        ("regions", {}),
        ("regions", {"embedding": {"use": "regions", "cls": True, "elements": True}}),
        ("text", {"block": {"rope": True, "kv_heads": 1}}),
        ("text", {"block": {"use": "pre-norm"}}),
        ("text", {"block_size": 3}),
    ],
    ids=str,
)
def test_last_block_computes_requested_positions_only(
    request,
    monkeypatch,
    model_of,
    state_of,
    opened,
    space,
    options,
    drop_padding,
    checkpointing,
    unit,
):
    """The same values and gradients, with padding, merged positions and rounded numbers of rows."""

    def rounded(count):
        return -(-count // unit) * unit

    for module in (blocks, merge_identical):
        monkeypatch.setattr(module, "rounded_up", rounded)
    sort = request.getfixturevalue(space)
    model = opened(model_of(sort, checkpointing=checkpointing, **options)).double()
    model.train().drop_padding &= drop_padding
    state = state_of(sort, 4, dtype=torch.float64)
    valid = everywhere(state)
    valid[:, -1] = False
    valid[2, 2:] = False
    generator = torch.Generator().manual_seed(3)
    requested = (torch.rand(valid.shape, generator=generator) < 0.4) & valid
    requested[1] = False
    sizes = []
    model.blocks[-1].mlp.register_forward_pre_hook(
        lambda _, args: sizes.append(args[0].shape[:-1].numel())
    )

    for level in (torch.rand(4).double(), torch.rand(valid.shape).double()):
        sizes.clear()
        given = (level, valid, {})
        part = replace(state, requested=requested)
        few = outputs_and_gradients(model, part, requested, given)
        assert max(sizes) <= rounded(int(requested.sum()))
        everything = outputs_and_gradients(model, state, requested, given)
        for a, b in zip(few, everything, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)


def test_requested_positions_of_packed_documents(model_of, state_of, opened, text):
    model = opened(model_of(text))
    state = state_of(text)
    documents = torch.arange(12).div(5, rounding_mode="floor").expand(2, -1)
    requested = everywhere(state)
    requested[:, 2:9] = False
    given = (LEVEL, everywhere(state), {"document": documents})
    part = model(replace(state, requested=requested), *given)
    torch.testing.assert_close(part[requested], model(state, *given)[requested])


def test_requested_positions_with_a_cache_and_a_context(
    model_of, state_of, opened, text
):
    """All keys reach the cache; with a context, clean positions are read at requested ones."""
    model = opened(model_of(text, block_size=4))
    state = state_of(text)
    requested = torch.zeros(2, 4, dtype=torch.bool)
    requested[0, 1] = True
    valid = torch.ones_like(requested)
    outputs = []
    for mask in (None, requested):
        cache = model.new_cache()
        for start in (0, 4):
            part = replace(State.of(state.x[:, start : start + 4]), requested=mask)
            out = model(part, LEVEL, valid, {}, cache=cache, keep=True)
        outputs.append(out)
    torch.testing.assert_close(outputs[1][requested], outputs[0][requested])

    context = Context(State.of(state_of(text, seed=1).x), torch.zeros(2))
    given = (LEVEL, everywhere(state), {})
    requested = everywhere(state) & (state.x % 2 == 0)
    part = model(replace(state, requested=requested), *given, context=context)
    whole = model(state, *given, context=context)
    torch.testing.assert_close(part[requested], whole[requested])


def test_a_block_without_the_trait_computes_every_position(
    model_of, state_of, opened, text
):
    model = opened(model_of(text))
    assert model.skip_unrequested
    model.skip_unrequested = False
    state = state_of(text)
    part = replace(state, requested=torch.zeros_like(everywhere(state)))
    given = (LEVEL, everywhere(state), {})
    assert torch.equal(model(part, *given), model(state, *given))


KAIMING = {"use": "tokens", "init": "kaiming"}


def spec_of(**options):
    table = {
        "width": 16,
        "depth": 1,
        "block": {"use": "adaln-zero", "heads": 2},
    } | options
    return default_catalog().parse("model", {"use": "core-blocks/denoiser", **table})


def tied(model_of, space, **options):
    return model_of(space, embedding=KAIMING, tie_embeddings=True, **options)


def run(model, space, rows=3):
    torch.manual_seed(0)
    x = torch.stack([torch.arange(space.length) * 7 + row for row in range(rows)])
    sizes = space.table(lambda field: torch.tensor(field.size))
    state = State.of(x % sizes)
    return model(
        state, torch.linspace(0.1, 0.9, rows), torch.ones(x.shape, dtype=torch.bool), {}
    )


def test_tied_weights_start_as_the_embedding(model_of, text):
    free, model = model_of(text, embedding=KAIMING), tied(model_of, text)
    (table,) = model.embedding.tables
    torch.testing.assert_close(table.weight, free.embedding.tables[0].weight)
    h = torch.randn(2, 12, 16)
    torch.testing.assert_close(model.head(h), h @ table.weight.T)
    for name, weight in free.named_parameters():
        if not name.startswith("head"):
            torch.testing.assert_close(model.get_parameter(name), weight)


@pytest.mark.parametrize("which", ["text", "graph"])
def test_gradient_of_tied_weights_is_the_sum_of_both(model_of, opened, request, which):
    """Compared with an untied model of the same weights."""
    space = request.getfixturevalue(which)
    model = opened(tied(model_of, space)).double()
    free = model_of(space, embedding=KAIMING).double()
    free.load_state_dict(model.state_dict())
    for one in (model, free):
        out = run(one, space)
        out.masked_fill(out == -torch.inf, 0.0).square().sum().backward()
    for number, table in enumerate(model.embedding.tables):
        apart = (
            free.embedding.tables[number].weight.grad,
            free.head.maps[number].weight.grad,
        )
        assert all(grad.any() for grad in apart)
        torch.testing.assert_close(
            table.weight.grad, sum(apart), rtol=1e-10, atol=1e-12
        )
    rest = dict(free.named_parameters())
    for name, weight in model.named_parameters():
        if "tables" not in name:
            torch.testing.assert_close(
                weight.grad, rest[name].grad, rtol=1e-10, atol=1e-12
            )


def test_files_and_copies_keep_weights_tied(model_of, opened, text, tmp_path):
    model = opened(tied(model_of, text))
    save_model(model, str(tmp_path / "model.safetensors"))
    names = {
        name
        for name in load_file(tmp_path / "model.safetensors")
        if "tables" in name or "maps.0.weight" in name
    }
    assert len(names) == 1, "saved once"
    other = tied(model_of, text, seed=5)
    load_model(other, tmp_path / "model.safetensors")
    for each in (
        other,
        copy.deepcopy(model),
        model.to(torch.float64).to(torch.float32),
    ):
        assert each.head.maps[0].weight is each.embedding.tables[0].weight
        torch.testing.assert_close(run(each, text), run(model, text))


@pytest.mark.parametrize(
    ("options", "related"),
    [
        ({"embedding": "tokens"}, ["embedding"]),
        ({"embedding": {"use": "tokens", "init": 0.5}}, ["embedding"]),
        ({"embedding": "graph"}, ["embedding"]),
        ({"embedding": "regions", "head": "features"}, ["embedding", "head"]),
        *(
            ({"embedding": {"use": "tokens", "init": init}}, [])
            for init in ("kaiming", 0.02, 0.1)
        ),
    ],
)
def test_incompatible_tied_embeddings(options, related, graph, text, regions):
    space = {"graph": graph, "regions": regions}.get(str(options["embedding"]), text)
    misfits = [
        m
        for m in spec_of(tie_embeddings=True, **options).check(space)
        if m.path == ("tie_embeddings",)
    ]
    assert [misfit.related for misfit in misfits] == [("model", key) for key in related]
    assert not list(spec_of(**options).check(space))


@pytest.mark.parametrize("unpadded", [False, True])
def test_attention_without_a_mask_where_the_host_knows_of_no_padding(
    unpadded, monkeypatch
):
    """As on a GPU, where reading whether a mask hides anything would wait."""
    monkeypatch.setattr(denoiser, "_reads_are_free", lambda mask: False)
    masks = []

    class Spy(nn.Module):
        def forward(self, x, c, mask=None, **options):
            masks.append(mask)
            return x

    model = denoiser.Denoiser(
        lambda state, cond, start: (torch.zeros(2, 3, 4), 0),
        lambda level, cond: torch.zeros(2, 4),
        [Spy()],
        lambda x, c: x,
        nn.Identity(),
    )
    state = State(
        torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2, 3, dtype=torch.bool),
        unpadded=unpadded,
    )  # fmt: skip
    model(state, torch.zeros(2), torch.ones(2, 3, dtype=torch.bool), {})
    assert (masks[0] is None) is unpadded
