"""Write a plugin (the example of a kind under another name, with packaging and a test), and run the conformance kit."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import keyword
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.kinds import KINDS
from dither.registry.plugins.manager import load_plugins

__all__ = ["Names", "check_names", "example_file", "render", "run_kit", "write_plugin"]

HERE = Path(__file__).parent
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
MAX_NAME = 40
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
    "metric": {"evaluate": 'metrics = ["$name"]'},
    "tracker": {"tracking": '\n[tracking]\nuse = ["$name"]'},
}
"""Lines of the experiment that differ for each kind."""


@dataclass(frozen=True)
class Names:
    """The names that follow from the name of a plugin and the kind of its component."""

    name: str
    kind: str

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


def check_names(names: Names, plugins: Collection[str], components: Collection[str]) -> None:
    """Refuse an unknown kind, and a name that is malformed, or taken by a plugin or a component of the kind."""
    name = names.name
    kind = names.kind
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS, f"kinds: {', '.join(KINDS)}")
        raise Refused(Problem(f'unknown kind "{kind}"', help=hint, code="unknown-value"))
    reserved = any(map(keyword.iskeyword, (name, name.capitalize()))) or keyword.issoftkeyword(name)
    if (
        re.match("dither(-|$)", name)
        or reserved
        or len(name) > MAX_NAME
        or not NAME.fullmatch(name)
    ):
        hint = (
            f'use lower-case words joined by "-", starting with a letter, at most {MAX_NAME} characters, no Python '
            'keyword, without the prefix "dither-"'
        )
        raise Refused(Problem(f'invalid plugin name "{name}"', help=hint))
    distributions = {dist.name for dist in importlib.metadata.distributions()}
    for what, taken in (
        ("plugin", name in plugins),
        ("distribution", names.distribution in distributions),
    ):
        if taken:
            raise Refused(f'{what} "{name}" is installed already', code="duplicate")
    if name in components:
        message = f'{kind} "{name}" is registered already; its short name would become ambiguous'
        raise Refused(message, code="duplicate")


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


def example_file(kind: str) -> Path:
    """Return the file with the example of a kind."""
    return next((HERE / "examples").rglob(f"{kind.replace('-', '_')}.py"))


def _plugin_text(names: Names) -> str:
    """Return the example of a kind under other names."""
    text = example_file(names.kind).read_text(encoding="utf-8")
    return text.replace(f"example-{names.kind}", names.name).replace(
        _camel(f"example-{names.kind}"), names.spec
    )


def render(names: Names) -> dict[str, str]:
    """Return the text of every file by its path in the package."""
    pins = ["dither-registry>=0.1", *(["dither-tasks>=0.1"] if names.kind == "data" else []), *PINS]
    lines = (
        dict.fromkeys(("condition", "train", "evaluate", "tracking"), "")
        | EXPERIMENT
        | USES[names.kind]
    )
    values = {key: Template(line).substitute(name=names.name) for key, line in lines.items()}
    experiment = _fill("experiment.toml", name=names.name, **values)
    values = {
        "name": names.name,
        "kind": names.kind,
        "distribution": names.distribution,
        "module": names.module,
    }
    return {
        "pyproject.toml": _fill("pyproject.toml", dependencies=json.dumps(pins)[1:-1], **values),
        "README.md": _fill("README.md", **values),
        ".gitignore": _fill("gitignore"),
        "experiment.toml": re.sub(
            r"\n{2,}(?=[a-z])", "\n", re.sub(r"\n{3,}", "\n\n", experiment)
        ).rstrip()
        + "\n",
        f"{names.module}/__init__.py": _plugin_text(names),
        f"{names.module}/py.typed": "",
        "tests/test_conformance.py": _fill("test_conformance.py", **values),
    }


def _fill(file: str, **values: str) -> str:
    return Template((HERE / "files" / f"{file}.txt").read_text(encoding="utf-8")).substitute(values)


def write_plugin(names: Names, into: Path, single_file: bool = False) -> Path:
    """Write the package into a new folder of `into`, or only NAME.py; return its path. Refused if it cannot be."""
    if single_file:
        return _write(into, f"{names.name}.py", {"": _plugin_text(names)})
    return _write(into, names.distribution, render(names))


def _write(into: Path, name: str, texts: Mapping[str, str]) -> Path:
    """Write all files or none; nothing is overwritten."""
    if not into.is_dir():
        raise Refused(f"not a folder: {into}", code="file-not-found")
    target = into / name
    if target.exists() or target.is_symlink():
        raise Refused(f"{target} exists already", code="file-exists")
    temporary = into / f".{name}-{secrets.token_hex(4)}"
    try:
        for path, text in texts.items():
            (temporary / path).parent.mkdir(parents=True, exist_ok=True)
            (temporary / path).write_text(text, encoding="utf-8")
        temporary.rename(target)
    except OSError as error:
        raise Refused(
            f"cannot write {target}: {error.strerror or error}", code="unwritable-file"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target


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


def run_kit(plugin: str, expected: Iterable[str] = ()) -> int:
    """Run the kit over an installed plugin or a file; return 0 if each check passed or is `expected` to fail, else 1.

    Refused if the kit or the plugin is unusable, or a text of `expected` is not
    `kind:name-check=reason`.
    """
    matches = {text: EXPECTED.fullmatch(text) for text in expected}
    failures = {
        (match["component"], match["check"]): match["reason"] for match in matches.values() if match
    }
    hint = "write KIND:NAME-CHECK=REASON, such as 'block:wavelet-rows_independent=mixes the batch on purpose'"
    if malformed := [text for text, match in matches.items() if match is None]:
        texts = [f'--expect "{text}": not a check with a reason' for text in malformed]
        raise Refused([Problem(text, help=hint, code="usage") for text in texts])
    if importlib.util.find_spec("dither.testing") is None:
        kit = Path(__file__).parents[4] / "testing"  # in a checkout
        here = (kit / "pyproject.toml").is_file()
        hint = (
            f"python -m pip install -e {kit}"
            if here
            else "install dither-testing from where dither was installed"
        )
        raise Refused(
            Problem("the conformance kit is not installed", help=hint, code="missing-dependency")
        )
    files = [Path(plugin).absolute()] if plugin.endswith(".py") else []
    plugin = files[0].stem.replace("_", "-") if files else plugin
    plugins = load_plugins(files=files)
    plugins.request(plugin)
    if not plugins.catalog.count(plugin):
        raise Refused(
            f'plugin "{plugin}" has hooks but no components to test', code="unknown-component"
        )
    with tempfile.TemporaryDirectory(prefix="dither-test-plugin-") as folder:
        # Its own folder and ini file: no configuration or conftest of the working directory
        # applies.
        (Path(folder) / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        test = TEST.format(plugin=plugin, expected=failures, files=list(map(str, files)))
        (Path(folder) / "test_conformance.py").write_text(test, encoding="utf-8")
        command = [
            sys.executable,
            "-Pm",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "--tb=short",
            "test_conformance.py",
        ]
        return subprocess.run(command, cwd=folder, check=False).returncode
