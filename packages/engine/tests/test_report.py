"""Pages of runs: all there is on one page, nothing from elsewhere, nothing that runs, and damage is named."""

import itertools
import json
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

from dither.engine.cli import main
from dither.engine.reports.svg import curve, ticks
from dither.engine.reports.write import sweep_page, write_report
from dither.engine.runs.launch import run
from dither.engine.sweeps.directory import SweepDirectory
from dither.registry.config.errors import Refused

EVIL = "<script>alert(1)</script>"
FILES = ["experiment.toml", "manifest.json", "metrics.jsonl", "resolved.toml", "summary.json"]


class Seen(HTMLParser):
    """Tags, and addresses that a browser would fetch."""

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
    assert "<script" not in page, "a title inside an SVG is no text to a browser"
    assert "url(" not in page
    assert "@import" not in page
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two short runs, made once."""
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
    """A run that a test may damage."""
    return shutil.copytree(two[0], tmp_path / "copy")


def test_a_page_has_all_of_a_run_and_needs_nothing_else(two, tmp_path):
    page = write_report([two[0]], tmp_path / "page.html").read_text()
    found = seen(page)
    assert found.tags.count("img") == 1
    for said in ("toy-words@1", "chance 0.25", "285", "warmup = 3", "samples", "steps per second"):
        assert said in page
    for name in ("train/loss", "train/lr", "train/grad_norm", "train/steps_per_second", "valid/accuracy"):
        assert f"<figcaption>{name}</figcaption>" in page
    metrics = [json.loads(line) for line in (two[0] / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in metrics if line["kind"] == "valid"][-1]
    assert f"{last['accuracy']:.5g}" in page
    assert "Missing or damaged" not in page


def test_names_from_files_are_escaped(copy, tmp_path):
    text = (copy / "resolved.toml").read_text()
    (copy / "resolved.toml").write_text(text.replace('name = "experiment"', f'name = "{EVIL}"'))
    with (copy / "metrics.jsonl").open("a") as file:
        for step in (21, 22):
            file.write(json.dumps({"step": step, "kind": f"{EVIL}'\"", EVIL: 1.5}) + "\n")
    samples = next((copy / "samples").iterdir())
    (samples / "words.txt").write_text(f"{EVIL}</pre>")
    page = write_report([copy], tmp_path / "page.html").read_text()
    seen(page)
    assert page.count("&lt;script&gt;") >= 6
    seen(write_report([copy, samples.parents[1]], tmp_path / "both.html").read_text())


def test_a_picture_that_holds_a_script_is_only_an_image(copy, tmp_path):
    samples = next((copy / "samples").iterdir())
    (samples / "dot.png").unlink()
    (samples / "dot.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg">{EVIL}</svg>')
    page = write_report([copy], tmp_path / "page.html").read_text()
    assert any(address.startswith("data:image/svg+xml;base64,") for address in seen(page).addresses)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["gone", "empty", "garbage", "cut", "folder"])
def test_a_damaged_file_is_named_and_the_rest_is_shown(copy, tmp_path, name, damage):
    path = copy / name
    whole = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage != "gone":
        path.write_bytes({"empty": b"", "garbage": b"\xff\x00[1", "cut": whole[: len(whole) // 2]}[damage])
    page = write_report([copy], tmp_path / "page.html").read_text()
    seen(page)
    silent = {
        ("experiment.toml", "empty"),
        ("experiment.toml", "cut"),
        ("metrics.jsonl", "empty"),
    }
    if (name, damage) not in silent:  # a text that is shorter is still a text
        assert re.search(rf"<li>.*{re.escape(name)}", page), page[:3000]
    assert "285" in page or name == "manifest.json"


def test_what_is_no_run_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no run directory" in capsys.readouterr().err


def test_a_page_is_written_whole_or_not_at_all(two, tmp_path):
    (tmp_path / "page.html").write_text("before")
    with pytest.raises(Refused):
        write_report([two[0]], tmp_path)
    write_report([two[0]], tmp_path / "page.html")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["page.html"]


def test_the_page_of_several_runs_says_what_differs(two, tmp_path):
    page = write_report(two, tmp_path / "page.html").read_text()
    seen(page)
    differs = page[page.index('id="what-differs"') : page.index('id="curves"')]
    assert re.findall(r"<tr><th title=.*?>(.*?)</th><td>", differs) == ["train.optimizer.lr"]
    assert "<span>lr=0.02</span>" in page
    curves = page[page.index('<div class="charts">') : page.index('id="figures"')]
    assert curves.count('<g class="s0 c0 d0">') == curves.count('<g class="s1 c1 d0">') == curves.count("<figure>") > 4


def test_many_runs_are_rows_and_each_line_looks_like_no_other(two, tmp_path):
    runs = []
    for number in range(12):
        path = shutil.copytree(two[0], tmp_path / f"run-{number:06}")
        text = re.sub(r"lr = 0\.0\d", f"lr = 0.0{number + 10}", (path / "resolved.toml").read_text())
        (path / "resolved.toml").write_text(text)
        runs.append(path)
    (runs[3] / "summary.json").unlink()
    page = write_report(runs, tmp_path / "page.html").read_text()
    seen(page)
    assert '<tr><th title="lr=0.013">lr=0.013</th><td>0.013</td></tr>' in page
    assert page.count('<g class="s11 c1 d1">') == page.count('<g class="s1 c1 d0">') > 4
    assert page.count("<li>lr=0.01; lr=0.011; lr=0.012 and 9 more: resolved.toml is not what was written</li>") == 1
    assert "<li>lr=0.013: the run has not come to its end" in page


def test_options_that_only_some_have_stand_apart(two, tmp_path):
    other = shutil.copytree(two[0], tmp_path / "other")
    text = (other / "resolved.toml").read_text()
    (other / "resolved.toml").write_text(f"{text}\n[sampler.own]\nquick = true\nword = ''\n")
    page = write_report([two[0], other], tmp_path / "page.html").read_text()
    assert "<details open><summary>options that only some of them have</summary>" in page
    assert ">sampler.own.quick</th><td></td><td>true</td></tr>" in page
    assert ">sampler.own.word</th><td></td><td>&#34;&#34;</td></tr>" in page


def test_intervals_and_floors_stand_with_their_figures(copy, tmp_path):
    with (copy / "metrics.jsonl").open("a") as file:
        for step in (21, 28):
            figures = {"nats": 2.5, "nats_ci95": 0.125, "nats_floor": 2.0, "ground_floor": 3.0, "lone_ci95": 1.0}
            file.write(json.dumps({"step": step, "kind": "valid", **figures}) + "\n")
    page = write_report([copy], tmp_path / "page.html").read_text()
    assert '<tr><th>valid/nats</th><td class="n">2.5 ± 0.12</td><td>floor 2</td></tr>' in page
    assert "valid/nats_ci95" not in page
    assert "valid/nats_floor" not in page
    assert "<figcaption>valid/ground_floor</figcaption>" in page
    assert "<figcaption>valid/lone_ci95</figcaption>" in page
    assert page.count("<polygon") == 1, "the interval is drawn around its curve"
    assert "best valid/loss" in page


def test_links_of_a_page_lead_into_it(two, tmp_path):
    for runs in ([two[0]], two):
        page = write_report(runs, tmp_path / "page.html").read_text()
        links = [address[1:] for address in seen(page).addresses if address.startswith("#")]
        assert len(links) >= 4
        assert all(page.count(f'<h2 id="{link}">') == 1 for link in links)


def test_a_sweep_and_a_point_are_reported_by_their_folders(two, tmp_path, capsys):
    sweep = tmp_path / "sweep"
    for number, path in enumerate(two):
        shutil.copytree(path, sweep / f"{number}-x" / path.name)
        (sweep / f"{number}-x" / "point.lock").touch()
    points = [{"name": f"{n}-x", "values": {"lr": n}} for n in (0, 1)]
    (sweep / "sweep.json").write_text(json.dumps({"name": "both", "points": points}))
    assert write_report([sweep]) == sweep / "report.html"
    assert "sweep both" in (sweep / "report.html").read_text()
    both = write_report([sweep, two[0]], tmp_path / "page.html").read_text()
    assert "<h1>3 runs</h1>" in both
    assert write_report([sweep / "1-x"]) == sweep / "1-x" / two[1].name / "report.html"
    assert main(["report", str(sweep / "1-y")]) == 2
    assert f'did you mean "{sweep / "1-x"}"' in capsys.readouterr().err


def test_the_page_of_a_sweep_has_every_point(two, tmp_path):
    sweep = SweepDirectory(tmp_path, {"name": EVIL, "points": []})
    for number, path in enumerate(two):
        shutil.copytree(path, tmp_path / f"{number}-x" / path.name)
    rows = [
        {
            "name": f"{n}-x",
            "state": "done",
            "reason": None,
            "run": path.name,
            "step": 20,
            "values": {"lr": n},
            "figures": {},
        }
        for n, path in enumerate(two)
    ]
    page = sweep_page(sweep, [*rows, rows[0] | {"name": "2-y", "state": "failed", "reason": EVIL, "run": None}])
    seen(page)
    assert "2 done, 1 failed" in page
    assert "The best 2." in page


def test_curves_are_valid_svg_and_show_what_they_should():
    points = [(step, 1.0 + (step == 500)) for step in range(1000)]
    svg = ET.fromstring(curve({"a<b": points}))
    (line,) = svg.iter("polyline")
    heights = [float(place.split(",")[1]) for place in line.get("points").split()]
    assert len(heights) < 500
    assert min(heights) < max(heights) - 100, "no spike is lost when there are many points"
    gaps = curve({"x": [(0, 1.0), (1, float("nan")), (2, 3.0)]})
    assert "nan" not in gaps
    assert curve({"x": [(0, float("inf"))]}) == ""
    assert ">1e4<" not in curve({"x": [(0, 1.0), (1, 2.0)]})
    decades = curve({"x": [(0, 1.0), (1, 1e4)]})
    assert ">100<" in decades, "values over many sizes get a logarithmic axis"
    assert "unigram 2" in curve({"x": [(0, 1.0), (1, 3.0)]}, baselines={"unigram": 2.0})
    assert "far" not in curve({"x": [(0, 1.0), (1, 3.0)]}, baselines={"far": 2000.0})


def test_a_restless_line_is_drawn_as_its_mean_with_its_points_behind_it():
    points = [(step, 2.0 - step / 500 + (-1) ** step) for step in range(500)]
    svg = ET.fromstring(curve({"x": points}))
    raw, mean = svg.iter("polyline")
    assert raw.get("class") == "raw"
    heights = [float(place.split(",")[1]) for place in mean.get("points").split()]
    assert max(b - a for a, b in itertools.pairwise(heights)) < 10, "the mean is calm"
    assert heights[0] < heights[-1], "and falls as the points do"
    many = ET.fromstring(curve({name: points for name in "abcde"}))
    assert [line.get("class") for line in many.iter("polyline")] == [None] * 5
    level = curve({"x": [(step, 0.1 + 0.2) for step in range(500)]})
    assert level.count("<polyline") == 1, "rounding is no restlessness"


def test_numbers_beside_an_axis_differ_and_texts_stand_apart():
    svg = ET.fromstring(curve({"x": [(0, 0.00018), (5000, 0.00019)]}, baselines={"a": 0.000185, "b": 0.0001851}))
    written = [text.text for text in svg.iter("text") if text.get("class") == "y"]
    assert len(set(written)) == len(written) > 2
    levels = [float(text.get("y")) for text in svg.iter("text") if text.get("class") == "level"]
    assert levels[1] - levels[0] >= 11
    assert "step" in [text.text for text in svg.iter("text")]
    last = [text for text in svg.iter("text") if text.get("class") == "x"][-1]
    assert last.text == "5,000"
    assert float(last.get("x")) + 3 * len(last.text) < 460, "nothing is cut off"
    same = curve({"x": [(0, 1.0), (1, 2.0)]}, baselines={"real": 1.5, "shuffled": 1.5})
    assert "real, shuffled 1.5" in same


@pytest.mark.parametrize(("low", "high"), [(0, 1), (3, 3), (-5, 1e6), (1e-9, 2e-9)])
def test_ticks_are_few_round_and_inside(low, high):
    found = ticks(low, high, 5)
    assert 1 <= len(found) <= 7
    assert all(low - 1e-12 <= value <= high + 1e-12 for value in found)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("dark", [False, True])
def test_a_browser_shows_the_page(two, tmp_path, dark):
    page = write_report(two, tmp_path / "page.html")
    shot = tmp_path / "page.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=900,1600"]
    options += ["--force-dark-mode"] * dark
    command = [BROWSER, *options, f"--user-data-dir={tmp_path / 'browser'}", f"--screenshot={shot}", page.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    data = shot.read_bytes()
    assert struct.unpack(">II", data[16:24]) == (900, 1600)
    from PIL import Image

    with Image.open(shot) as picture:
        corner = picture.convert("RGB").getpixel((2, 2))
        colours = picture.convert("RGB").getcolors(1 << 24)
    assert (sum(corner) < 200) == dark
    assert len(colours) > 50, "there is something on it"
