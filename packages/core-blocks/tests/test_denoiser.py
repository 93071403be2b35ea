"""The whole model: how it starts, what reaches what, and which weights learn when."""

import pytest
import torch

from dither.registry import FeatureSpace, default_catalog
from dither.registry.flow.protocols import Denoiser
from dither.registry.flow.records import State


def tokens(space, rows=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = space.table(lambda field: torch.tensor(field.size))
    return State.of((torch.rand(rows, space.length, generator=generator) * sizes).long())


def features(space, rows=2, seed=0, ratio=0.5):
    generator = torch.Generator().manual_seed(seed)
    hidden = (torch.rand(rows, space.length, 1, generator=generator) < ratio).expand(-1, -1, space.width)
    return State(torch.randn(hidden.shape, generator=generator).masked_fill(hidden, 0.0), hidden)


def everywhere(state):
    return torch.ones(state.x.shape[:2], dtype=torch.bool)


LEVEL = torch.tensor([0.2, 0.9])


def finite(out):
    return out.masked_fill(out == -torch.inf, 0.0)


def test_keeps_the_contract(model_of, text, opened):
    model = opened(model_of(text))
    assert isinstance(model, Denoiser)
    state = tokens(text)
    args = (state, LEVEL, everywhere(state), {})
    assert torch.equal(model.head(model.trunk(*args)), model(*args))


def test_starts_with_zero_logits_on_every_id_of_a_field(model_of, graph):
    state = tokens(graph)
    out = model_of(graph, embedding="graph")(state, LEVEL, everywhere(state), {})
    assert torch.equal(out == 0, graph.usable().expand(2, -1, -1))
    assert torch.equal(out == -torch.inf, ~graph.usable().expand(2, -1, -1))


def test_starts_as_head_over_norm_over_embedding(model_of, regions):
    """With identity blocks nothing else is left (seed 000)."""
    model = model_of(regions, final="norm", init="trunc-normal")
    state = features(regions)
    h, _ = model.embedding(state, {}, 0)
    expected = model.head(torch.nn.functional.layer_norm(h[:, 1:], (16,), eps=1e-6))
    torch.testing.assert_close(model(state, LEVEL, everywhere(state), {}), expected)


@pytest.mark.parametrize("block", [{}, {"rope": True}, {"attention": "sdpa"}], ids=str)
@pytest.mark.parametrize("block_size", [None, 3])
def test_padding_reaches_nobody(model_of, graph, opened, block, block_size):
    model = opened(model_of(graph, embedding="graph", block=block, block_size=block_size))
    state, valid = tokens(graph), everywhere(tokens(graph))
    valid[0, 2:4] = valid[0, 6:] = False
    valid[1] = False
    other = State.of(torch.where(valid, state.x, tokens(graph, seed=1).x))
    a, b = model(state, LEVEL, valid, {}), model(other, LEVEL, valid, {})
    assert not torch.equal(a, b)
    assert torch.equal(a[valid], b[valid])
    assert finite(a).isfinite().all(), "a sample without a single real position"
    assert not torch.allclose(finite(model(state, LEVEL, everywhere(state), {}))[0, 0], finite(a)[0, 0])


def test_samples_do_not_see_each_other(model_of, regions, opened):
    model = opened(model_of(regions))
    a, b = features(regions), features(regions, seed=1)
    mixed = State(torch.cat([a.x[:1], b.x[1:]]), torch.cat([a.masked[:1], b.masked[1:]]))
    out = model(a, LEVEL, everywhere(a), {})
    changed = model(mixed, torch.tensor([0.2, 0.5]), everywhere(a), {})
    torch.testing.assert_close(changed[0], out[0], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(changed[1], out[1])


def test_without_positions_order_means_nothing(model_of, regions, opened):
    state, order = features(regions), torch.randperm(9, generator=torch.Generator().manual_seed(0))
    shuffled = State(state.x[:, order], state.masked[:, order])
    for position, equivariant in (("none", True), ("sinusoid", False), ("learned", False)):
        model = opened(model_of(regions, embedding={"use": "regions", "position": position}))
        out = model(state, LEVEL, everywhere(state), {})
        back = model(shuffled, LEVEL, everywhere(state), {})
        assert torch.allclose(back, out[:, order], atol=1e-5) == equivariant, position


def test_masked_regions_of_the_seed_get_one_and_the_same_prediction(model_of, opened):
    """The degeneracy of seed 000: without positions, nothing tells one masked region from another."""
    space = FeatureSpace(40, 5)
    state = features(space)
    for position, spread in (("none", False), ("sinusoid", True)):
        embedding = {"use": "regions", "position": position}
        model = opened(model_of(space, embedding=embedding, final="norm", affine=True, init="trunc-normal"))
        out = model(state, LEVEL, everywhere(state), {})
        for row in range(2):
            masked = out[row][state.masked[row].all(-1)]
            assert len(masked) > 9
            assert ((masked - masked[0]).abs().max() > 1e-3) == spread
        assert (out[0] - out[0, 0]).abs().max() > 1e-2, "regions in sight do differ"


@pytest.mark.parametrize("block_size", [1, 3, 5, 12])
def test_later_blocks_do_not_reach_earlier_ones(model_of, text, opened, block_size):
    model = opened(model_of(text, block={"rope": True}, block_size=block_size))
    state, valid = tokens(text), everywhere(tokens(text))
    out = model(state, LEVEL, valid, {})
    for position in range(12):
        x = state.x.clone()
        x[:, position] = (x[:, position] + 1) % 7
        changed = (model(State.of(x), LEVEL, valid, {}) != out).any(-1).all(0)
        expected = torch.arange(12) >= position // block_size * block_size
        assert torch.equal(changed, expected), position


def test_a_class_token_stands_in_the_first_block_and_all_see_it(model_of, regions, opened):
    model = opened(model_of(regions, block_size=4))
    state = features(regions, ratio=0.0)
    valid, level = everywhere(state), LEVEL
    out = model(state, level, valid, {})
    x = state.x.clone()
    x[:, 4:] += 1.0
    assert torch.equal(model(State.of(x), level, valid, {})[:, :4], out[:, :4]), "later blocks reach the first"
    each = level[:, None].repeat(1, 9)
    later = each + 0.5 * (torch.arange(9) >= 4)
    same, changed = model(state, each, valid, {}), model(state, later, valid, {})
    assert torch.equal(changed[:, :4], same[:, :4]), "it has the level of a later block"
    inside = []
    hook = model.blocks[0].register_forward_hook(lambda block, args, h: inside.append(h[:, 0]))
    for position in (3, 4):
        x = state.x.clone()
        x[:, position] += 1.0
        model(State.of(x), level, valid, {})
    model(state, level, valid, {})
    hook.remove()
    assert not torch.equal(inside[0], inside[2]), "it does not see its own block"
    assert torch.equal(inside[1], inside[2]), "it sees a later block"
    with torch.no_grad():
        model.embedding.cls_token += 1.0
    assert (model(state, level, valid, {}) != out).any(-1).all(), "some do not see it"


@pytest.mark.parametrize("final", ["adaln", "norm"])
def test_level_per_position_stays_with_its_position_and_extra_tokens_take_the_first(model_of, regions, opened, final):
    model = opened(model_of(regions, final=final))
    state = features(regions)
    valid = everywhere(state)
    each = LEVEL[:, None].expand(2, 9)
    torch.testing.assert_close(model(state, each, valid, {}), model(state, LEVEL, valid, {}), atol=1e-5, rtol=1e-4)
    assert not torch.allclose(model(state, each.flip(0), valid, {}), model(state, LEVEL, valid, {}))


def test_gradients_at_first_reach_the_heads_alone(model_of, graph):
    """Erratum E5 of seed 001: the heads learn first, then what they read and the gates, then all the rest."""
    model = model_of(graph, embedding="graph", affine=True, block={"affine": True})
    state = tokens(graph)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    learning = []
    for _ in range(3):
        optimizer.zero_grad()
        out = model(state, LEVEL, everywhere(state), {})
        torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens(graph, seed=1).x.flatten()).backward()
        learning.append({name for name, weight in model.named_parameters() if weight.grad.abs().max() > 0})
        optimizer.step()
    heads = {name for name, _ in model.named_parameters() if name.startswith("head.")}
    assert learning[0] == heads
    second = learning[1] - learning[0]
    assert {name.split(".")[0] for name in second} == {"embedding", "blocks", "final"}
    assert all("modulation" in name for name in second if name.startswith("blocks."))
    third = learning[2] - learning[1]
    for part in ("condition.enter", "condition.leave", "attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm1"):
        assert any(part in name for name in third), part
    assert learning[2] == {name for name, _ in model.named_parameters()}


def test_state_dict_round_trip(model_of, text, opened):
    options = {"block": {"rope": True}, "embedding": {"use": "tokens", "position": "sinusoid"}}
    model, other = opened(model_of(text, **options)), model_of(text, seed=5, **options)
    state = tokens(text)
    args = (state, LEVEL, everywhere(state), {})
    model(*args)
    saved = model.state_dict()
    assert set(saved) == {name for name, _ in model.named_parameters()}, "something else than weights is saved"
    other.load_state_dict(saved)
    assert torch.equal(other(*args), model(*args))


def test_checkpointing_changes_no_gradient(model_of, text, opened):
    gradients = []
    for checkpointing in (False, True):
        model = opened(model_of(text, checkpointing=checkpointing, block={"dropout": 0.3})).train()
        state = tokens(text)
        torch.manual_seed(3)
        model(state, LEVEL, everywhere(state), {}).square().sum().backward()
        gradients.append([weight.grad for weight in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


def test_checkpointing_keeps_less(model_of, text, opened):
    kept = []
    for checkpointing in (False, True):
        model, sizes = opened(model_of(text, checkpointing=checkpointing)).train(), []
        state = tokens(text)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, sizes=sizes: (sizes.append(t.numel()), t)[1], lambda t: t
        ):
            model(state, LEVEL, everywhere(state), {})
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 2


def test_dropout_is_for_training(model_of, text, opened):
    model = opened(model_of(text, block={"dropout": 0.5}))
    state = tokens(text)
    args = (state, LEVEL, everywhere(state), {})
    assert torch.equal(model(*args), model(*args))
    model.train()
    assert not torch.equal(model(*args), model(*args))


def test_bfloat16_autocast_comes_close(model_of, graph, opened):
    model = opened(
        model_of(graph, embedding="graph", norm="rms", block={"norm": "rms", "affine": True, "rope": True}), 0.1
    )
    state = tokens(graph)
    args = (state, LEVEL, everywhere(state), {})
    with torch.autocast("cpu", torch.bfloat16):
        out = model(*args)
    torch.testing.assert_close(finite(out).float(), finite(model(*args)), atol=0.05, rtol=0.05)


def test_check_collects_what_is_wrong_in_every_part(regions):
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
    assert default_catalog().parse("model", {"use": "denoiser", "block_size": 4}).facts().block_size == 4


def padded(space, sizes):
    """Graphs with the first `size` nodes, and the pairs between them."""
    n = space.fields[0].length
    pairs = torch.triu_indices(n, n, 1)
    sizes = torch.tensor(sizes)[:, None]
    return torch.cat([torch.arange(n) < sizes, pairs[1] < sizes], 1)


@pytest.mark.parametrize("options", [{}, {"block": {"attention": "sdpa"}}, {"checkpointing": True}], ids=str)
@pytest.mark.parametrize("level", ["sample", "position"])
def test_leaving_padding_out_is_masking_it(model_of, graph, opened, options, level):
    """The same values and the same gradients, whatever the order of the rows; padding itself is free to differ."""
    model = opened(model_of(graph, embedding="graph", **options)).double().train()
    assert model.skip_padding
    valid = padded(graph, [3, 4, 2, 3, 2, 3])
    state = tokens(graph, len(valid))
    times = torch.rand(len(valid), *([graph.length] if level == "position" else []), dtype=torch.float64)
    weight = torch.randn(len(valid), graph.length, 6, dtype=torch.float64)

    def values_and_gradients():
        model.zero_grad()
        out = finite(model(state, times, valid, {})) * weight * valid[..., None]
        out.sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters())]

    without = values_and_gradients()
    calls = []
    handle = model.blocks[0].register_forward_pre_hook(lambda _, args: calls.append(args[0].shape[:2]))
    values_and_gradients()
    handle.remove()
    assert sorted(set(calls)) == [(1, 10), (2, 3), (3, 6)]
    model.skip_padding = False
    for one, other in zip(without, values_and_gradients(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("space", ["graph", "regions"])
def test_what_is_not_asked_is_left_out_of_the_last_block(request, model_of, opened, space, padding):
    """The same values where they are asked, the same gradients of a loss over these, and fewer positions in the last
    block; a sample of which nothing is asked comes into none."""
    sort = request.getfixturevalue(space)
    embedding = {"embedding": "graph"} if space == "graph" else {"embedding": {"use": "regions", "cls": True}}
    model = opened(model_of(sort, **embedding)).double().train()
    model.join_hidden = False  # fewer still
    valid = padded(sort, [3, 4, 2, 3]) if padding and space == "graph" else torch.ones(4, sort.length, dtype=torch.bool)
    state = (
        tokens(sort, 4)
        if space == "graph"
        else features(sort, 4).apply(lambda v: v.double() if v.is_floating_point() else v)
    )
    requested = (torch.rand(valid.shape, generator=torch.Generator().manual_seed(3)) < 0.4) & valid
    requested[1] = False
    level = torch.rand(4, dtype=torch.float64)
    seen, came = [], []
    model.blocks[-1].mlp.register_forward_pre_hook(lambda _, args: seen.append(args[0].shape[:-1].numel()))
    model.blocks[0].register_forward_pre_hook(lambda _, args: came.append(len(args[0])))

    def values_and_gradients(requested):
        model.zero_grad()
        out = finite(model(State(state.x, state.masked, requested), level, valid, {}))
        assert out.isfinite().all()
        out[where].square().sum().backward()
        return [out[where].detach(), *(p.grad.clone() for p in model.parameters())]

    where = requested
    for one, other in zip(values_and_gradients(requested), values_and_gradients(None), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    groups = 2 if padding and space == "graph" else 1
    assert sum(seen[:groups]) == requested.sum()
    assert sum(came[:groups]) == 3
    assert sum(came[groups:]) == 4


def test_padding_is_left_out_only_where_blocks_know_no_positions(model_of, graph):
    assert not model_of(graph, embedding="graph", block={"rope": True}).skip_padding
    model = model_of(graph, embedding="graph", block_size=2)
    assert model._groups(padded(graph, [2, 3]), None, None) is None


def test_without_padding_there_is_no_mask(model_of, graph):
    model = model_of(graph, embedding="graph")
    masks = []
    model.blocks[0].register_forward_pre_hook(lambda _, args, kwargs: masks.append(kwargs["mask"]), with_kwargs=True)
    state = tokens(graph)
    model(state, LEVEL, everywhere(state), {})
    assert masks == [None]
