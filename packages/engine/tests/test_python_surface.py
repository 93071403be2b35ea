"""The Python surface: names of `import dither`, verbs of a system, checked changes, untouched generators."""

import math
import pydoc

import pytest
import torch
from pydantic import ValidationError

import dither
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.evaluate_run import evaluate_run
from dither.registry.contracts.protocols import Picture

PLANS = {
    "task.data": {"use": "procedural-plans", "train": 64, "valid": 16, "test": 64},
    "model.width": 16, "model.depth": 1, "train.batch_size": 8, "evaluate.samples": 16,
    "sampler": {"use": "ancestral", "steps": 4}, "tracking.use": ["csv"],
}  # fmt: skip
TEXT = {
    "model.width": 16, "model.depth": 1, "task.length": 16, "sampler": {"use": "ancestral", "steps": 4},
}  # fmt: skip
DNA = {
    "model.width": 16, "model.depth": 1, "task.data.length": 24, "task.data.train": 32,
    "sampler": {"use": "ancestral", "steps": 4},
}  # fmt: skip
REGIONS = {"model.width": 16, "model.depth": 1, "task.regions": 8, "task.rivals": False}


@pytest.fixture(scope="module")
def experiment():
    return load_experiment("bubble_diagram/quick", PLANS).experiment


@pytest.fixture(scope="module")
def system(experiment):
    return dither.Diffusion.build(experiment).eval()


def test_completion_shows_the_public_names():
    names = {
        "train", "load", "sample", "evaluate", "list", "Experiment", "Diffusion", "Refused",
        "__version__",
    }  # fmt: skip
    assert names <= set(dir(dither))
    for name in dir(dither):
        assert getattr(dither, name)
    assert dither.__version__[0].isdigit()
    assert "ancestral" in {component.name for component in dither.list("sampler")}
    assert "list" not in dither.__all__, "a star import must not hide that of Python"


def test_help_has_an_example():
    text = pydoc.plain(pydoc.render_doc(dither))
    for call in ("dither.train(", "dither.load(", "system.sample(", ".replace("):
        assert call in text


def test_changes_in_python_are_checked(experiment, refusal):
    assert experiment.replace(model={"width": 32}, seed=3).model.width == 32
    assert experiment.replace(model={"width": 32}).model.depth == 1, "options stay"
    assert experiment.replace(sampler="first-hitting").sampler.name == "first-hitting"
    assert experiment.replace() == experiment
    for changes, code, path in (
        ({"model": {"width": 33}}, "misfit", ("model", "block", "heads")),
        ({"model": {"widht": 32}}, "unknown-key", ("model", "widht")),
        ({"modle": {"width": 32}}, "unknown-key", ("modle",)),
        ({"model": {"width": "x"}}, "wrong-type", ("model", "width")),
        ({"sampler": "ddim"}, None, ("sampler",)),
        ({"sampler": "ancestrall"}, "unknown-component", ("sampler",)),
        ({"train": {"optimizer": {"lr": -1.0}}}, "out-of-range", ("train", "optimizer", "lr")),
    ):  # fmt: skip
        (problem, *_) = refusal(experiment.replace, **changes).problems
        assert problem.path[: len(path)] == path, changes
        assert code is None or problem.code == code


def test_copies_do_not_drop_unknown_keys(experiment):
    for part, update in (
        (experiment.model, {"widht": 32}),
        (experiment.model.block, {"head": 2}),
        (experiment.train, {"lr": 0.1}),
        (experiment, {"modle": experiment.model}),
        (experiment.model, {"width": -1}),
    ):
        with pytest.raises(ValidationError):
            part.model_copy(update=update)


