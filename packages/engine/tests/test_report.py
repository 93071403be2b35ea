"""Reports: complete, self-contained, without scripts; damaged files are listed."""

import json
import math
import re
import shutil
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from dither.engine.reports.pages import charts_of, write_report
from dither.engine.reports.run_record import RunRecord
from dither.engine.reports.svg import curve
from dither.engine.runs.launch import run
from dither.registry.config.errors import Refused

EVIL = "<script>alert(1)</script>"
FILES = ["experiment.toml", "manifest.json", "metrics.jsonl", "resolved.toml", "summary.json"]


class Seen(HTMLParser):
    """Collects tags, URLs and event handlers."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.addresses, self.events = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "action", "data", "srcset")]
        self.events += [name for name, _ in attrs if name.startswith("on")]


def seen(page):
    found = Seen(page)
    assert not {"script", "iframe", "object", "embed", "link", "base", "form"} & set(found.tags)
    assert not found.events
    assert all(address.startswith(("data:image/", "#")) for address in found.addresses)
    assert "<script" not in page, "a title inside an SVG is parsed as markup"
    assert "url(" not in page
    assert "@import" not in page
    links = [address[1:] for address in found.addresses if address.startswith("#")]
    assert links
    assert all(page.count(f'<h2 id="{link}">') == 1 for link in links)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of two short runs."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def two(runs, load, console, monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    if not any(runs.iterdir()):
        for rate in ("0.02", "0.03"):
            assert run(load(f"train.optimizer.lr={rate}"), runs, ["dither", "run", EVIL], console=console) == 0
    return sorted(runs.iterdir())


@pytest.fixture
def copy(two, tmp_path):
    """A copy of a run, to be damaged."""
    return shutil.copytree(two[0], tmp_path / "copy")


def test_a_page_is_complete_and_self_contained(two, tmp_path):
    page = write_report([two[0]], tmp_path / "page.html").read_text()
    found = seen(page)
    assert found.tags.count("img") == 1
    for text in ("toy-words@1", "chance 0.25", "285", "warmup = 3", "samples"):
        assert text in page
    for name in ("train/loss", "train/lr", "train/grad_norm", "valid/accuracy"):
        assert f"<figcaption>{name}</figcaption>" in page
    metrics = [json.loads(line) for line in (two[0] / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in metrics if line["kind"] == "valid"][-1]
    assert f"{last['accuracy']:.5g}" in page
    assert "Missing or damaged" not in page


def test_texts_are_escaped(copy, tmp_path):
    text = (copy / "resolved.toml").read_text()
    (copy / "resolved.toml").write_text(text.replace('name = "experiment"', f'name = "{EVIL}"'))
    with (copy / "metrics.jsonl").open("a") as file:
        for step in (21, 22):
            file.write(json.dumps({"step": step, "kind": f"{EVIL}'\"", EVIL: 1.5}) + "\n")
    samples = next((copy / "samples").iterdir())
    (samples / "words.txt").write_text(f"{EVIL}</pre>")
    (samples / "dot.png").unlink()
    (samples / "dot.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{EVIL}</svg>')
    page = write_report([copy], tmp_path / "page.html").read_text()
    assert any(address.startswith("data:image/svg+xml;base64,") for address in seen(page).addresses)
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
        path.write_bytes(b"\xff\x00[1" if damage == "garbage" else whole[: len(whole) // 2])
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
    assert re.findall(r"<tr><th title=.*?>(.*?)</th><td>", differs) == ["train.optimizer.lr"]
    assert "<span>lr=0.02</span>" in page
    curves = page[page.index('<div class="charts">') : page.index('id="metrics"')]
    assert curves.count('<g class="s0 c0 d0">') == curves.count('<g class="s1 c1 d0">') == curves.count("<svg") > 4


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
    assert page.count("<figure>") == full.count("<figure>") - full[full.index('id="samples"') :].count("<figure>")


def test_a_sweep_and_a_point_are_reported(two, tmp_path, cli):
    sweep = tmp_path / "sweep"
    for number, path in enumerate(two):
        shutil.copytree(path, sweep / f"{number}-x" / path.name)
        (sweep / f"{number}-x" / "point.lock").touch()
    points = [{"name": f"{n}-x", "values": {"lr": n}} for n in (0, 1, 2)]
    (sweep / "2-x").mkdir()
    (sweep / "2-x" / "status.json").write_text(json.dumps({"state": "failed", "reason": EVIL}))
    (sweep / "sweep.json").write_text(json.dumps({"name": f"both {EVIL}", "points": points}))
    assert write_report([sweep]) == sweep / "report.html"
    page = (sweep / "report.html").read_text()
    seen(page)
    for text in ("sweep both", "2 waiting, 1 failed", "The best 2 points.", "<figcaption>lr</figcaption>"):
        assert text in page
    both = write_report([sweep, two[0]], tmp_path / "page.html").read_text()
    assert "<h1>3 runs</h1>" in both
    assert write_report([sweep / "1-x"]) == sweep / "1-x" / two[1].name / "report.html"
    assert f'did you mean "{sweep / "1-x"}"' in cli("report", str(sweep / "1-y"), code=2).err


def test_curves_are_downsampled_without_losing_spikes():
    svg = ET.fromstring(curve({"a<b": [(step, 1.0 + (step == 500)) for step in range(1000)]}))
    line, *averages = svg.iter("polyline")
    assert [average.get("class") for average in averages] == ["w1", "w2"]
    heights = [float(place.split(",")[1]) for place in line.get("points").split()]
    assert len(heights) < 500
    assert min(heights) < max(heights) - 100


def test_curves_are_also_drawn_for_the_last_steps(tmp_path):
    values = {"loss": [(step, 1.0) for step in range(100)], "few": [(0, 1.0), (99, 2.0)]}
    ((_, loss), (_, few)) = charts_of([RunRecord(tmp_path, curves={"valid": values})], [""])
    first = [re.search(r"at step (\d+)|points=\"", svg) for svg in loss.split("<div")[1:]]
    assert len(first) == 3
    assert re.findall('<div class="([^"]*)"', loss + few) == ["z0", "z1", "z2", "z0 z1 z2"]
    assert [len(re.search('points="([^"]*)', svg)[1].split()) for svg in loss.split("<div")[1:]] == [100, 50, 20]


@pytest.mark.parametrize(
    ("points", "baselines", "present", "absent"),
    [
        ([(0, 1.0), (1, math.nan), (2, 3.0)], {}, "<polyline", "nan"),
        ([(0, 1.0), (1, 2.0)], {}, ">1.5<", "log"),
        ([(0, 1.0), (1, 1e4)], {}, ">100<", "nan"),
        ([(0, 1.0), (1, 3.0)], {"unigram": 2.0}, "unigram 2", "nan"),
        ([(0, 1.0), (1, 3.0)], {"far": 2000.0}, "<polyline", "far"),
        ([(0, 1.0), (1, 2.0)], {"real": 1.5, "shuffled": 1.5}, "real, shuffled 1.5", "nan"),
    ],
)
def test_curves(points, baselines, present, absent):
    assert curve({"x": [(0, math.inf)]}) == "", "nothing is finite"
    svg = curve({"x": points}, baselines=baselines)
    ET.fromstring(svg)
    assert present in svg
    assert absent not in svg
