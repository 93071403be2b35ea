"""Checks for the components of a run: optimizers, learning-rate schedules, metrics, rewards, trackers, executors."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dither.registry import TokenSpace
from dither.registry.contracts.jobs import Cluster, Command, Job
from dither.registry.contracts.protocols import (
    Metrics,
    Picture,
    PredictionMetric,
    Tracker,
)
from dither.registry.contracts.records import Measured

from ..check_utils import (
    NotApplicable,
    assert_equal,
    assert_unchanged,
    check_implements,
    seed_cpu,
    snapshot,
    without_truth,
)
from ..situations import Situation, checks_of, fitting_process

__all__ = ["CHECKS"]


def _step(
    module: torch.nn.Module, optimizer: torch.optim.Optimizer, x: Tensor
) -> float:
    optimizer.zero_grad()
    loss = (module(x) - 1.0).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def _batch(s: Situation) -> Tensor:
    return torch.randn(8, 3, generator=s.generator())


def step_changes_weights(s: Situation) -> None:
    """A step changes every trainable parameter to finite values, and no other."""
    (module,) = s.args
    optimizer = s.build()
    before = {
        name: parameter.detach().clone()
        for name, parameter in module.named_parameters()
    }
    # After any step: the second may undo the first.
    moved = set[str]()
    for _ in range(2):
        _step(module, optimizer, _batch(s))
        moved |= {
            name
            for name, parameter in module.named_parameters()
            if not torch.equal(parameter, before[name])
        }
    for name, parameter in module.named_parameters():
        assert parameter.isfinite().all(), f"{name} is not finite after two steps"
        changed = name in moved
        trainable = parameter.requires_grad
        assert changed == trainable, (
            f"{name} changed: {changed}; trainable: {trainable}"
        )


def descends(s: Situation) -> None:
    """With the defaults, 50 steps reduce a loss, and each changes the weights."""
    (module,) = s.args
    optimizer = s.build()
    x = _batch(s)
    losses = []
    weights = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
    for number in range(1, 51):
        losses.append(_step(module, optimizer, x))
        moved = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        assert not torch.equal(moved, weights), f"step {number} changes no weight"
        weights = moved
    assert losses[-1] < losses[0], (
        f"the loss goes from {losses[0]:.4g} to {losses[-1]:.4g} in 50 steps"
    )


def parameters_once(s: Situation) -> None:
    """The parameter groups contain each trainable parameter once."""
    (module,) = s.args
    grouped: list[int] = []
    for group in s.build().param_groups:
        grouped += map(id, group["params"])
    # By identity, since parameters compare element by element.
    expected = [id(x) for x in module.parameters() if x.requires_grad]
    assert sorted(grouped) == sorted(expected), (
        f"{len(grouped)} parameters in groups, {len(expected)} are trainable"
    )


def resumes(s: Situation) -> None:
    """A new optimizer continues from a saved state."""
    (module,) = s.args
    first = s.build()
    # More than one, of which only the last may be saved.
    for _ in range(3):
        _step(module, first, _batch(s))
    weights = deepcopy(module.state_dict())
    saved = deepcopy(first.state_dict())
    _step(module, first, _batch(s))
    expected = deepcopy(module.state_dict())

    module.load_state_dict(weights)
    # Of another optimizer object, as in a new process.
    second = s.build()
    second.load_state_dict(saved)
    _step(module, second, _batch(s))
    for name, tensor in module.state_dict().items():
        assert_equal(
            tensor, expected[name], f"{name} after a step from the saved state"
        )


def factor_valid(s: Situation) -> None:
    """The factor is finite and not negative, positive at some step, and depends on the step only."""
    (steps,) = s.args
    schedule = s.build()
    factors = [schedule(step) for step in range(steps)]
    for step, factor in enumerate(factors):
        valid = math.isfinite(factor) and factor >= 0
        assert valid, f"the factor of step {step} is {factor}"
    assert max(factors) > 0, "the factor is 0 at every step"
    # A resumed run calls it for later steps only.
    again = [schedule(step) for step in reversed(range(steps))]
    assert again == factors[::-1], "the factor depends on earlier calls"


def metric_values(s: Situation) -> None:
    """The metric returns finite numbers of the samples for any batch size; inputs are not modified."""
    metric = s.build()
    before = snapshot(s.clean)
    batches = [slice(None)]
    if isinstance(metric, PredictionMetric) and len(s.clean.valid) > 1:
        batches = [slice(0, 1), slice(1, None)]
    whole = _compute(s, metric, [slice(None)])
    uneven = _compute(s, metric, batches)
    assert whole, "the metric returns no values"
    for name, value in whole.items():
        assert isinstance(name, str), f"{name!r} is not a name"
        assert math.isfinite(value), f"{name} is {value}"
    message = f"not the same with other batches: {whole}, {uneven}"
    torch.testing.assert_close(whole, uneven, rtol=1e-4, atol=1e-6, msg=message)
    if not isinstance(metric, PredictionMetric):
        _check_samples_matter(s, metric, whole)
    assert_unchanged(before, s.clean, what="the batch")


def _check_samples_matter(
    s: Situation, metric: Any, values: Mapping[str, float]
) -> None:
    """Assert that no value depends on the template, and on no sample."""
    samples = s.clean.x0
    blind = metric(samples, without_truth(s.clean, s.clean.fixed))
    others = [
        metric(changed, s.clean)
        for changed in (samples.flip(1), samples[:1].expand_as(samples), 0 * samples)
    ]
    for name, value in values.items():
        of_samples = any(other.get(name) != value for other in others)
        # A metric may compare samples with the truth, but not measure the truth alone.
        assert of_samples or blind.get(name) == value, (
            f"{name} is that of the template, whatever the samples are"
        )


def _compute(s: Situation, metric: Any, batches: list[slice]) -> Mapping[str, float]:
    """Compute a metric of samples, or of the predictions for some batches."""
    seed_cpu(s.seed)
    values: Mapping[str, float]
    if not isinstance(metric, PredictionMetric):
        values = metric(s.clean.x0, s.clean)
        return values
    process = fitting_process(s.catalog, s.space)
    shape = s.clean.valid.shape
    noised = process.corrupt(s.clean, s.times(0.5))
    last = (
        process.space.vocab
        if isinstance(process.space, TokenSpace)
        else process.space.raw_width
    )
    raw = torch.zeros(*shape, last)
    # Samples of unequal weight, so that a mean of means differs from the mean.
    weights = torch.rand(shape) * s.clean.valid
    measured = Measured(torch.rand(shape), weights)
    metrics = metric.metrics()
    check_implements(metrics, Metrics)
    for rows in batches:
        part = noised[rows]
        pred = process.read(raw[rows], part.state, part.noise)
        metrics.update(s.clean[rows], part, pred, measured[rows])
    values = metrics.compute()
    return values


def reward_values(s: Situation) -> None:
    """The reward is one number per sample, that of the sample alone; inputs are not modified."""
    reward = s.build()
    before = snapshot(s.clean)
    rewards = reward(s.clean.x0, s.clean)
    count = len(s.clean.x0)
    assert isinstance(rewards, Tensor), f"the reward is {type(rewards).__name__}"
    assert rewards.shape == (count,), f"{count} samples, rewards {tuple(rewards.shape)}"
    assert rewards.is_floating_point(), f"the reward is {rewards.dtype}"
    # An impossible sample has -inf.
    invalid = rewards.isnan() | (rewards == torch.inf)
    assert not invalid.any(), f"rewards are NaN or inf: {rewards.tolist()}"

    single = []
    for row in range(count):
        sample = s.clean[row : row + 1]
        single.append(reward(sample.x0, sample))
    message = "the reward of a sample depends on the others of its batch"
    torch.testing.assert_close(
        torch.cat(single), rewards, rtol=1e-4, atol=1e-6, msg=message
    )
    assert_unchanged(before, s.clean, what="the batch")


def tracker_life_cycle(s: Situation) -> None:
    """A tracker starts, logs and finishes, resumes in the same folder, and finishes after an error."""
    # A tracker must accept every format, and may ignore some.
    pictures = [
        Picture("text", text="x"),
        Picture("vector", svg="<svg xmlns='http://www.w3.org/2000/svg'/>"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        # The second start resumes, and ends with an exception.
        for step, error in ((0, None), (2, RuntimeError("stopped"))):
            tracker = s.build()
            assert isinstance(tracker, Tracker), (
                f"{type(tracker).__name__} is not a Tracker"
            )
            tracker.start(
                Path(folder), {"name": "conformance", "train": {"steps": 4}}, step
            )
            for n in (step + 1, step + 2):
                tracker.log(n, "train", {"loss": 1.0 / n, "grad_norm": float("nan")})
                tracker.log_pictures(n, pictures)
            tracker.finish(error)


WAIT_SECONDS = 60.0
"""Time that a command of an executor may take; a cluster may be busy."""


def commands_run(s: Situation) -> None:
    """Commands run, report exit codes and write their output; one that is stopped ends."""
    if list(s.spec.check()):
        raise NotApplicable("it cannot be used on this machine")
    executor = s.build()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = folder / "result.json"
        (folder / "given.json").write_text("[1]")

        def command(module: str, *arguments: object) -> Command:
            words = tuple(map(str, arguments))
            return Command(module, words, "conformance", folder / "output.txt")

        copying = command("json.tool", folder / "given.json", result)
        if isinstance(executor, Cluster):
            assert len(executor.submit([copying], folder / "jobs")) == 1
            assert _wait(result.exists), "the command was not run"
            # Its job writes into the folder until it ends.
            time.sleep(1)
            return
        assert _code(executor.start(copying)) == 0
        assert result.exists(), "the command was not run"
        assert _code(executor.start(command("json.tool", "missing"))) != 0
        output = folder / "output.txt"
        has_error = output.exists() and b"missing" in output.read_bytes()
        assert has_error, "stderr of a command is not in its output file"
        endless = command("timeit", "-n", 1, "import time; time.sleep(3600)")
        job = executor.start(endless)
        assert job.poll() is None, "a job that runs has an exit code"
        job.stop()
        assert _code(job) != 0


def _code(job: Job) -> int:
    """Wait for the exit code of a job; kill one that goes on."""

    def has_ended() -> bool:
        return job.poll() is not None

    if not _wait(has_ended):
        job.stop(force=True)
        _wait(has_ended)
        raise AssertionError(f"a command did not end in {WAIT_SECONDS:.0f} s")
    code = job.poll()
    assert code is not None, "a job that ended has no exit code"
    return code


def _wait(done: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + WAIT_SECONDS
    while not done() and time.monotonic() < deadline:
        time.sleep(0.05)
    return done()


CHECKS = (
    *checks_of("optimizer", step_changes_weights, parameters_once, resumes),
    *checks_of("optimizer", descends, place="default", examples=2),
    *checks_of("lr-schedule", factor_valid),
    *checks_of("metric", metric_values),
    *checks_of("reward", reward_values),
    *checks_of("tracker", tracker_life_cycle, place="default", examples=1),
    *checks_of("executor", commands_run, place="default", examples=1),
)
