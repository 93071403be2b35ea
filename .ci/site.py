"""Hooks of mkdocs: pages outside of docs/, the generated reference, and links to files of the repository.

mkdocs build --strict
"""

import inspect
import logging
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

from dither.engine.cli.output_schema import output_schema
from dither.engine.scaffold.package import example_file
from dither.registry.config.errors import CODES
from dither.registry.hookspecs import Hooks
from dither.registry.kinds import KINDS
from dither.testing import CHECKS
from dither.testing.traits import DECLARED_TRAITS, IMPLIED_TRAITS

ROOT = Path(__file__).parents[1]
OUTSIDE = {
    "README.md": "index.md",
    "AGENTS.md": "AGENTS.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "CHANGELOG.md": "CHANGELOG.md",
}
"""Pages of the root and their places in the site."""
LINK = re.compile(r"(?<=\]\()(?!https?:)([^)#]+)")
NOTEBOOK_LINK = re.compile(r'href="(?!\w+:|#|/)([^"#]+\.(?:md|ipynb))(#[^"]*)?"')
COLAB = "https://colab.research.google.com/github"
FIRST_PARAGRAPH = re.compile(r"(?:\n\n|\A)(?!```)([\w*`].*?)(?:\n\n|\Z)", re.DOTALL)
"""The first text of a page that is neither a title nor code."""
LINKED = re.compile(r"\[([^\]]+)\]\([^)]*\)")
summaries: list[str] = []
log = logging.getLogger("mkdocs.site")
merged = tempfile.TemporaryDirectory()


@event_priority(100)  # before mkdocstrings reads its paths
def on_config(config: Any) -> None:
    """Collect the subpackages of dither, which several distributions share, in one folder for mkdocstrings."""
    package = Path(merged.name, "dither")
    ignored = shutil.ignore_patterns("*.pyi", "__pycache__")
    for path in ROOT.glob("packages/*/dither"):
        shutil.copytree(path, package, dirs_exist_ok=True, ignore=ignored)
    config.repo_url = config.repo_url or repository_url()
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [merged.name]


def repository_url() -> str:
    """Return the web address of the remote "origin"; "" if it has none, as that of a local clone."""
    command = ["git", "config", "remote.origin.url"]
    url = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    # git@host:owner/name.git and ssh://git@host/owner/name.git
    url = re.sub(r"^(?:ssh://)?git@([^:/]+)[:/]", r"https://\1/", url)
    return url.removesuffix(".git") if url.startswith("https://") else ""


def on_files(files: Files, config: Any) -> None:
    """Add the pages of the root, the reference, and files of the repository to which pages link."""
    pages = {
        place: (ROOT / name).read_text()
        for name, place in OUTSIDE.items()
        if not (ROOT / "docs" / place).exists()
    }
    pages |= {
        "components.md": components_page(),
        "kinds.md": kinds_page(),
        "hooks.md": hooks_page(),
        "checks.md": checks_page(),
        "errors.md": errors_page(),
        "json.md": json_page(),
    }
    for place, text in pages.items():
        files.append(File.generated(config, place, content=text))

    for file in files.documentation_pages():
        if not file.src_uri.endswith(".md"):
            continue
        for link in LINK.findall(file.content_string):
            path = (origin(file.src_uri).parent / link).resolve()
            place = place_of(path)
            if path.is_file() and files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, content=path.read_bytes()))


def on_pre_page(page: Any, config: Any, files: Files) -> Any:
    """Let the edit link lead to the file of the repository, which a generated page does not have."""
    path = origin(page.file.src_uri)
    page.edit_url = None
    if config.repo_url and path.is_file():
        page.edit_url = f"{config.repo_url}/edit/main/{path.relative_to(ROOT)}"
    return page


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Point links to where their files are in the site; note the first paragraph for llms.txt."""
    if found := FIRST_PARAGRAPH.search(markdown):
        first = LINKED.sub(r"\1", " ".join(found[1].split()))
        summaries.append(f"- [{page.title}]({page.url or 'index.html'}): {first}")
        page.meta.setdefault("description", first.replace("`", ""))
    folder = origin(page.file.src_uri).parent
    up = len(PurePosixPath(page.file.src_uri).parts) - 1

    def moved(match: re.Match[str]) -> str:
        path = (folder / match[1]).resolve()
        if not (path.is_relative_to(ROOT) and path.exists()):
            return match[0]
        return "../" * up + place_of(path)

    return LINK.sub(moved, markdown)


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    """Point links of notebooks, which are converted without mkdocs, to pages; add a link to Colab."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    folder = PurePosixPath(page.file.src_uri).parent

    def moved(match: re.Match[str]) -> str:
        place = posixpath.normpath(f"{folder}/{match[1]}")
        target = files.get_file_from_path(place)
        if target is None:
            return match[0]
        return f'href="{target.url_relative_to(page.file)}{match[2] or ""}"'

    html = NOTEBOOK_LINK.sub(moved, html)
    prefix, _, repository = config.repo_url.partition("github.com/")
    if prefix == "https://":
        url = f"{COLAB}/{repository}/blob/main/docs/{page.file.src_uri}"
        html = f'<p><a href="{url}">Open in Colab</a></p>\n{html}'
    return html


@event_priority(-100)  # after the other plugins have written their files
def on_post_build(config: Any) -> None:
    """Write llms.txt: every page with its first paragraph, for language models; check all links."""
    lines = ["# dither", "", f"> {config.site_description}", "", *summaries]
    text = "\n".join(lines) + "\n"
    Path(config.site_dir, "llms.txt").write_text(text, encoding="utf-8")
    for page, link in broken_links(Path(config.site_dir)):
        log.warning("%s has a broken link: %s", page, link)