def test_a_system_knows_its_experiment_and_device(system, experiment):
    assert system.experiment is experiment
    assert system.device == torch.device("cpu")
    assert system.with_model(system.model).experiment is experiment
    text = repr(system)
    assert "bubble-quick" in text
    assert "cpu" in text
    assert "\n" not in text
    assert len(text) < 300
    picture = Picture("sample", png=b"\x89PNG" * 99, svg="<svg/>" * 99, gif=b"GIF" * 99)
    assert repr(picture) == "Picture(name='sample')"


def test_sample_takes_steps_and_samplers(system, refusal):
    samples = system.sample(4, seed=1)
    assert samples.equal(system.sample(4, seed=1, steps=4))
    assert not samples.equal(system.sample(4, seed=1, steps=2))
    other = system.sample(4, sampler="first-hitting")
    assert other.equal(system.sample(4, sampler={"use": "first-hitting"}))
    spec = system.experiment.replace(sampler="first-hitting").sampler
    assert other.equal(system.sample(4, sampler=spec))
    assert system.sample(2, sampler="ancestral", steps=3).shape[0] == 2
    assert system.experiment.sampler.steps == 4, "the system itself is unchanged"
    assert samples.equal(system.sample(4, seed=1))
    for options, path in (
        ({"sampler": "ddim"}, ("sampler",)),
        ({"sampler": "ancestrl"}, ("sampler",)),
        ({"sampler": "first-hitting", "steps": 0}, ("sampler", "steps")),
        ({"labels": {"cell": "K562"}}, ("sample", "cond", "cell")),
    ):
        (problem, *_) = refusal(system.sample, 4, **options).problems
        assert problem.path[: len(path)] == path, options


def test_sample_takes_labels(refusal):
    experiment = load_experiment("dna_sequence/quick", DNA).experiment
    system = dither.Diffusion.build(experiment).eval()
    cells = system.task.space.conditions[0].labels
    alike = system.sample(2, labels={"cell": cells[1]})
    assert alike.equal(system.sample(2, labels={"cell": 1}))
    assert system._drawn[1].cond["cell"].tolist() == [1, 1]
    system.sample(2, labels={"cell": [cells[1], cells[0]]})
    assert system._drawn[1].cond["cell"].tolist() == [1, 0]
    texts = system.decode(alike)
    assert [set(text) <= set("ACGT") for text in texts] == [True, True]
    assert refusal(system.sample, 2, labels={"cell": "K56"}).codes == ["unknown-value"]
    assert refusal(system.sample, 2, labels={"cell": [0]}).codes == ["wrong-shape"]
    found = system.log_likelihood(alike, samples=2, labels={"cell": [0, 1]})
    assert found.values.shape == (2,)


def test_samples_are_decoded_in_the_terms_of_the_task(system):
    plans = system.decode(system.sample(3))
    assert len(plans) == 3
    batch = system.task.batch("valid", range(2))
    (plan, _) = system.decode(batch.x0)
    assert plan.types
    assert plan.edges

    text = dither.Diffusion.build(
        load_experiment("language_model/quick", TEXT).experiment
    ).eval()
    (line,) = text.decode(text.sample(1))
    assert isinstance(line, str)

    regions = dither.Diffusion.build(
        load_experiment("get_region/quick", REGIONS).experiment
    ).eval()
    table = regions.decode(regions.sample(2))
    assert {"column", "truth", "mean"} <= set(table.columns)
    assert len(table)


def test_a_saved_system_loads(system, tmp_path, refusal):
    folder = system.save(tmp_path / "mine")
    loaded = dither.load(folder, device="cpu")
    assert loaded.sample(2).equal(system.sample(2))
    assert loaded.experiment.model == system.experiment.model
    assert refusal(system.save, folder).codes == ["file-exists"]
    again = loaded.save(tmp_path / "again")
    assert dither.load(again, device="cpu").sample(2).equal(system.sample(2))
    assert len(dither.sample(again, 2)) == 2
    assert dither.evaluate(again, samples=4)["loss"] > 0


