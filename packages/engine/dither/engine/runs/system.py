"""A system with the verbs of its user: sample, decode, evaluate, predict, log-likelihood, save.

Letters: B batch, N samples, L length, M features, D width.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Shaped
from safetensors.torch import save_model
from torch import Tensor
from torch.nn.functional import pad

from dither.registry.config.arguments import require_integers
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import dump, problems_of
from dither.registry.contracts.protocols import Split, TokenProcess
from dither.registry.contracts.records import Clean, State
from dither.registry.files.lookup import is_file
from dither.registry.kinds import SamplerSpec
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.manager import default_catalog

from ..config.experiment import Experiment
from ..config.options import condition_labels, warn_conditions
from ..sampling.session import draw
from ..training.diffusion import Diffusion
from ..training.evaluation import evaluate
from ..training.given_samples import require_ids, samples_of, tensor_of
from ..training.likelihood import LogLikelihood, Method, log_likelihood
from ..training.randomness import (
    Stream,
    mix_seed,
    preserved_generators,
    seed_generators,
)
from .arguments import Labels, labels_by_condition, require_choice
from .bundle import has_assets, pack, space_as_json, write_assets, write_bundle

__all__ = ["Labels", "System", "SystemModel"]

MAX_BATCH = 256
"""Samples of a batch of an evaluation."""


class System(Diffusion):
    """A diffusion system as `dither.load` returns it; `System.build(experiment)` has initial weights.

    `experiment`, `device`, `task`, `process` and `model` are attributes; `save` needs `catalog` and
    `plugin_files` of an experiment with plugin files.
    """

    catalog: Catalog | None = None
    plugin_files: Sequence[Path] = ()
    _drawn: tuple[Tensor, Clean] | None = None
    trained_length: int | None = None
    """Length of samples in training, if those of the experiment have another."""

    def sample(
        self,
        n: int = 1,
        *,
        seed: int = 0,
        batch_size: int | None = None,
        steps: int | None = None,
        sampler: str | Mapping[str, Any] | SamplerSpec | None = None,
        labels: Labels | None = None,
    ) -> Shaped[Tensor, "N L *M"]:
        """Draw n samples, on the CPU: a function of weights, seed, batch size and options.

        Args:
            n: Number of samples.
            seed: Random seed.
            batch_size: Samples drawn together.
            steps: Steps of the sampler.
            sampler: A sampler by name, as a table such as `{"use": "ddim", "eta": 0.5}`, or as a
                Spec; by default that of the experiment, or after a prompt, if that is biased, an
                exact one, with a warning.
            labels: Conditions, such as `{"cell": "K562", "activity": 2.5}`, with a list for one value
                per sample; without the name, of the only condition of the task.

        Raises:
            Refused: The sampler, its options or the labels do not exist or do not fit the model.
        """
        counts: dict[str, tuple[Any, int]] = {"n": (n, 0), "seed": (seed, 0)}
        if batch_size is not None:
            counts["batch_size"] = (batch_size, 1)
        require_integers(**counts)
        like = self.like(n, seed)
        like = replace(like, cond=like.cond | self.label_ids(labels, n))
        if steps is not None or sampler is not None:
            system = self._with_sampler(sampler, steps)
            system = system._given_known(like, keep_sampler=True)
        else:
            system = self._given_known(like, keep_sampler=False)
        samples = draw(system, like, seed, batch_size)
        # Decoding these samples requires the conditions that they were drawn with.
        self._drawn = (samples, like)
        return samples

    def with_length(self, length: int) -> System:
        """Return this system with samples of another length.

        It is the system of an experiment of that length, with these weights: exact for block
        diffusion, each of whose blocks sees earlier ones only. By default no block of a longer
        sample attends to greater distances than in training. Models of whole samples have learned
        shorter ones by `train.random_lengths`.

        Raises:
            Refused: The model draws whole samples, or its weights depend on their length; there is
                no sample of this length.
        """
        require_integers(length=(length, 1))
        if length == self.task.space.length:
            return self
        window = self.trained_length or self.task.space.length
        path = ("model",)
        # A model of a single block has learned from no earlier one.
        whole = self.blocks is None or self.blocks.size >= window
        learned = self.random_lengths and length < window
        if whole and not learned and length != window:
            message = (
                f"{length:,} tokens: the model draws whole samples of {window:,}, "
                "not block by block"
            )
            fix = "train with model.block_size; or for shorter ones, with train.random_lengths"
            raise Refused(message, path, help=fix, code="misfit")

        task = self.task.with_length(length)
        experiment = self._experiment()
        # Also of the experiment that `save` writes.
        changes: dict[str, Any] = {
            "task": experiment.task.model_copy(update={"length": length})
        }
        if length > window:
            changes["sampler"] = experiment.sampler.beyond(window)
        experiment = experiment.model_copy(update=changes)
        system = type(self).build(experiment, self.catalog, task)
        weights = system.model.state_dict()
        for name, weight in self.model.state_dict().items():
            if weights[name].shape != weight.shape:
                message = f"{length:,} tokens: {name} has weights for {window:,} positions only"
                fix = "train without learned positions, with model.block.rope = true"
                raise Refused(message, path, help=fix, code="misfit")
        # Both systems share the weights.
        system.model.load_state_dict(self.model.state_dict(), assign=True)
        system.catalog = self.catalog
        system.plugin_files = self.plugin_files
        system.trained_length = window
        return system.to(self.device).train(self.training)

    def _with_sampler(
        self, sampler: str | Mapping[str, Any] | SamplerSpec | None, steps: int | None
    ) -> System:
        """Return this system with another sampler; Refused if it does not fit."""
        changes: list[dict[str, Any]] = []
        if sampler is not None:
            changes.append({"sampler": sampler})
        if steps is not None:
            changes.append({"sampler": {"steps": steps}})
        experiment = self._changed(*changes)
        system = copy.copy(self)
        # A sampler that is a module is kept in this table, which the copy shares.
        system._modules = dict(self._modules)
        system.sampler = experiment.sampler.build()
        system.experiment = experiment
        return system

    def _changed(self, *changes: Mapping[str, Any]) -> Experiment:
        """Return the experiment with other options of sampling; Refused if they do not fit."""
        experiment = self._experiment()
        for change in changes:
            experiment, document = experiment.changed(change, self.catalog)
        if misfits := list(experiment.check_sampling(self.task.space)):
            raise Refused(problems_of(misfits, document))
        return experiment

    def for_known_tokens(
        self, like: Clean, *, keep_sampler: bool
    ) -> tuple[System, list[str]]:
        """Return this system with a sampler that is right given the known tokens of `like`, and warnings.

        It is this system itself if its samples are right, if `keep_sampler`, or if no sampler fits.
        """
        experiment = self._experiment()
        if self.blocks is not None and bool(self.blocks.known_behind_gap(like).any()):
            line = (
                "known tokens behind a gap are ignored by earlier blocks: samples are biased; "
                "use a model without model.block_size"
            )
            return self, [line]
        # Whole known blocks are clean context.
        if self.blocks is not None and not self.blocks.known_beside_free(like).any():
            return self, []
        misfits = list(experiment.warn_known())
        if not misfits:
            return self, []
        biased = [f"{misfit.message}; {misfit.help}" for misfit in misfits]
        if keep_sampler:
            return self, biased

        # The first one that fits, with the options that it shares with the sampler of the file.
        before = experiment.sampler.model_dump(exclude={"use"}, exclude_unset=True)
        catalog = self.catalog or default_catalog()
        for name in catalog.names("sampler"):
            spec: Any = catalog.find("sampler", name).spec
            if not spec.corrects_known:
                continue
            options = {k: v for k, v in before.items() if k in spec.model_fields}
            try:
                system = self._with_sampler({"use": spec.name, **options}, None)
            except Refused:
                continue
            return system, [_replacement(self, system, set(before) - set(options))]
        return self, biased

    def _given_known(self, like: Clean, *, keep_sampler: bool) -> System:
        """Return the system of `for_known_tokens`; its lines are warnings."""
        if self.experiment is None or not bool(like.known.any()):
            return self
        system, lines = self.for_known_tokens(like, keep_sampler=keep_sampler)
        for line in lines:
            warnings.warn(line, stacklevel=3)
        return system

    def label_ids(
        self, labels: Labels | None, n: int
    ) -> dict[str, Shaped[Tensor, " N"]]:
        """Return labels of n samples as integers, and numbers; Refused for unknown ones.

        Numbers outside the training data, and what the model ignores, are warned of.
        """
        ids = {}
        by_condition = labels_by_condition(labels, self.task.space.conditions, n)
        if not by_condition:
            # A system that was built without an experiment has no facts.
            return {}
        facts = self._experiment().model.facts()
        for condition, of_samples in by_condition.items():
            # Each label is looked up once, as that validates the experiment.
            numbers = {label: self._label_id(condition, label) for label in of_samples}
            ids[condition] = torch.tensor([numbers[label] for label in of_samples])
            # One warning at each end, however many numbers are beyond it
            for value in {min(numbers.values()), max(numbers.values())}:
                requested = {condition: value}
                for misfit in warn_conditions(requested, self.task.space, facts):
                    warnings.warn(misfit.message, stacklevel=3)
        return ids

    def _label_id(self, condition: str, label: float | str) -> float:
        sample = {"cond": {condition: label}, "guidance": None}
        experiment = self._changed({"sample": sample})
        return condition_labels(experiment.sample, self.task.space)[condition]

    def decode(self, samples: Any, like: Clean | None = None) -> Any:
        """Return samples `N L *M` in the terms of their task: texts, plans as `Diagram`, a table of regions.

        `like` are the templates they were drawn from: by default those of the latest `sample` if
        `samples` are its result, else those of seed 0.
        """
        # Compared by identity, so before a conversion.
        if like is None and self._drawn is not None and self._drawn[0] is samples:
            like = self._drawn[1]
        space = self.process.space
        samples = samples_of(space, samples)
        require_ids(space, samples)
        if like is None:
            like = self.like(len(samples), 0)
            # Text may be shorter than a sample.
            length = samples.shape[1]
            missing = like.valid.shape[1] - length
            if missing:
                samples = pad(samples, (0, missing))
                like = replace(like, valid=pad(like.valid[:, :length], (0, missing)))
        # A task must not change the samples of the caller.
        return self.task.decode(samples.clone(), like.apply(torch.clone))

    def evaluate(
        self, split: Split = "valid", samples: int = 1024, seed: int = 0
    ) -> dict[str, float]:
        """Return loss and metrics on the first samples of a split, as `dither evaluate` does."""
        require_choice("split", split, get_args(Split))
        require_integers(samples=(samples, 1), seed=(seed, 0))
        metrics = evaluate(
            self,
            samples=samples,
            batch_size=min(samples, MAX_BATCH),
            seed=seed,
            split=split,
        )
        return metrics or {}

    def predict(self, x: Any, *, seed: int = 0, **labels: str) -> Any:
        """Return the task's predictions for inputs of the user, both in the units of the data.

        For get-region: `system.predict(motifs, cell="K562")`, motifs `N L M`, returns `N L K`.
        Refused if the task does not implement `predict_values`.
        """
        return self.task.predict_values(SystemModel(self, seed), x, **labels)

    def log_likelihood(
        self,
        ids: Any,
        known: Any = None,
        samples: int = 64,
        seed: int = 0,
        labels: Labels | None = None,
        *,
        method: Method = "bound",
        steps: int = 100,
        bins: Float[Tensor, " M"] | None = None,
    ) -> LogLikelihood:
        """Return lower bounds on the log-likelihood of ids given the `known` ones, in nats, with 95 % intervals.

        Of features, under process "gaussian" or "flow-matching" and loss "mse", it is a probability
        of columns that the task knows to be quantised, such as pixels, and a density of others as
        the model receives them. Where the task standardises these, their log p is larger by
        log(standard deviation) than in the units of the data.

        Args:
            ids: Samples `B L` or one sample `L`, of integers; features `B L M`; or a batch of the
                task.
            known: Mask of given values.
            samples: Number of draws of noise for each row; under "ode" of probes, as many as values
                for an exact divergence.
            seed: Seed of these draws.
            labels: Conditions, as of `sample`.
            method: "bound", or "ode" for the density under the probability flow, no bound.
            steps: Of the solver of "ode".
            bins: Distance of the values of each column, 0 where it is continuous; by default those
                of the task.
        """
        require_integers(samples=(samples, 1), seed=(seed, 0), steps=(steps, 1))
        require_choice("method", method, get_args(Method))
        ids = ids if isinstance(ids, Clean) else tensor_of(ids)
        cond = None
        if labels is not None:
            x0 = ids.x0 if isinstance(ids, Clean) else ids
            cond = self.label_ids(labels, 1 if x0.ndim == 1 else len(x0))
        return log_likelihood(
            self,
            ids,
            known,
            samples,
            seed,
            cond=cond,
            method=method,
            steps=steps,
            bins=bins,
        )

    def save(self, folder: str | Path) -> Path:
        """Write weights and experiment into a new folder, which `dither.load` reads; return its path.

        It has what `dither export` writes. Refused if the folder exists.
        """
        folder = Path(folder)
        experiment = self._experiment()
        catalog = self.catalog or default_catalog()
        bundle = pack(dump(experiment, catalog), catalog)
        files = self._plugin_files(experiment)
        others = [name for name in experiment.plugins if not name.endswith(".py")]
        bundle.tree["plugins"] = [f"plugins/{file.name}" for file in files] + others

        def assets(folder: Path) -> None:
            if has_assets(experiment):
                write_assets(self.task, folder)

        write_bundle(
            folder,
            bundle,
            weights=lambda path: save_model(self.model, str(path)),
            assets=assets,
            asset_option=experiment.task.asset_option,
            plugins=files,
            space=space_as_json(self.task.space),
            trained_length=self.trained_length,
        )
        return folder

    def _plugin_files(self, experiment: Experiment) -> Sequence[Path]:
        if self.plugin_files:
            return self.plugin_files
        files = [Path(name) for name in experiment.plugins if name.endswith(".py")]
        for number, file in enumerate(files):
            if not is_file(file):
                message = f"plugin file {file} does not exist in the working directory"
                path = ("plugins", number)
                raise Refused(Problem(message, path, code="file-not-found"))
        return files

    def _experiment(self) -> Experiment:
        if self.experiment is None:
            hint = "build it with Diffusion.build(experiment)"
            message = "this system was built without an experiment"
            raise Refused(Problem(message, help=hint, code="usage"))
        return self.experiment


class SystemModel:
    """A system as the `TrainedModel` that the methods and commands of its task receive."""

    def __init__(
        self, system: Diffusion, seed: int = 0, *, keep_sampler: bool = False
    ) -> None:
        self.system = system.eval()
        self.seed = seed
        self.keep_sampler = keep_sampler
        self.seeds = (mix_seed(seed, number) for number in count())
        self.task = system.task

    @property
    def is_autoregressive(self) -> bool:
        blocks = self.system.blocks
        process = self.system.process
        single = blocks is not None and blocks.size == 1
        return single and isinstance(process, TokenProcess) and process.absorbing

    def sample(
        self,
        like: Clean,
        seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Shaped[Tensor, "N L *M"]:
        """Draw one sample for each row; without a seed, each call has random numbers of its own."""
        system = self.system
        if options:
            assert isinstance(system, System)
            system = system._with_sampler(options, None)
        if isinstance(system, System):
            system = system._given_known(like, keep_sampler=self.keep_sampler)
        return draw(system, like, next(self.seeds) if seed is None else seed)

    def log_likelihood(
        self,
        ids: Shaped[Tensor, "B L"],
        known: Bool[Tensor, "B L"] | None = None,
        samples: int = 64,
        seed: int = 0,
    ) -> LogLikelihood:
        """Return lower bounds on the log-likelihood of ids; see `System.log_likelihood`."""
        return log_likelihood(self.system, ids, known, samples, seed)

    def mean(self, clean: Clean) -> Float[Tensor, "B L M"]:
        clean, state, t = self._start(clean)
        x0: Tensor = self.system.denoise(state, t, clean).x0
        return x0.cpu()

    def log_clean(self, clean: Clean) -> Float[Tensor, "B L V"]:
        clean, state, t = self._start(clean)
        context = self.system.context(clean)
        log: Tensor = self.system.denoise(state, t, clean, context=context).log_clean()
        return log.cpu()

    def hidden(self, clean: Clean) -> Float[Tensor, "B L D"]:
        clean, state, t = self._start(clean)
        with torch.no_grad():
            return self.system.call(self.system.trunk, state, t, clean).float().cpu()

    def _start(self, clean: Clean) -> tuple[Clean, State, Float[Tensor, " B"]]:
        device = self.system.device
        clean = clean.to(device)
        process = self.system.process
        time = 1.0
        if process.fixed_time is not None:
            time = process.fixed_time
        t = torch.full((len(clean.valid),), time, device=device)
        # A prediction must not change the random numbers that the caller draws later.
        with preserved_generators(device):
            seed_generators(device, Stream.DRAWING, self.seed)
            return clean, process.prior(clean), t


def _replacement(before: System, after: System, dropped: Collection[str]) -> str:
    """Return the note about another sampler for known tokens."""
    experiment = before._experiment()
    name = experiment.sampler.name
    sampler = after._experiment().sampler
    line = (
        f'sampler "{sampler.name}" instead of "{name}", which is biased given known tokens '
        f'under process "{experiment.process.name}": {sampler.known_cost()} times the model calls'
    )
    if dropped:
        line += f", without {', '.join(sorted(dropped))}"
    return f"{line}; --set sampler.use={name} keeps it"
