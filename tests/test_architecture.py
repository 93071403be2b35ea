"""Structure of the repository: namespace, import cycles, torch-free listing, forbidden calls."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import networkx
import pytest

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = sorted(path.parent for path in ROOT.glob("packages/*/pyproject.toml"))
PACKAGES = {
    folder.name: next(folder.glob("dither/*/__init__.py")).parent
    for folder in DISTRIBUTIONS
}
SOURCES = sorted(
    path
    for folder in PACKAGES.values()
    for path in folder.rglob("*.py")
    if "examples" not in path.relative_to(folder).parts
)
SOURCES += sorted(path for path in (ROOT / "experiments").rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[2:] if parts[0] == "packages" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_by_string(call: ast.Call) -> set[str]:
    """Our modules named in the arguments of `import_module("NAME")` or `__import__("NAME")`."""
    function = ast.unparse(call.func).rpartition(".")[2]
    if function not in ("import_module", "__import__"):
        return set()
    values = [part.value for argument in call.args for part in ast.walk(argument)
              if isinstance(part, ast.Constant)]  # fmt: skip
    return {
        value
        for value in values
        if isinstance(value, str) and value.startswith("dither")
    }


@cache
def trees():
    """Each source file, its tree, and the absolute names of the modules that it imports, anywhere in it."""
    found = []
    for path in SOURCES:
        tree, names = ast.parse(path.read_text(encoding="utf-8")), set()
        package = module_name(path).split(".")[
            : None if path.name == "__init__.py" else -1
        ]
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = package[: len(package) - node.level + 1] if node.level else []
                name = ".".join([*base, *([node.module] if node.module else [])])
                names |= {name} | {f"{name}.{alias.name}" for alias in node.names}
            elif isinstance(node, ast.Call):
                names |= imported_by_string(node)
        found.append((path, tree, names))
    return found


def test_every_package_is_typed_and_part_of_the_namespace():
    assert set(PACKAGES) == {
        "registry", "core-blocks", "embeddings", "processes", "losses", "tasks", "testing", "engine", "zoo"
    }  # fmt: skip
    for name, package in PACKAGES.items():
        initial = [
            path.name
            for path in package.parent.iterdir()
            if path.suffix in (".py", ".pyi")
        ]
        assert initial == ["__init__.py" if name == "engine" else "__init__.pyi"], (
            f"{name}: {initial}"
        )
        assert (package / "py.typed").is_file(), f"{name}: no py.typed"


def test_no_import_cycles():
    """Imports inside functions and under TYPE_CHECKING count as well."""
    modules = {module_name(path) for path in SOURCES}
    graph = networkx.DiGraph()
    for path, _, names in trees():
        name = module_name(path)
        found = names & modules - {name}
        packages = {
            other
            for other in found
            if any(inner.startswith(f"{other}.") for inner in found)
        }
        graph.add_edges_from((name, other) for other in found - packages)
    assert not [
        sorted(group)
        for group in networkx.strongly_connected_components(graph)
        if len(group) > 1
    ]


def test_no_module_of_ours_is_imported_by_a_string():
    """Except in the tables of a package's `__init__`, which load names on first use."""
    wrong = []
    for path, tree, _ in trees():
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        names = set().union(*map(imported_by_string, calls))
        if path.name != "__init__.py":
            wrong += [f"{shown(path)}: {name}" for name in names]
    assert not wrong, "\n".join(wrong)


def test_the_search_for_imports_by_strings_finds_them():
    code = 'importlib.import_module("dither.a"); import_module(f"dither.{b}"); f("dither.c")'
    found = [imported_by_string(call) for call in ast.walk(ast.parse(code)) if isinstance(call, ast.Call)]  # fmt: skip
    assert set().union(*found) == {"dither.a", "dither."}


