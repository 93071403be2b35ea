"""Reports: complete, self-contained, with one script whose hash the page states; damaged files are listed."""

import base64
import hashlib
import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from dither.engine.reports.pages import write_report
from dither.engine.reports.svg import curve
from dither.engine.runs.run import run
from dither.registry.config.errors import Refused

EVIL = "<script>alert(1)</script>"
FILES = [
    "experiment.toml",
    "manifest.json",
    "metrics.jsonl",
    "resolved.toml",
    "summary.json",
]


class Seen(HTMLParser):
    """Collects tags, URLs and event handlers."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.addresses, self.events = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [
            value
            for name, value in attrs
            if name in ("src", "href", "action", "data", "srcset")
        ]
        self.events += [name for name, _ in attrs if name.startswith("on")]


def seen(page):
    found = Seen(page)
    assert not {"iframe", "object", "embed", "link", "base", "form"} & set(found.tags)
    assert not found.events
    assert all(address.startswith(("data:image/", "#")) for address in found.addresses)
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert (
        found.tags.count("script")
        == page.count("<script")
        == len(scripts)
        == ("data-x=" in page)
    ), "a title inside an SVG is parsed as markup"
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        for script in scripts
    ]
    assert re.findall(r"script-src 'sha256-(.*?)'", page) == digests
    assert ("script-src 'none'" in page) == (not scripts)
    assert "url(" not in page
    assert "@import" not in page
    links = [address[1:] for address in found.addresses if address.startswith("#")]
    assert links
    assert all(page.count(f'<h2 id="{link}">') == 1 for link in links)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def two(runs, load, console, monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    if not any(runs.iterdir()):
        for rate in ("0.02", "0.03"):
            assert (
                run(
                    load(f"train.optimizer.lr={rate}"),
                    runs,
                    ["dither", "run", EVIL],
                    console=console,
                )
                == 0
            )
    return sorted(runs.iterdir())


@pytest.fixture
def copy(two, tmp_path):
    return shutil.copytree(two[0], tmp_path / "copy")


def test_a_page_is_complete_and_self_contained(two, tmp_path):
    page = write_report([two[0]], tmp_path / "page.html").read_text()
    found = seen(page)
    assert found.tags.count("img") == 1
    for text in ("toy-words@1", "chance 0.25", "285", "warmup = 3", "samples"):
        assert text in page
    for name in ("train/loss", "train/lr", "train/grad_norm", "valid/accuracy"):
        assert f"<figcaption>{name}</figcaption>" in page
    metrics = [
        json.loads(line) for line in (two[0] / "metrics.jsonl").read_text().splitlines()
    ]
    last = [line for line in metrics if line["kind"] == "valid"][-1]
    assert f"{last['accuracy']:.5g}" in page
    assert "Missing or damaged" not in page


def test_texts_are_escaped(copy, tmp_path):
    text = (copy / "resolved.toml").read_text()
    (copy / "resolved.toml").write_text(
        text.replace('name = "experiment"', f'name = "{EVIL}"')
    )
    with (copy / "metrics.jsonl").open("a") as file:
        for step in (21, 22):
            file.write(
                json.dumps({"step": step, "kind": f"{EVIL}'\"", EVIL: 1.5}) + "\n"
            )
    samples = next((copy / "samples").iterdir())
    (samples / "words.txt").write_text(f"{EVIL}</pre>")
    (samples / "dot.png").unlink()
    (samples / "dot.svg").write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg">{EVIL}</svg>'
    )
    page = write_report([copy], tmp_path / "page.html").read_text()
    assert any(
        address.startswith("data:image/svg+xml;base64,")
        for address in seen(page).addresses
    )
    assert page.count("&lt;script&gt;") >= 6
    seen(write_report([copy, samples.parents[1]], tmp_path / "both.html").read_text())


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "garbage", "cut", "folder"])
def test_damaged_files_are_listed(copy, tmp_path, name, damage):
    path = copy / name
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes(
            b"\xff\x00[1" if damage == "garbage" else whole[: len(whole) // 2]
        )
    page = write_report([copy], tmp_path / "page.html").read_text()
    seen(page)
    if (name, damage) != ("experiment.toml", "cut"):
        assert re.search(rf"<li>.*{re.escape(name)}", page), page[:3000]
    assert "285" in page or name == "manifest.json"


def test_pages_are_written_atomically_and_of_runs_only(two, tmp_path):
    with pytest.raises(Refused):
        write_report([tmp_path])
    (tmp_path / "page.html").write_text("before")
    with pytest.raises(Refused):
        write_report([two[0]], tmp_path)
    write_report([two[0]], tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]


def test_comparison_lists_the_options_that_differ(two, tmp_path):
    page = write_report(two, tmp_path / "page.html").read_text()
    seen(page)
    differs = page[page.index('id="what-differs"') : page.index('id="curves"')]
    assert re.findall(r"<tr><th title=.*?>(.*?)</th><td>", differs) == [
        "train.optimizer.lr"
    ]
    assert "<span>lr=0.02</span>" in page
    curves = page[page.index('<div class="charts">') : page.index('id="metrics"')]
    ours = [curves.count(f'<g class="s{n} c{n} d0">') for n in (0, 1)]
    assert ours == [curves.count("<svg viewBox")] * 2
    assert ours[0] > 4


def test_many_runs_have_a_row_each(two, tmp_path, monkeypatch):
    full = write_report(two, tmp_path / "full.html").read_text()
    monkeypatch.setattr("dither.engine.reports.pages.MANY", 1)
    page = write_report(two, tmp_path / "page.html").read_text()
    seen(page)
    table = page[page.index('id="runs"') : page.index('id="curves"')]
    assert table.count("<tr>") == 3
    assert all(str(path) in table for path in two)
    assert "1 options differ" in table
    assert "train.optimizer.lr" in table
    assert 'id="samples"' in full
    assert 'id="samples"' not in page
    assert page.count("<figure>") == full.count("<figure>") - full[
        full.index('id="samples"') :
    ].count("<figure>")


def test_a_sweep_and_a_point_are_reported(two, tmp_path, cli):
    sweep = tmp_path / "sweep"
    for number, path in enumerate(two):
        shutil.copytree(path, sweep / f"{number}-x" / path.name)
        (sweep / f"{number}-x" / "point.lock").touch()
    points = [{"name": f"{n}-x", "values": {"lr": n}} for n in (0, 1, 2)]
    (sweep / "2-x").mkdir()
    (sweep / "2-x" / "status.json").write_text(
        json.dumps({"state": "failed", "reason": EVIL})
    )
    (sweep / "sweep.json").write_text(
        json.dumps({"name": f"both {EVIL}", "points": points})
    )
    assert write_report([sweep]) == sweep / "report.html"
    page = (sweep / "report.html").read_text()
    seen(page)
    for text in (
        "sweep both",
        "2 waiting, 1 failed",
        "The best 2 points.",
        "<figcaption>lr</figcaption>",
    ):
        assert text in page
    both = write_report([sweep, two[0]], tmp_path / "page.html").read_text()
    assert "<h1>3 runs</h1>" in both
    assert write_report([sweep / "1-x"]) == sweep / "1-x" / two[1].name / "report.html"
    assert (
        f'did you mean "{sweep / "1-x"}"'
        in cli("report", str(sweep / "1-y"), code=2).err
    )


def test_curves_are_downsampled_without_losing_spikes():
    svg = ET.fromstring(
        curve({"a<b": [(step, 1.0 + (step == 500)) for step in range(1000)]})
    )
    line, smooth = svg.iter("polyline")
    assert smooth.get("class") == "smooth"
    heights, means = (
        [float(at.split(",")[1]) for at in text.split()]
        for text in (line.get("points"), smooth.get("data-points"))
    )
    assert len(heights) < 500
    assert min(heights) < max(heights) - 100
    assert len(means) == 334
    assert max(means) - min(means) == pytest.approx(
        (max(heights) - min(heights)) / 3, abs=0.1
    )


def test_smoothing_is_an_exponential_average_without_bias():
    values = [1.0, 2.0, 4.0, *[3.0] * 30]
    svg = ET.fromstring(curve({"x": list(enumerate(values))}))
    start, end, low, high, log = map(float, svg.get("data-y").split())
    ends = [
        float(at.split(",")[1])
        for at in list(svg.iter("polyline"))[1].get("points").split()
    ]
    shown = [low + (at - start) / (end - start) * (high - low) for at in ends]
    weights = [0.4 * 0.6**n for n in (2, 1, 0)]
    expected = sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights)
    assert not log
    assert shown[:3] == pytest.approx([1.0, (0.24 + 0.8) / 0.64, expected], abs=0.02)


@pytest.mark.parametrize(
    ("points", "baselines", "present", "absent"),
    [
        ([(0, 1.0), (1, math.nan), (2, 3.0)], {}, "<polyline", "nan"),
        ([(0, 1.0), (1, 2.0)], {}, ">1.5<", "log"),
        ([(0, 1.0), (1, 1e4)], {}, ">100<", "nan"),
        ([(0, 1.0), (1, 3.0)], {"unigram": 2.0}, "unigram 2", "nan"),
        ([(0, 1.0), (1, 3.0)], {"far": 2000.0}, "<polyline", "far"),
        (
            [(0, 1.0), (1, 2.0)],
            {"real": 1.5, "shuffled": 1.5},
            "real, shuffled 1.5",
            "nan",
        ),
    ],
)
def test_curves(points, baselines, present, absent):
    assert curve({"x": [(0, math.inf)]}) == "", "nothing is finite"
    svg = curve({"x": points}, baselines=baselines)
    ET.fromstring(svg)
    assert present in svg
    assert absent not in svg


def text_boxes(svg):
    """Left, top, right, bottom of each text of a chart, as wide as its letters."""
    import re

    from dither.engine.reports.svg import LETTER

    boxes = []
    pattern = r'<text class="(\S+)[^"]*" x="([-\d.]+)" y="([-\d.]+)"([^>]*)>([^<]*)'
    for kind, x, y, rest, text in re.findall(pattern, svg):
        width = len(text) * LETTER
        if length := re.search(r'textLength="(\d+)"', rest):
            width = int(length[1])
        right = {"x": float(x) + width / 2}.get(kind, float(x))
        boxes.append((kind, right - width, float(y) - 8, right, float(y)))
    return boxes


def require_apart(svg):
    import re

    *_, width, height = map(float, re.search(r'viewBox="([^"]+)"', svg)[1].split())
    boxes = [box for box in text_boxes(svg)]
    for kind, left, top, right, bottom in boxes:
        assert left >= -3, (kind, left)
        assert top >= -3, (kind, top)
        assert right <= width + 3, (kind, right)
        assert bottom <= height, (kind, bottom)
    for first in boxes:
        for second in boxes:
            same = first[0] == second[0] != "y"
            if first is not second and same:
                apart = (
                    first[3] <= second[1] or second[3] <= first[1]
                    or first[4] <= second[2] or second[4] <= first[2]
                )  # fmt: skip
                assert apart, (first, second)


def test_labels_of_charts_are_neither_cut_nor_overlapping():
    from dither.engine.reports.svg import curve, scatter

    points = [(step, 1.0 + step / 1000) for step in range(100)]
    near = {f"baseline-{number}": 1.0 + number / 10_000 for number in range(12)}
    require_apart(curve({"loss": points}, baselines=near))
    many = {f"baseline-{number}": 1.0 + number / 1000 for number in range(40)}
    require_apart(curve({"loss": points}, baselines=many))
    equal = {f"a-baseline-with-a-long-name-{number}": 1.02 for number in range(9)}
    require_apart(curve({"loss": points}, baselines=equal))
    require_apart(curve({"loss": [(0, 1_234_567.0), (10, 1_234_569.5)]}))
    require_apart(curve({"loss": [(0, 1.2e-9), (10_000_000, 1.3e-9)]}))

    names = [f"first-hitting+temperature=0.{number}" for number in range(8)]
    svg = scatter([(name, 1.0, "point") for name in names], "loss over sampler")
    require_apart(svg)
    for name in names:
        assert f">{name}<" in svg, "a name is cut"
    sizes = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000]
    require_apart(scatter([(size, float(size), "point") for size in sizes], "x"))
    require_apart(scatter([("x" * 200, 1.0, "a"), ("y", 2.0, "b")], "long"))