def broken_links(site: Path) -> Iterator[tuple[str, str]]:
    """Yield page and address of links within a site whose file or anchor does not exist."""
    pages = {path: Links(path.read_text("utf-8")) for path in site.rglob("*.html")}
    for path, page in pages.items():
        # The page for unknown addresses may be shown anywhere: its links start at the host.
        if path.name == "404.html":
            continue
        for address in sorted(page.addresses):
            url = urlsplit(address)
            if url.scheme or url.netloc:
                continue
            target = (path.parent / unquote(url.path)).resolve()
            if not url.path:
                target = path
            elif target.is_dir():
                target /= "index.html"
            anchors = pages[target].anchors if target in pages else {url.fragment}
            if not target.is_file() or unquote(url.fragment) not in anchors:
                yield path.relative_to(site).as_posix(), address


class Links(HTMLParser):
    """The addresses to which a page links, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: set[str] = set()
        self.anchors = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the attributes that hold addresses and anchors."""
        for name, value in attrs:
            if name in ("href", "src", "srcset"):
                self.addresses.add(value or "")
            elif name in ("id", "name"):
                self.anchors.add(value or "")


def origin(place: str) -> Path:
    """Return the file of the repository that a page of the site comes from."""
    if (ROOT / "docs" / place).exists():
        return ROOT / "docs" / place
    for name, outside in OUTSIDE.items():
        if place == outside:
            return ROOT / name
    return ROOT / "docs" / place


def place_of(path: Path) -> str:
    """Return the place in the site of a file of the repository; code and TOML are shown as text."""
    name = path.relative_to(ROOT).as_posix()
    place = OUTSIDE.get(name, name.removeprefix("docs/"))
    return f"{place}.txt" if path.suffix in (".py", ".toml") else place


def components_page() -> str:
    """Return the options of every component, as `dither list --markdown` prints them."""
    command = [sys.executable, "-m", "experiments.run", "list", "--markdown"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def kinds_page() -> str:
    """List the methods of each kind of component with their arguments and summaries."""
    lines = [
        "# Kinds of components\n",
        "A component is a Spec of one of these kinds: abstract methods must be implemented, the others have",
        "defaults. `check` takes the arguments of `build`. At run time a component follows the protocols of",
        "`dither.registry.contracts.protocols`.",
    ]
    for kind, spec in KINDS.items():
        lines += [f"\n## {kind}\n", inspect.getdoc(spec) or "", ""]
        lines += [
            f"- `{signature(name, method)}`: {summary(method)}"
            for name, method in methods(spec)
        ]
        lines.append(f"- [example](../{example_file(kind).relative_to(ROOT)})")
    return "\n".join(lines) + "\n"


def hooks_page() -> str:
    """List every hook with its exact signature."""
    lines = ["# Hooks\n", "[Write a plugin](plugins.md#hooks) has an example of each."]
    for name, hook in methods(Hooks):
        lines += [
            f"\n## {name}\n",
            f"`{signature(name, hook)}`\n",
            inspect.getdoc(hook) or "",
        ]
    return "\n".join(lines) + "\n"


def checks_page() -> str:
    """List the traits that a component may declare, and the checks of the conformance kit."""
    traits = []
    for kind, meanings in DECLARED_TRAITS.items():
        for trait, meaning in meanings.items():
            traits.append((kind, f"`{trait}`", meaning))
    traits += [("", f"`{trait}`", meaning) for trait, meaning in IMPLIED_TRAITS.items()]
    checks = []
    for check in CHECKS:
        needs = ", ".join(sorted(check.needs))
        checks.append(
            (check.kind, f"`{check.name}`", needs, check.level, check.summary)
        )
    head = ("kind", "check", "needs", "level", "property")
    tables = table(("kind", "trait", "meaning"), traits), table(head, checks)
    return f"# Conformance checks\n\n## Traits\n\n{tables[0]}\n## Checks\n\n{tables[1]}"


def errors_page() -> str:
    """List the codes of all problems."""
    rows = sorted((f"`{code}`", text) for code, text in CODES.items())
    return "# Error codes\n\n" + table(("code", "meaning"), rows)


def json_page() -> str:
    """List the keys of what each command prints with --json."""
    rows = []
    for command, schema in output_schema()["commands"].items():
        definitions = schema.pop("$defs", {})
        rows += [(f"`{command}`", *row) for row in alternatives(schema, definitions)]
    head = ("command", "meaning", "keys")
    return f"# JSON output\n\n[Runs](runs.md#json) says how.\n\n{table(head, rows)}"


def alternatives(
    schema: dict[str, Any], definitions: dict[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield meaning and keys of each type of value that a JSON Schema allows."""
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    for one in schema.get("anyOf", ()):
        yield from alternatives(one, definitions)
    if "items" in schema:
        for meaning, keys in alternatives(schema["items"], definitions):
            yield f"List: {meaning}", keys
    elif "anyOf" not in schema:
        keys = ", ".join(f"`{key}`" for key in schema.get("properties", ())) or "any"
        yield schema.get("description", "").partition("\n")[0], keys


def methods(owner: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public methods that a class defines itself."""
    for name, method in vars(owner).items():
        if (
            inspect.isfunction(method)
            and not name.startswith("_")
            and name != "model_post_init"
        ):
            yield name, method


def signature(name: str, function: Callable[..., Any]) -> str:
    """Return a signature without `self` and the quotes of annotations."""
    exact = inspect.signature(function)
    parameters = list(exact.parameters.values())[1:]
    return f"{name}{exact.replace(parameters=parameters)}".replace("'", "")


def summary(function: Callable[..., Any]) -> str:
    """Return the first line of a docstring."""
    return (inspect.getdoc(function) or "").partition("\n")[0]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append([cell.replace("|", "\\|") for cell in row])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
