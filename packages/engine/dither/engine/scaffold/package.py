"""Write a plugin: the example of a kind under another name; and run the conformance kit."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import keyword
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from string import Template

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder, atomic_write
from dither.registry.files.lookup import exists, is_file, is_folder
from dither.registry.files.write_errors import unwritable
from dither.registry.kinds import known_kind
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.discovery import import_file
from dither.registry.plugins.manager import load_plugins
from dither.registry.plugins.manifest import component_entries, write_manifest

__all__ = ["Names", "check_names", "example_file", "render", "run_kit", "write_plugin"]

HERE = Path(__file__).parent
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_NAME = 40
DITHER = ">=0.1"
"""The versions of dither that a new plugin is written for."""
PINS = ("pydantic>=2.8,<3", "torch>=2.11")
EXPERIMENT = {
    "task": 'task = { use = "language-model", length = 32, tokenizer = "chars" }',
    "process": 'process = "absorbing"',
    "loss": 'loss = "masked-ce"',
    "sampler": 'sampler = { use = "ancestral", steps = 16 }',
    "model": 'use = "denoiser"',
    "embedding": 'embedding = "tokens"',
    "block": 'block = { use = "adaln-zero", heads = 2, rope = true }',
    "head": 'head = "tokens"',
}
"""Lines of the experiment of a plugin."""
FEATURES = {
    "task": 'task = { use = "$name", length = 8 }',
    "process": 'process = { use = "gaussian", schedule = "cosine" }',
    "loss": 'loss = "mse"',
    "sampler": 'sampler = { use = "ddim", steps = 16 }',
    "embedding": 'embedding = { use = "regions", position = "sinusoid" }',
    "block": 'block = { use = "adaln-zero", heads = 2 }',
    "head": 'head = "features"',
}
"""Lines of the experiment of a task over features."""
ABOUT = {
    "component": "A tiny language model on the Python documentation, with a component of this plugin.",
    "tokens": "A tiny model of the sequences of ids of this plugin.",
    "features": "A tiny model of the numbers of this plugin.",
}
"""Descriptions of the experiment: with a component in a task of ours, or of a task over either data."""
SINUSOID = {"embedding": 'embedding = { use = "tokens", position = "sinusoid" }'}
USES = {
    "task": {"task": 'task = { use = "$name", length = 8, ids = 11 }'},
    "data": {"task": EXPERIMENT["task"].replace(" }", ', data = "$name" }')},
    "process": {"process": 'process = { use = "$name", schedule = "cosine" }'},
    "schedule": {
        "process": 'process = { use = "absorbing", schedule = { use = "$name", eps = 1e-3 } }'
    },
    "sampler": {"sampler": 'sampler = { use = "$name", steps = 16 }'},
    "loss": {"loss": 'loss = { use = "$name", gamma = 2.0 }'},
    "model": {"model": 'use = "$name"', "block": "", **SINUSOID},
    "block": {"block": 'block = { use = "$name", ratio = 2.0 }', **SINUSOID},
    "embedding": {"embedding": 'embedding = { use = "$name", rank = 8 }'},
    "position": {
        "embedding": 'embedding = { use = "tokens", position = { use = "$name", waves = 8 } }',
        "block": 'block = { use = "adaln-zero", heads = 2 }',
    },
    "condition": {"condition": 'condition = { use = "$name", hidden = 32 }'},
    "head": {"head": 'head = { use = "$name", hidden = 32 }'},
    "optimizer": {"train": 'optimizer = { use = "$name", lr = 1e-3 }'},
    "lr-schedule": {
        "train": 'optimizer = { use = "adamw", lr = 3e-3 }\nlr_schedule = { use = "$name", warmup = 10 }'
    },
    "reward": {
        "sampler": 'sampler = { use = "reward-smc", reward = { use = "$name", weight = 2.0 } }'
    },
    "metric": {"evaluate": 'metrics = ["$name"]'},
    "tracker": {"tracking": '\n[tracking]\nuse = ["$name"]'},
    "executor": {
        "tracking": "\n# dither sweep experiment.toml --sweep 'seed=[0, 1]' --executor $name"
    },
}
"""Lines of the experiment that differ for each kind."""


@dataclass(frozen=True)
class Names:
    """The names that follow from the name of a plugin and the kind of its component.

    `features` selects a task whose samples are numbers in place of tokens.
    """

    name: str
    kind: str
    features: bool = False

    @property
    def distribution(self) -> str:
        """Name for pip, and of the folder."""
        return f"dither-{self.name}"

    @property
    def module(self) -> str:
        """Name for import."""
        return self.distribution.replace("-", "_")

    @property
    def spec(self) -> str:
        """Name of the class: `WaveletBlock` for the block "wavelet", and for "wavelet-block"."""
        return _camel(self.name.removesuffix(f"-{self.kind}") + f"-{self.kind}")


def check_names(
    names: Names, plugins: Collection[str], components: Collection[str]
) -> None:
    """Refuse an unknown kind, and a name that is malformed or taken."""
    name = names.name
    kind = names.kind
    if names.features and kind != "task":
        message = f"--features is an option of --kind task, not of {kind}"
        raise Refused(message, code="no-effect")
    known_kind(kind)
    reserved = name.startswith("dither-") or name == "dither" or _is_keyword(name)
    if reserved or len(name) > MAX_NAME or not NAME.fullmatch(name):
        hint = 'use lower-case words joined by "-", starting with a letter, '
        hint += f"at most {MAX_NAME} characters, no Python keyword, without the prefix dither-"
        raise Refused(Problem(f'invalid plugin name "{name}"', help=hint))
    if name in plugins:
        raise Refused(f'plugin "{name}" is installed already', code="duplicate")
    if any(importlib.metadata.distributions(name=names.distribution)):
        message = f'distribution "{names.distribution}" is installed already'
        raise Refused(message, code="duplicate")
    if name in components:
        message = f'{kind} "{name}" is registered already; its short name would become ambiguous'
        raise Refused(message, code="duplicate")


def _is_keyword(name: str) -> bool:
    # A class is named after the component, such as `None` after "none".
    words = (name, name.capitalize())
    return any(map(keyword.iskeyword, words)) or keyword.issoftkeyword(name)


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def example_file(kind: str, features: bool = False) -> Path:
    """Return the file with the example of a kind, or of a task over features."""
    name = "feature_task" if features else kind.replace("-", "_")
    return next((HERE / "examples").rglob(f"{name}.py"))


def _plugin_text(names: Names) -> str:
    """Return the example of a kind under other names."""
    example = f"example-{names.kind}"
    file = example_file(names.kind, names.features)
    text = file.read_text(encoding="utf-8")
    return text.replace(example, names.name).replace(_camel(example), names.spec)


def render(names: Names) -> dict[str, str]:
    """Return the text of every file by its path in the package."""
    pins = [f"dither-registry{DITHER}"]
    if names.kind == "data":
        pins.append("dither-tasks>=0.1")
    pins += PINS
    values = {
        "name": names.name,
        "kind": names.kind,
        "distribution": names.distribution,
        "module": names.module,
        # Without the brackets, which are in the template.
        "dependencies": json.dumps(pins)[1:-1],
    }
    return {
        "pyproject.toml": _fill("pyproject.toml", **values),
        "README.md": _fill("README.md", **values),
        ".gitignore": _fill("gitignore"),
        ".github/workflows/conformance.yml": _fill("conformance.yml", **values),
        ".github/workflows/release.yml": _fill("release.yml", **values),
        "experiment.toml": _experiment(names),
        f"{names.module}/__init__.py": _plugin_text(names),
        f"{names.module}/py.typed": "",
        "tests/test_conformance.py": _fill("test_conformance.py", **values),
    }


def _experiment(names: Names) -> str:
    """Return an experiment with the component; lines of other kinds are those that fit it."""
    lines = dict.fromkeys(("condition", "train", "evaluate", "tracking"), "")
    lines |= EXPERIMENT | USES[names.kind]
    about = ABOUT["component"]
    if names.kind == "task":
        about = ABOUT["tokens"]
    if names.features:
        about = ABOUT["features"]
        lines |= FEATURES
    values = {
        key: Template(line).substitute(name=names.name) for key, line in lines.items()
    }
    text = _fill("experiment.toml", name=names.name, about=about, **values)
    # Lines without a value leave gaps: none inside a table, one between tables.
    text = re.sub(r"\n{3,}", "\n\n", text)
    text = re.sub(r"\n{2,}(?=[a-z])", "\n", text)
    return text.rstrip() + "\n"


def _fill(file: str, **values: str) -> str:
    text = (HERE / "files" / f"{file}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(values)


def write_plugin(names: Names, into: Path, single_file: bool = False) -> Path:
    """Write the package into a new folder of `into`, or only NAME.py; return its path.

    Raises:
        Refused: The path exists, or cannot be written.
    """
    if not is_folder(into):
        raise Refused(f"not a folder: {into}", code="file-not-found")
    target = into / (f"{names.name}.py" if single_file else names.distribution)
    # A dangling link does not exist, but would be replaced.
    if exists(target) or target.is_symlink():
        raise Refused(f"{target} exists already", code="file-exists")
    try:
        if single_file:
            with atomic_write(target) as temporary:
                temporary.write_text(_plugin_text(names), encoding="utf-8")
            return target
        with atomic_folder(target, overwrite=False) as temporary:
            for path, text in render(names).items():
                (temporary / path).parent.mkdir(exist_ok=True, parents=True)
                (temporary / path).write_text(text, encoding="utf-8")
            _write_manifest(temporary / names.module, names)
    except (OSError, ValueError) as error:
        raise unwritable(target, error) from None
    return target


def _write_manifest(package: Path, names: Names) -> None:
    # The package is not installed, so that its file is imported.
    module, _ = import_file(package / "__init__.py")
    catalog = Catalog()
    catalog.add(names.name, module.register_components())
    components = component_entries(catalog, names.name)
    write_manifest(package, names.name, DITHER, components)


EXPECTED = re.compile(
    r"(?P<component>[a-z0-9-]+:[a-z0-9-]+)-(?P<check>[a-z_0-9]+)=(?P<reason>.*\S.*)"
)
TEST = '''"""Written by `dither plugins test`."""

from pathlib import Path

import pytest

from dither.registry.plugins.manager import load_plugins
from dither.testing import conformance

catalog = load_plugins(files=map(Path, {files!r})).catalog
try:
    parametrized = conformance.parametrize(plugin={plugin!r}, expected_failures={expected!r}, catalog=catalog)
except ValueError as error:
    pytest.exit(str(error), returncode=2)


@parametrized
def test_conformance(case):
    case.run()
'''


def run_kit(
    plugin: str,
    expected: Iterable[str] = (),
    report: Path | None = None,
    stdout: int | None = None,
) -> int:
    """Run the kit over an installed plugin or a file; write a JUnit `report`.

    Its output goes to the file descriptor `stdout`.

    Returns 0 if each check passed or is `expected` to fail, 1 if one failed, and another number if
    the kit broke off.

    Raises:
        Refused: The kit or the plugin is unusable, or a text of `expected` is not
            `kind:name-check=reason`.
    """
    failures = _expected_failures(expected)
    if importlib.util.find_spec("dither.testing") is None:
        hint = "install dither-testing from where dither was installed"
        # In a checkout, the kit is a neighbour of this package.
        checkout = Path(__file__).parents[4] / "testing"
        if is_file(checkout / "pyproject.toml"):
            hint = f"python -m pip install -e {checkout}"
        message = "the conformance kit is not installed"
        raise Refused(Problem(message, help=hint, code="missing-dependency"))

    files = []
    if plugin.endswith(".py"):
        files.append(Path(plugin).absolute())
        plugin = files[0].stem.replace("_", "-")
    plugins = load_plugins(files=files)
    plugins.request(plugin)
    if not plugins.catalog.count(plugin):
        message = f'plugin "{plugin}" has hooks but no components to test'
        raise Refused(message, code="unknown-component")

    with tempfile.TemporaryDirectory(prefix="dither-test-plugin-") as folder:
        # Its own folder and ini file: no configuration or conftest of the working directory
        # applies.
        (Path(folder) / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        test = TEST.format(
            plugin=plugin, expected=failures, files=list(map(str, files))
        )
        (Path(folder) / "test_conformance.py").write_text(test, encoding="utf-8")
        # A cache in the temporary folder would be lost.
        options = ["-q", "-p", "no:cacheprovider", "--tb=short", "test_conformance.py"]
        if report is not None:
            options.append(f"--junitxml={report}")
        command = [sys.executable, "-Pm", "pytest", *options]
        done = subprocess.run(command, cwd=folder, stdout=stdout, check=False)
        return done.returncode


def _expected_failures(texts: Iterable[str]) -> dict[tuple[str, str], str]:
    """Parse `kind:name-check=reason`."""
    failures: dict[tuple[str, str], str] = {}
    problems = []
    for text in texts:
        match = EXPECTED.fullmatch(text)
        if match is None:
            message = f'--expect "{text}": not a check with a reason'
            example = "block:wavelet-rows_independent=mixes the batch on purpose"
            hint = f"write KIND:NAME-CHECK=REASON, such as '{example}'"
            problems.append(Problem(message, help=hint, code="usage"))
        else:
            failures[match["component"], match["check"]] = match["reason"]
    if problems:
        raise Refused(problems)
    return failures