PLUGIN = '''
import torch
from dither.registry import hookimpl
from dither.registry.contracts import Noise
from dither.registry.kinds import ScheduleSpec


class Square(ScheduleSpec):
    """alpha = 1 - 0.999 t^2."""

    name = "square"

    def build(self):
        alpha = lambda t: 1 - 0.999 * t**2
        return lambda t: Noise(-torch.log(alpha(t)), 1.998 * t / alpha(t))


@hookimpl
def register_components():
    return [Square]
'''


@pytest.mark.slow
def test_systems_with_a_plugin_file_sample_and_save(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "square.py").write_text(PLUGIN)
    changes = {
        **PLANS, "process": {"use": "absorbing", "schedule": "square"}, "plugins": ["./square.py"],
        "train.steps": 1,
    }  # fmt: skip
    run = dither.train("bubble_diagram/quick", changes, tmp_path / "runs")
    system = dither.load(run, device="cpu")
    assert len(system.sample(2, steps=2)) == 2
    saved = dither.load(system.save(tmp_path / "saved"), device="cpu")
    assert saved.sample(2).equal(system.sample(2))
    assert system.experiment.replace(seed=4).process.schedule.name == "square"


def test_evaluation_and_sampling_leave_the_generator_of_the_user_alone(
    system, tmp_path
):
    folder = system.save(tmp_path / "system")
    batch = system.task.batch("valid", range(2))
    for verb in (
        system.evaluate,
        lambda: system.sample(2),
        lambda: system.log_likelihood(batch.x0, samples=2),
        lambda: system.log_likelihood(batch.x0[0], samples=2),
        lambda: dither.load(folder, device="cpu"),
        lambda: dither.sample(system, 2),
    ):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        verb()
        assert torch.get_rng_state().equal(before)


def test_the_likelihood_of_ids_is_part_of_an_evaluation(system, tmp_path):
    folder = system.save(tmp_path / "system")
    metrics, baselines = evaluate_run(folder, likelihood="bound", draws=2)
    batch = system.task.batch("valid", range(16))
    found = system.log_likelihood(batch, samples=2)
    assert metrics["nats_per_sample"] == pytest.approx(-found.values.mean().item())
    bits = -found.values / batch.valid.sum(1) / math.log(2)
    assert metrics["bits_per_position"] == pytest.approx(bits.mean().item())
    assert "bits_per_dim" not in metrics
    assert "bits_per_dim/normal" not in baselines


def test_an_interrupted_sampler_restores_the_generator_too(system, monkeypatch):
    def broken(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(system, "sampler", broken)
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError):
        system.sample(2)
    assert torch.get_rng_state().equal(before)


def test_log_likelihood_takes_padding_from_the_task(system, refusal):
    batch = system.task.batch("valid", range(3))
    assert not batch.valid.all(), "some plans are padded"
    found = system.log_likelihood(batch.x0, samples=4)
    assert torch.isfinite(found.values).all()
    assert (found.values < 0).all()
    same = system.log_likelihood(batch, samples=4)
    assert found.values.equal(same.values)
    for x0 in (batch.x0.int(), batch.x0.short(), batch.x0.tolist(), batch.x0.numpy()):
        assert system.log_likelihood(x0, samples=4).values.equal(found.values)
    single = system.log_likelihood(batch.x0[0], samples=4)
    assert single.values.equal(system.log_likelihood(batch.x0[:1], samples=4).values)
    assert system.log_likelihood(batch.x0[:0], samples=4).values.shape == (0,)
    known = torch.ones_like(batch.x0, dtype=torch.bool)
    assert system.log_likelihood(batch.x0, known, samples=4).values.abs().max() < 1e-3

    x0 = batch.x0
    mask = system.process.space.fields[0].mask
    spoilt = x0.clone()
    spoilt[1, 0] = mask
    for ids, options, code in (
        (x0.float(), {}, "wrong-type"),
        (x0.bool(), {}, "wrong-type"),
        (x0[:, :-1], {}, "misfit"),
        (x0[None], {}, "misfit"),
        (x0[0, 0], {}, "misfit"),
        (torch.cat([x0, x0], 1), {}, "misfit"),
        (spoilt, {}, "out-of-range"),
        (x0 + 99, {}, "out-of-range"),
        (x0 - 99, {}, "out-of-range"),
        (x0, {"known": known[:, :-1]}, "wrong-shape"),
        (x0, {"samples": 0}, "out-of-range"),
    ):
        assert refusal(system.log_likelihood, ids, **options).codes == [code]


