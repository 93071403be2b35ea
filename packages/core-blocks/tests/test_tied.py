"""One matrix for both ends: counts, gradients, files, copies, and what cannot share."""

import copy

import pytest
import torch
from safetensors.torch import load_file, load_model, save_model

from dither.core_blocks.denoiser import tie_embeddings
from dither.embeddings.heads import TokenHead
from dither.embeddings.tokens import TokenEmbedding
from dither.registry import FeatureSpace, Field, TokenSpace, default_catalog
from dither.registry.flow.records import State

SMALL = {"use": "tokens", "init": "kaiming"}
SEED = {
    "width": 512,
    "depth": 6,
    "cond": 128,
    "norm": "rms",
    "affine": True,
    "embedding": SMALL,
    "tie_embeddings": True,
}
SEED_BLOCK = {"heads": 8, "norm": "rms", "affine": True, "mlp": "swiglu", "bias": False, "rope": True}


def spec_of(**options):
    table = {"width": 16, "depth": 1, "block": {"use": "adaln-zero", "heads": 2}} | options
    return default_catalog().parse("model", {"use": "core-blocks/denoiser", **table})


def tied(model_of, space, **options):
    return model_of(space, embedding=SMALL, tie_embeddings=True, **options)


def run(model, space, rows=3):
    torch.manual_seed(0)
    x = torch.stack([torch.arange(space.length) * 7 + row for row in range(rows)])
    sizes = space.table(lambda field: torch.tensor(field.size))
    state = State.of(x % sizes)
    return model(state, torch.linspace(0.1, 0.9, rows), torch.ones(x.shape, dtype=torch.bool), {})


def test_the_seed_model_tied_has_as_many_parameters_as_counted_by_hand(model_of):
    model = model_of(TokenSpace((Field("text", 1024, 50_257),)), device="meta", block=SEED_BLOCK, **SEED)
    count = sum(weight.numel() for weight in model.parameters())
    assert count == 53_513_553 == 79_245_137 - 50_257 * 512
    assert model.head.maps[0].bias.shape == (50_257,)
    assert model.head.maps[0].weight is model.embedding.tables[0].weight


def test_estimates_count_the_matrix_once(text, graph):
    for space in (text, graph):
        for head in ({"use": "tokens"}, {"use": "tokens", "bias": False}):
            spec = spec_of(embedding=SMALL, head=head, tie_embeddings=True)
            with torch.device("meta"):
                built = spec.build(space)
            stages = spec.stages(space)
            assert sum(stage.parameters for stage in stages) == sum(p.numel() for p in built.parameters())
            free = spec_of(embedding=SMALL, head=head).stages(space)
            assert [stage.kept for stage in stages] == [stage.kept for stage in free]


def test_the_matrix_starts_as_the_embedding_and_nothing_else_changes(model_of, text):
    free, model = model_of(text, embedding=SMALL), tied(model_of, text)
    (table,) = model.embedding.tables
    torch.testing.assert_close(table.weight, free.embedding.tables[0].weight)
    h = torch.randn(2, 12, 16)
    torch.testing.assert_close(model.head(h), h @ table.weight.T)
    for name, weight in free.named_parameters():
        if not name.startswith("head"):
            torch.testing.assert_close(model.get_parameter(name), weight)


@pytest.mark.parametrize("which", ["text", "graph"])
def test_its_gradient_is_the_sum_of_both(model_of, opened, request, which):
    """Against a model of the same weights in which the two are apart."""
    space = request.getfixturevalue(which)
    model = opened(tied(model_of, space)).double()
    free = model_of(space, embedding=SMALL).double()
    free.load_state_dict(model.state_dict())
    for one in (model, free):
        out = run(one, space)
        out.masked_fill(out == -torch.inf, 0.0).square().sum().backward()
    for number, table in enumerate(model.embedding.tables):
        apart = free.embedding.tables[number].weight.grad, free.head.maps[number].weight.grad
        assert all(grad.any() for grad in apart)
        torch.testing.assert_close(table.weight.grad, sum(apart), rtol=1e-10, atol=1e-12)
    rest = dict(free.named_parameters())
    for name, weight in model.named_parameters():
        if "tables" not in name:
            torch.testing.assert_close(weight.grad, rest[name].grad, rtol=1e-10, atol=1e-12)


def test_mask_has_a_row_at_both_ends(model_of):
    space = TokenSpace((Field("text", 5, 7),)).with_mask()
    model = tied(model_of, space)
    assert model.embedding.tables[0].weight.shape == model.head.maps[0].weight.shape == (8, 16)
    assert run(model, space).shape == (3, 5, 8)


def test_files_and_copies_keep_it_one(model_of, opened, text, tmp_path):
    model = opened(tied(model_of, text))
    save_model(model, str(tmp_path / "model.safetensors"))
    names = {name for name in load_file(tmp_path / "model.safetensors") if "tables" in name or "maps.0.weight" in name}
    assert len(names) == 1, "the matrix is in the file once"
    other = tied(model_of, text, seed=5)
    load_model(other, tmp_path / "model.safetensors")
    for each in (other, copy.deepcopy(model), model.to(torch.float64).to(torch.float32)):
        assert each.head.maps[0].weight is each.embedding.tables[0].weight
        torch.testing.assert_close(run(each, text), run(model, text))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"embedding": "tokens"}, "no tables that a head could start with"),
        ({"embedding": {"use": "tokens", "init": 0.5}}, "no tables that a head could start with"),
        ({"embedding": "graph"}, 'embedding "graph" as it is set has no tables'),
        ({"embedding": "regions", "head": "features"}, 'head "features" has no maps'),
    ],
)
def test_what_cannot_share_is_refused(options, said, graph, text, regions):
    space = {"graph": graph, "regions": regions}.get(str(options["embedding"]), text)
    spec = spec_of(tie_embeddings=True, **options)
    misfits = [misfit for misfit in spec.check(space) if misfit.path == ("tie_embeddings",)]
    assert any(said in misfit.message for misfit in misfits), misfits
    assert all("tie_embeddings = false" in misfit.help for misfit in misfits)
    assert not list(spec_of(**options).check(space))


def test_a_small_deviation_and_kaiming_may_start_a_head(text):
    for init in ("kaiming", 0.02, 0.1):
        assert not list(spec_of(tie_embeddings=True, embedding={"use": "tokens", "init": init}).check(text))


def test_shapes_that_differ_are_refused_without_a_file():
    text = TokenSpace((Field("text", 3, 7),))
    with pytest.raises(ValueError, match=r"\(7, 4\) and \(7, 5\) cannot share"):
        tie_embeddings(TokenEmbedding(text, 4), TokenHead(text, 5))
    with pytest.raises(ValueError, match="zip"):
        tie_embeddings(TokenEmbedding(text, 4), TokenHead(TokenSpace((Field("a", 3, 7), Field("b", 3, 7))), 4))


def test_features_have_nothing_to_tie():
    spec = spec_of(tie_embeddings=True, embedding="regions", head="features")
    assert len([m for m in spec.check(FeatureSpace(3, 4)) if m.path == ("tie_embeddings",)]) == 2
