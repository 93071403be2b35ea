"""Write the manifests of the plugins in a project: their components, and the result of the kit."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from xml.etree import ElementTree

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import is_file
from dither.registry.plugins.discovery import GROUP, package_folders
from dither.registry.plugins.manager import load_plugins
from dither.registry.plugins.manifest import (
    Kit,
    component_entries,
    write_manifest,
)
from dither.registry.plugins.policy import is_called

from .package import run_kit

__all__ = ["measure_kit", "project_plugins", "sync_manifests"]

REGISTRY = "dither-registry"


def project_plugins(folder: Path) -> tuple[dict[str, str], str]:
    """Return `{plugin: module}` of pyproject.toml in a folder, and the versions of dither it takes.

    There are no plugins without such a file.
    """
    file = folder / "pyproject.toml"
    if not is_file(file):
        return {}, ""
    try:
        project = tomllib.loads(read_text(file)).get("project", {})
        versions = _dither_versions(project.get("dependencies", []))
    except (OSError, ValueError) as error:
        raise Refused(f"{file}: {error}", code="syntax-error") from None
    plugins = project.get("entry-points", {}).get(GROUP, {})
    return plugins, versions


def _dither_versions(requirements: list[str]) -> str:
    """Return the range of versions of dither-registry in a list of requirements."""
    from packaging.requirements import Requirement

    for text in requirements:
        requirement = Requirement(text)
        if is_called(requirement.name, REGISTRY):
            return str(requirement.specifier)
    return ""


def sync_manifests(folder: Path, with_kit: bool) -> list[str]:
    """Write the manifest of each plugin of a project; return a line for each.

    Raises `Refused` if a plugin is not installed from this folder, or fails.
    """
    modules, dither = project_plugins(folder)
    plugins = load_plugins()
    lines = []
    for name, module in modules.items():
        folders = package_folders(EntryPoint(name, module, GROUP))
        inside = [package for package in folders if folder.resolve() in package.parents]
        if not inside:
            message = f'plugin "{name}" is not installed from {folder.resolve()}'
            hint = "python -m pip install --no-deps -e ."
            raise Refused(Problem(message, help=hint, code="unknown-plugin"))
        plugins.request(name)
        kit = measure_kit(name) if with_kit else None
        components = component_entries(plugins.catalog, name)
        path = write_manifest(inside[0], name, dither, components, kit)
        lines.append(f"{path}: {len(components)} components")
        if kit is not None:
            lines[-1] += f", kit: {kit}"
    return lines


def measure_kit(name: str, expected: Iterable[str] = ()) -> Kit:
    """Run the conformance kit, whose output goes to stderr."""
    with tempfile.TemporaryDirectory(prefix="dither-kit-") as folder:
        report = Path(folder) / "report.xml"
        # Any other code than these: it broke off.
        if run_kit(name, expected, report, stdout=2) not in (0, 1):
            message = f'the conformance kit did not finish for plugin "{name}"'
            raise Refused(message, code="plugin-failed")
        passed = 0
        checks = 0
        for case in ElementTree.parse(report).iter("testcase"):
            outcomes = {result.tag for result in case}
            # A check that does not apply to the component.
            if "skipped" in outcomes:
                continue
            checks += 1
            if outcomes.isdisjoint({"failure", "error"}):
                passed += 1
    return Kit(passed=passed, checks=checks)