def test_the_likelihood_of_values_that_are_not_denoised_is_refused(system, refusal):
    ids = system.task.batch("valid", range(2))
    found = refusal(system.log_likelihood, ids, method="ode")
    assert (found.codes, found.problems[0].path) == (["misfit"], ("process",))
    task = load_experiment("get_region/quick", REGIONS).experiment.task.build()
    batch = task.batch("valid", range(2))
    for changes in ({}, {"loss": "huber", "process": "gaussian"}):
        experiment = load_experiment("get_region/quick", REGIONS | changes).experiment
        regions = dither.Diffusion.build(experiment, task=task).eval()
        for method in ("bound", "ode"):
            found = refusal(regions.log_likelihood, batch, method=method)
            assert found.codes == ["misfit"]
    assert refusal(regions.log_likelihood, batch.x0[0]).codes == ["misfit"]

    # Accessibility and motifs of 0 and 1 have probabilities, others are continuous.
    widths = task.bin_widths
    binary = widths > 0
    assert binary[-1]
    assert not binary[0]
    low, high = batch.x0[..., -1].unique().tolist()
    assert widths[-1].item() == pytest.approx(high - low, rel=1e-4)


def test_likelihoods_of_images_are_those_of_their_pixels(tmp_path):
    """A model without velocity leaves the normal distribution as it is: the flow gives its probability of a bin."""
    changes = {"model.width": 16, "model.depth": 1, "evaluate.samples": 3}
    experiment = load_experiment("images/digits", changes).experiment
    system = dither.Diffusion.build(experiment).eval()
    batch = system.task.batch("valid", range(3))
    found = system.log_likelihood(batch, samples=2, method="ode", steps=2)
    assert found.of_values is None
    assert (found.half_widths == 0).all(), "every probe sees the same divergence"

    bound = system.log_likelihood(batch, samples=6)
    assert bound.of_values.shape == batch.x0.shape
    assert torch.allclose(bound.of_values.sum((1, 2)), bound.values)
    alone = system.log_likelihood(batch[:1], samples=6)
    assert torch.isfinite(alone.values).all()
    # The bound holds for this model, too.
    assert (bound.values < found.values).all()
    known = torch.ones_like(batch.x0, dtype=torch.bool)
    known[:, 5] = False
    labels = {"label": 3}
    of_pixel = system.log_likelihood(batch.x0, known, samples=2, labels=labels)
    assert (of_pixel.of_values != 0).equal(~known)

    folder = system.save(tmp_path / "digits")
    metrics, baselines = evaluate_run(folder, likelihood="bound", draws=2)
    assert metrics["nats_per_sample"] == pytest.approx(
        64 * math.log(2) * metrics["bits_per_dim"]
    )
    bits = -found.values.mean().item() / 64 / math.log(2)
    assert bits == pytest.approx(baselines["bits_per_dim/normal"], abs=0.1)
    assert bits > math.log2(17), "that of 17 brightnesses with equal probabilities"


def test_one_name_for_overrides(system, tmp_path):
    folder = system.save(tmp_path / "system")
    changed = dither.load(folder, device="cpu", overrides={"sampler.steps": 2})
    assert changed.experiment.sampler.steps == 2
    loaded = dither.load_experiment("bubble_diagram/quick", overrides={"seed": 7})
    assert loaded.experiment.seed == 7
