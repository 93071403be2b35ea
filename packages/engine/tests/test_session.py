import pytest
import torch

from dither.engine.sampling.session import Session, draw, walk
from dither.engine.training.diffusion import Diffusion
from dither.registry import Field, TokenSpace
from dither.registry.flow.records import Clean, State


@pytest.fixture
def system(load):
    return Diffusion.build(load("model.dropout=0.5").experiment)


def test_remembered_positions_are_context_at_level_zero(system):
    """In pieces, with memory, the model says what it says of the whole at once."""
    system.eval()
    like = system.task.like(3, 0)
    x = torch.randint(0, 4, (3, 6))
    t = torch.tensor([0.3, 0.6, 0.9])
    level = torch.cat([torch.zeros(3, 4), t[:, None].expand(3, 2)], 1)
    raw = system.model(State.of(x), level, like.valid, like.cond)
    whole = system.process.read(raw, State.of(x), system.process.schedule(level))

    session = Session(system, like)
    with torch.no_grad():
        session.append(x[:, :2])
        session.append(x[:, 2:4])
        for _ in range(2):  # a call leaves nothing behind
            last = session(State.of(x[:, 4:]), t)
    torch.testing.assert_close(last, whole[:, 4:])


def test_a_piece_has_its_own_columns_of_valid(system, monkeypatch):
    seen = []
    monkeypatch.setattr(system, "denoise", lambda state, t, clean, cache: seen.append((clean, cache)))
    like = Clean.of(torch.arange(12).reshape(2, 6) % 4, torch.arange(12).reshape(2, 6) % 2 == 0, scale=torch.ones(2))
    session = Session(system, like)
    session(State.of(like.x0), torch.ones(2))
    assert seen[0] == (like, None)
    session.append(like.x0[:, :3])
    session(State.of(like.x0[:, 3:]), torch.ones(2))
    piece, cache = seen[1]
    assert torch.equal(piece.valid, like.valid[:, 3:])
    assert cache.length == 3
    with pytest.raises(ValueError, match="3..9 of a sample that has 6"):
        session(State.of(like.x0), torch.ones(2))


def test_samples_of_several_fields_do_not_come_in_pieces(system):
    system.process.space = TokenSpace((Field("a", 2, 5, mask=4), Field("b", 4, 5, mask=4)))
    session = Session(system, system.task.like(2, 0))
    with pytest.raises(ValueError, match="several fields"):
        session.append(torch.zeros(2, 2, dtype=torch.long))


def test_a_walk_yields_every_state_and_the_clean_sample_last(system):
    states = list(walk(system, system.task.like(4, 0)))
    assert len(states) == 5
    assert (states[0] == 4).any()  # MASK
    assert not (states[-1] == 4).any()
    assert system.training, "the mode is put back"


@pytest.mark.parametrize("block", [None, 2])
def test_drawing_depends_on_nothing_drawn_before(load, block):
    system = Diffusion.build(load(*[f"sampler.block={block}"] * bool(block)).experiment)
    like = system.task.like(5, 0)
    torch.manual_seed(1)
    first = draw(system, like, seed=7, batch_size=2)
    torch.manual_seed(2)
    again = draw(system, like, seed=7, batch_size=2)
    assert first.shape == (5, 6)
    assert torch.equal(first, again)
    assert torch.equal(first, draw(system.eval(), like, seed=7, batch_size=2)), "dropout is off in any mode"
    assert not torch.equal(first, draw(system, like, seed=8, batch_size=2))
    assert torch.equal(first[:2], draw(system, like[:2], seed=7)), "the first batch is that of a shorter drawing"
    assert not torch.equal(first[:2], first[2:4]), "batches differ"


def test_no_gradient_is_kept(system):
    seen = []
    system.model.head.register_forward_hook(lambda module, given, out: seen.append(out.requires_grad))
    for _ in walk(system, system.task.like(2, 0)):
        assert torch.is_grad_enabled(), "the caller's mode is untouched between states"
    assert seen
    assert not any(seen)


def test_drawing_stops_when_asked(system):
    asked = iter([False, False, True])
    assert draw(system, system.task.like(2, 0), 0, stopped=lambda: next(asked)) is None
    assert system.training