def test_specs_and_listings_do_not_import_torch():
    specs = sorted(module_name(path) for path in SOURCES if path.name == "specs.py")
    assert len(specs) >= 6
    light = [
        "",
        ".kinds",
        ".plugins.manager",
        ".plugins.describe",
        ".config.validation",
    ]
    light = [f"dither.registry{name}" for name in light]
    light += [
        "dither.engine",
        "dither.engine.cli.app",
        "dither.engine.cli.catalog_output",
    ]
    code = f"""
import importlib, sys
for name in {[*light, *specs]!r}:
    importlib.import_module(name)
    heavy = [m for m in ("torch", "numpy", "scipy", "sklearn", "matplotlib", "tensorboard") if m in sys.modules]
    assert not heavy, f"{{name}} imports {{heavy}}"
from dither.registry import default_catalog
from dither.registry.plugins.describe import describe
catalog = default_catalog()
for part in catalog.parts():
    describe(part, catalog)
assert "torch" not in sys.modules, "describe imports torch"
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr.strip().splitlines()[-1]


FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "yaml"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
READS_TORCH = "packages/registry/dither/registry/files/weight_files.py"
SAFELY = {"weights_only": "True", "mmap": "True"}
UNPICKLES = {
    "packages/registry/dither/registry/files/restricted_pickle.py": r"_Unpickler|UnpicklingError|TUPLE\d?|INT|LONG\d?",
    "packages/tasks/dither/tasks/bubble_diagram/formats/resplan.py": "UnpicklingError",
    "experiments/floor_plans.py": "dumps",
}
"""Files that may import pickle, and what they may use of it: a base class with a closed find_class, and constants."""


def test_nothing_is_unpickled_or_evaluated_and_nothing_listens():
    wrong = []
    for path, tree, names in trees():
        found = {name.split(".")[0] for name in names} & FORBIDDEN_MODULES
        if shown(path) in UNPICKLES:
            attributes = {
                ast.unparse(node)
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute)
            }
            allowed = re.compile(rf"pickle\.(?:{UNPICKLES[shown(path)]})(?:\..*)?")
            used = {name for name in attributes if name.startswith("pickle.")}
            found -= {"pickle"} if all(map(allowed.fullmatch, used)) else set()
        wrong += [f"{shown(path)} imports {name}" for name in found]
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            options = {
                keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords
            }
            if (
                called == "torch.load"
                and shown(path) == READS_TORCH
                and SAFELY.items() <= options.items()
            ):
                continue  # the only reader of external weights: tensors only, and no pickle outside a zip archive
            if called in FORBIDDEN_CALLS or called in (
                "torch.load",
                "torch.save",
                "os.system",
            ):
                wrong.append(f"{shown(path)}:{node.lineno} calls {called}")
            allowed = {keyword.arg: keyword.value for keyword in node.keywords}
            if (
                called.endswith(".load")
                and ast.unparse(allowed.get("allow_pickle", ast.Constant(False)))
                != "False"
            ):
                wrong.append(f"{shown(path)}:{node.lineno} unpickles")
            if ast.unparse(allowed.get("shell", ast.Constant(False))) != "False":
                wrong.append(f"{shown(path)}:{node.lineno} runs a shell")
    assert not wrong, "\n".join(wrong)
    assert not [
        shown(path)
        for path in SOURCES
        if SERVERS.search(path.read_text(encoding="utf-8"))
    ]


SERVERS = re.compile(
    r"^\s*(?:import|from) (?:http\.server|socketserver|wsgiref|xmlrpc|flask|fastapi|uvicorn|tornado)\b"
    r"|^\s*(?:import|from) aiohttp(?:\.| import )web\b"
    r"|\.(?:bind|listen|create_server|serve_forever)\(",
    re.MULTILINE,
)


def tracked_texts():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in sorted(filter(None, listed.stdout.decode().split("\0"))):
        path = ROOT / name
        if (
            path.is_file()
            and path.stat().st_size <= 2_000_000
            and b"\0" not in (content := path.read_bytes())
        ):
            yield name, content.decode("utf-8")


# Written in pieces, so that this file does not hold what it looks for.
HOMES = "|".join(
    [
        "/ho" + "me/",
        "/Use" + "rs/",
        "/ro" + "ot/",
        "/wo" + "rk/",
        r"[A-Z]:\\Use" + "rs",
        "/m" + "nt/",
        "/op" + "t/",
    ]
)
HOSTS = "|".join([
    "py" + r"pi\.org", "pythonho" + r"sted\.org", "py" + r"pi\.python", "ana" + r"conda\.", "artif" + "actory",
    "nex" + "us/repository", r"local" + r"host:\d+", r"\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b(?=[:/])",
])  # fmt: skip
ODD = re.compile(
    rf"(?P<path>(?<![\w.]){HOMES})|(?P<host>{HOSTS})|(?P<debt>\b(?:TO"
    + r"DO|FIX"
    + r"ME|XX"
    + r"X)\b)"
)


def test_texts_name_no_machine_and_no_package_host():
    wrong = []
    for name, text in tracked_texts():
        for number, line in enumerate(text.splitlines(), 1):
            for match in ODD.finditer(line):
                wrong.append(f"{name}:{number}: {match.lastgroup} {match[0]}")
    assert not wrong, "\n".join(wrong)


PART_OF = {
    "pydantic_core": "pydantic",
    "annotated_types": "pydantic",
    "umap": "umap-learn",
}


@pytest.mark.slow
def test_dependencies_are_declared():
    """Everything that a package imports anywhere is among its dependencies."""
    distributions = importlib.metadata.packages_distributions()
    wrong = []
    for name, package in PACKAGES.items():
        project = tomllib.loads((package.parents[1] / "pyproject.toml").read_text())[
            "project"
        ]
        extras = [
            item
            for items in project.get("optional-dependencies", {}).values()
            for item in items
        ]
        declared = {
            re.split(r"[<>=!~\[ ;]", item)[0].lower().replace("_", "-")
            for item in [*project["dependencies"], *extras]
        }
        for path, _, names in trees():
            tops = {found.split(".")[0] for found in names if package in path.parents}
            for top in tops - sys.stdlib_module_names - {"dither"}:
                needed = {
                    PART_OF.get(top, dist.lower().replace("_", "-"))
                    for dist in distributions.get(top, [top])
                }
                if not needed & declared:
                    wrong.append(
                        f"{shown(path)} imports {top}, which {name}/pyproject.toml does not name"
                    )
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_the_engine_knows_no_task():
    """No value of its code is a word of a task, but a default that files rely on; docstrings may give examples."""
    default = (PACKAGES["engine"] / "config/options.py", "cell")
    words = re.compile(r"\b(cell|room|outline|infill|region|chromosome|motif)s?\b")
    wrong = []
    for path, tree, _ in trees():
        if not path.is_relative_to(PACKAGES["engine"]) or "scaffold" in path.parts:
            continue
        # Docstrings, and names in __all__.
        ignored = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Expr):
                ignored.add(node.value)
            elif isinstance(node, ast.Assign):
                is_names = ast.unparse(node.targets[0]) == "__all__"
                ignored |= set(ast.walk(node.value)) if is_names else set()
        for node in ast.walk(tree):
            value = node.value if isinstance(node, ast.Constant) else None
            if not isinstance(value, str) or node in ignored:
                continue
            if words.search(value) and (path, value) != default:
                wrong.append(f"{shown(path)}:{node.lineno}: {value}")
    assert not wrong, "\n".join(wrong)
