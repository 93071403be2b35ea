"""The page of samples, and their way from noise."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.decoded_samples import decode_samples
from dither.tasks.bubble_diagram.geometry.placement import place_diagram, room_names
from dither.tasks.bubble_diagram.plans import decode
from dither.tasks.bubble_diagram.plots.animation import MOST_FRAMES, film_of, film_strip, to_animated_svg
from dither.tasks.bubble_diagram.plots.html_gallery import draw_html_gallery
from dither.tasks.bubble_diagram.plots.pictures import sample_pictures, to_gif, trajectory_pictures
from dither.tasks.bubble_diagram.plots.svg import Rectangle, Text
from dither.tasks.bubble_diagram.vocabulary import COLOURS, EDGE_MASK, NO_EDGE, NODE_MASK, NODE_PAD, ROOMS, pairs

SVG = "{http://www.w3.org/2000/svg}"
GREY = "#c9ced6"
ROOM_SLOTS = 8


def samples(count, seed=3):
    return make_plans(seed, 0, count).tokens(ROOM_SLOTS)


def masked(tokens):
    length = tokens.shape[-1]
    real = tokens != np.where(np.arange(length) < ROOM_SLOTS, NODE_PAD, 12)
    return np.where(real, np.where(np.arange(length) < ROOM_SLOTS, NODE_MASK, EDGE_MASK), tokens), real


def way(tokens, seed=0):
    """States from nothing but MASK to samples, one token of each a step."""
    random, (state, real) = np.random.default_rng(seed), masked(tokens)
    orders = [random.permutation(np.flatnonzero(row)) for row in real]
    path = [state.copy()]
    for step in range(max(map(len, orders))):
        for row, order in enumerate(orders):
            if step < len(order):
                state[row, order[step]] = tokens[row, order[step]]
        path.append(state.copy())
    return np.stack(path)


def bad_samples():
    """Six samples: whole, without a living room, with a circle of "above", with MASK left over, empty, whole."""
    tokens = samples(6)
    tokens[1, :ROOM_SLOTS][tokens[1, :ROOM_SLOTS] == 0] = ROOMS.index("StudyRoom")
    tokens[2] = masked(tokens[2])[0]
    tokens[2, :ROOM_SLOTS] = [0, 1, 2, *[NODE_PAD] * 5]
    above, below = 3, 6
    told = {(0, 1): above, (1, 2): above, (0, 2): below}
    tokens[2, ROOM_SLOTS:] = [told.get(pair, 12) for pair in pairs(ROOM_SLOTS)]
    tokens[3, 0], tokens[4] = NODE_MASK, samples(1)[0] * 0 + np.where(np.arange(36) < ROOM_SLOTS, NODE_PAD, 12)
    return tokens


def test_exhibits_say_how_far_samples_hold_together():
    shown = list(decode_samples(bad_samples(), ROOM_SLOTS))
    assert [one.verdict for one in shown] == [
        "L4 realisable", "L0 tokens", "L1 programme", "unreadable", "unreadable", "L4 realisable",
    ]  # fmt: skip
    assert shown[0].arrangement.exact
    assert shown[2].arrangement.broken == 1
    assert shown[3].wrong == ("room 0: MASK is left over",)
    assert shown[3].arrangement is None
    assert list(decode_samples(samples(0), ROOM_SLOTS)) == []


class Seen(HTMLParser):
    """Tags of a page with their attributes; every tag that is opened must be closed."""

    VOID = ("meta", "input")

    def __init__(self, page):
        super().__init__()
        self.tags, self.open = [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone():
    page = draw_html_gallery(list(decode_samples(bad_samples(), ROOM_SLOTS)), 'A <b>"title"</b>')
    tags = Seen(page).tags
    assert "http" not in page
    assert not {tag for tag, _ in tags} & {"script", "link", "img", "iframe", "a", "object", "b"}
    assert not re.search(r"url\(|@import|src=|href=", page)
    assert "A &lt;b&gt;&quot;title&quot;&lt;/b&gt;" in page


def test_the_page_shows_every_sample_under_its_verdict():
    shown = list(decode_samples(bad_samples(), ROOM_SLOTS))
    page = draw_html_gallery(shown)
    tags = Seen(page).tags
    cards = [said["class"].split() for tag, said in tags if tag == "article"]
    sizes = [len(one.arrangement.diagram.types) if one.arrangement else None for one in shown]
    assert [card[0] for card in cards] == [f"level-{one.level}" for one in shown]
    assert [card[1:] for card in cards] == [[f"rooms-{size}"] if size else [] for size in sizes]
    for name in sorted({name for card in cards for name in card}):
        assert sum(said.get("id") == name for _, said in tags) == 1, f"there is no button for {name}"
        assert f"body:has(#{name}:checked) article:not(.{name})" in page
    assert sum(tag == "svg" for tag, _ in tags) == 2 * 4
    kinds = {kind for one in shown if one.arrangement for kind in one.arrangement.diagram.types}
    assert sum(tag == "i" for tag, _ in tags) == len(kinds)
    assert all(f'{COLOURS[kind]}"></i>{ROOMS[kind]}<' in page for kind in kinds)
    assert "6 samples: 4 reach L0 tokens, 3 reach L1 programme, 2 reach L2 order" in page
    assert "MASK is left over" in page
    assert page.count("not shown: ") == 1


def test_nothing_is_a_page_too():
    assert Seen(draw_html_gallery([])).tags[0][0] == "html"


def grounds(page):
    return [s.fill for s in page.shapes if isinstance(s, Rectangle) and s.stroke_width == 1.3]


def test_a_film_begins_grey_and_ends_with_the_diagram():
    tokens = samples(1)
    arrangement = place_diagram(decode(tokens[0], ROOM_SLOTS))
    path = way(tokens)
    film = film_of(path, [arrangement])
    rooms = len(arrangement.diagram.types)
    assert len(film.frames) == len(path) == rooms * (rooms + 1) // 2 + 1
    pages = film.pages()
    assert grounds(pages[0]) == [GREY] * rooms
    assert sorted(grounds(pages[-1])) == sorted(COLOURS[kind] for kind in arrangement.diagram.types)
    for frame, page in enumerate(pages):
        known = int((path[frame, 0, :rooms] < NODE_MASK).sum())
        assert sum(colour != GREY for colour in grounds(page)) == known
        text = [s.text for s in page.shapes if isinstance(s, Text)]
        assert text.count("?") == rooms - known
        assert f"{frame} of {len(path) - 1} known" in text
    assert set(room_names(arrangement.diagram)) <= {s.text for s in pages[-1].shapes if isinstance(s, Text)}


def test_states_without_change_and_states_beyond_the_most_are_left_out():
    tokens = make_plans(3, 0, 20, 14).tokens(14)
    row = int((tokens[:, :14] != NODE_PAD).sum(1).argmax())
    found = place_diagram(decode(tokens[row], 14))
    state = tokens[[row]].copy()
    path = [state.copy()]
    for place in range(14 + 60):
        state[0, place] = tokens[row, place]
        path += [np.where(np.arange(105) >= place, np.where(np.arange(105) < 14, 13, 11), state)] * 2
    film = film_of(np.stack([*path, tokens[[row]]]), [found])
    assert len(film.frames) == len(film.seconds) == MOST_FRAMES
    assert film.seconds[-1] > film.seconds[0]
    once = film_of(np.stack([tokens[[row]]] * 5), [found])
    assert len(once.frames) == 1


def test_a_room_may_turn_grey_again_and_become_another():
    tokens = samples(1)
    arrangement = place_diagram(decode(tokens[0], ROOM_SLOTS))
    other, grey = tokens.copy(), tokens.copy()
    grey[0, 0], other[0, 0] = NODE_MASK, (tokens[0, 0] + 1) % 13
    other[0, ROOM_SLOTS] = NO_EDGE if tokens[0, ROOM_SLOTS] != NO_EDGE else 3
    pages = film_of(np.stack([tokens, grey, other, tokens]), [arrangement]).pages()
    changed = [sum(a != b for a, b in zip(grounds(page), grounds(pages[0]), strict=True)) for page in pages]
    assert changed == [0, 1, 1, 0]
    assert pages[0] == pages[3]
    assert GREY in grounds(pages[1])
    assert COLOURS[(tokens[0, 0] + 1) % 13] in grounds(pages[2])


def at(root, moment, seconds):
    """Fills of the rooms that an animated SVG shows at a moment."""
    shown = []
    for one in root:
        rooms = [one] if one.tag == SVG + "rect" else one.findall(SVG + "rect")
        rooms = [rect for rect in rooms if rect.get("stroke-width") == "1.3"]
        animate = one.find(SVG + "animate")
        if animate is not None:
            assert animate.get("dur") == f"{seconds:g}s"
            times = [float(time) for time in animate.get("keyTimes").split(";")]
            values = animate.get("values").split(";")
            assert times[0] == 0
            assert times == sorted(set(times))
            assert one.get("visibility") == values[-1], "where nothing moves, the end is shown"
            if values[max(k for k, time in enumerate(times) if time <= moment)] == "hidden":
                continue
        shown += [rect.get("fill") for rect in rooms]
    return shown


def test_the_animated_svg_shows_what_the_frames_show():
    tokens = samples(2)
    film = film_of(way(tokens), [place_diagram(decode(row, ROOM_SLOTS)) for row in tokens])
    text = to_animated_svg(film)
    assert "<script" not in text
    root = ElementTree.fromstring(text)
    starts = np.concatenate([[0.0], np.cumsum(film.seconds)])
    for frame, page in enumerate(film.pages()):
        moment = (starts[frame] + starts[frame + 1]) / 2 / starts[-1]
        assert at(root, moment, starts[-1]) == grounds(page)


def test_the_gif_has_a_frame_for_each_state_and_keeps_colours():
    tokens = samples(1)
    film = film_of(way(tokens), [place_diagram(decode(tokens[0], ROOM_SLOTS))])
    with Image.open(BytesIO(to_gif(film.pages(), film.seconds))) as image:
        assert image.size == (film.width, film.height)
        assert image.n_frames == len(film.frames)
        assert image.info["loop"] == 0
        times = []
        for frame in range(image.n_frames):
            image.seek(frame)
            times.append(image.info["duration"])
        last = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert times == pytest.approx([1000 * one for one in film.seconds], abs=10)
    for kind in decode(tokens[0], ROOM_SLOTS).types:
        colour = [int(COLOURS[kind][place : place + 2], 16) for place in (1, 3, 5)]
        assert np.abs(last - colour).max(1).min() <= 6, f"{ROOMS[kind]} has another colour"


def test_stages_are_of_each_sample_by_itself():
    tokens = samples(3)
    page = film_strip(way(tokens), [place_diagram(decode(row, ROOM_SLOTS)) for row in tokens], size=100)
    assert (page.width, page.height) == (600, 300)
    for row, sample in enumerate(tokens):
        total = int(masked(sample)[1].sum())
        said = [s for s in page.shapes if isinstance(s, Text) and s.text.endswith(f"of {total} known")]
        counts = [int(s.text.split()[0]) for s in said if 100 * row < s.y < 100 * row + 100]
        assert counts[0] == 0
        assert counts[-1] == total
        assert len(counts) == 6
        assert counts == sorted(set(counts)), "every stage knows more"


def test_pictures_of_samples_and_of_their_way():
    tokens = bad_samples()
    found = {picture.name: picture for picture in sample_pictures(tokens, ROOM_SLOTS)}
    assert set(found) == {"diagram", "floorplan", "gallery", "diagrams", "unreadable"}
    assert found["gallery"].html.startswith("<!doctype html>")
    assert found["gallery"].html.count("<article") == 6
    (path,) = trajectory_pictures(way(tokens[:4]), ROOM_SLOTS)
    assert path.png.startswith(b"\x89PNG")
    assert path.gif.startswith(b"GIF89a")
    assert ElementTree.fromstring(path.svg).tag == SVG + "svg"
    assert list(trajectory_pictures(way(tokens[3:5]), ROOM_SLOTS)) == []


def test_a_sample_that_is_no_diagram_is_left_out_of_the_film():
    tokens = samples(3)
    tokens[1, 0] = NODE_MASK
    (path,) = trajectory_pictures(way(tokens), ROOM_SLOTS)
    (same,) = trajectory_pictures(way(tokens)[:, [0, 2]], ROOM_SLOTS)
    assert replace(path, png=None) == replace(same, png=None)
