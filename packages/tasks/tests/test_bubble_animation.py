"""Sampling trajectories: frames, animated SVG, GIF and stages."""

from dataclasses import replace
from io import BytesIO
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from dither.tasks.bubble_diagram.data.procedural import make_plans
from dither.tasks.bubble_diagram.geometry.placement import place_diagram, room_names
from dither.tasks.bubble_diagram.plans import decode
from dither.tasks.bubble_diagram.plots.animation import MAX_FRAMES, animate, draw_stages, to_animated_svg
from dither.tasks.bubble_diagram.plots.pictures import to_gif, trajectory_pictures
from dither.tasks.bubble_diagram.plots.svg import Rectangle, Text
from dither.tasks.bubble_diagram.vocabulary import COLOURS, EDGE_MASK, EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD, ROOMS

SVG = "{http://www.w3.org/2000/svg}"
GREY = "#c9ced6"
SLOTS = 8
IS_NODE = np.arange(36) < SLOTS


def samples(count):
    return make_plans(3, 0, count).tokens(SLOTS)


def placements(tokens):
    return [place_diagram(decode(row, SLOTS)) for row in tokens]


def trajectory(tokens, seed=0):
    """Return the states from fully masked to samples, one token of each sample per step."""
    random, real = np.random.default_rng(seed), tokens != np.where(IS_NODE, NODE_PAD, EDGE_PAD)
    state = np.where(real, np.where(IS_NODE, NODE_MASK, EDGE_MASK), tokens)
    orders = [random.permutation(np.flatnonzero(row)) for row in real]
    path = [state.copy()]
    for step in range(max(map(len, orders))):
        for row, order in enumerate(orders):
            if step < len(order):
                state[row, order[step]] = tokens[row, order[step]]
        path.append(state.copy())
    return np.stack(path)


def fills(page):
    return [shape.fill for shape in page.shapes if isinstance(shape, Rectangle) and shape.stroke_width == 1.3]


def texts(page):
    return [shape.text for shape in page.shapes if isinstance(shape, Text)]


def test_animation_starts_grey_and_ends_with_the_diagram():
    tokens = samples(1)
    (placement,), path = placements(tokens), trajectory(tokens)
    animation = animate(path, [placement])
    rooms = len(placement.diagram.types)
    assert len(animation.frames) == len(path) == rooms * (rooms + 1) // 2 + 1
    pages = animation.pages()
    assert fills(pages[0]) == [GREY] * rooms
    assert sorted(fills(pages[-1])) == sorted(COLOURS[kind] for kind in placement.diagram.types)
    for frame, page in enumerate(pages):
        known = int((path[frame, 0, :rooms] < NODE_MASK).sum())
        assert sum(colour != GREY for colour in fills(page)) == known
        assert texts(page).count("?") == rooms - known
        assert f"{frame} of {len(path) - 1} known" in texts(page)
    assert set(room_names(placement.diagram)) <= set(texts(pages[-1]))


def test_unchanged_and_surplus_states_are_skipped():
    tokens = make_plans(3, 0, 20, 14).tokens(14)
    row = int((tokens[:, :14] != NODE_PAD).sum(1).argmax())
    placement = place_diagram(decode(tokens[row], 14))
    final, is_node = tokens[[row]], np.arange(105) < 14
    masked = np.where(is_node, NODE_MASK, EDGE_MASK)
    path = [np.where(np.arange(105) >= step, masked, final) for step in range(74) for _ in range(2)]
    animation = animate(np.stack([*path, final]), [placement])
    assert len(animation.frames) == len(animation.seconds) == MAX_FRAMES
    assert animation.seconds[-1] > animation.seconds[0]
    assert len(animate(np.stack([final] * 5), [placement]).frames) == 1


def test_rooms_may_be_masked_again_and_change_type():
    tokens = samples(1)
    other, grey = tokens.copy(), tokens.copy()
    grey[0, 0], other[0, 0] = NODE_MASK, (tokens[0, 0] + 1) % 13
    other[0, SLOTS] = NO_EDGE if tokens[0, SLOTS] != NO_EDGE else 3
    pages = animate(np.stack([tokens, grey, other, tokens]), placements(tokens)).pages()
    changed = [sum(a != b for a, b in zip(fills(page), fills(pages[0]), strict=True)) for page in pages]
    assert changed == [0, 1, 1, 0]
    assert pages[0] == pages[3]
    assert GREY in fills(pages[1])
    assert COLOURS[(tokens[0, 0] + 1) % 13] in fills(pages[2])


def fills_at(root, moment, seconds):
    """Return the fills of the rooms that an animated SVG shows at a time between 0 and 1."""
    visible = []
    for element in root:
        rooms = [element] if element.tag == SVG + "rect" else element.findall(SVG + "rect")
        animation = element.find(SVG + "animate")
        if animation is not None:
            assert animation.get("dur") == f"{seconds:g}s"
            times = [float(time) for time in animation.get("keyTimes").split(";")]
            values = animation.get("values").split(";")
            assert times[0] == 0
            assert times == sorted(set(times))
            assert element.get("visibility") == values[-1], "without animation the last frame is shown"
            if values[max(k for k, time in enumerate(times) if time <= moment)] == "hidden":
                continue
        visible += [rect.get("fill") for rect in rooms if rect.get("stroke-width") == "1.3"]
    return visible


def test_animated_svg_equals_the_frames():
    tokens = samples(2)
    animation = animate(trajectory(tokens), placements(tokens))
    text = to_animated_svg(animation)
    assert "<script" not in text
    root, starts = ElementTree.fromstring(text), np.concatenate([[0.0], np.cumsum(animation.seconds)])
    for frame, page in enumerate(animation.pages()):
        moment = (starts[frame] + starts[frame + 1]) / 2 / starts[-1]
        assert fills_at(root, moment, starts[-1]) == fills(page)


def test_gif_frames_durations_and_colours():
    tokens = samples(1)
    animation = animate(np.concatenate([trajectory(tokens)[::4], tokens[None]]), placements(tokens))
    with Image.open(BytesIO(to_gif(animation.pages(), animation.seconds))) as image:
        assert image.size == (animation.width, animation.height)
        assert image.n_frames == len(animation.frames)
        assert image.info["loop"] == 0
        durations = []
        for frame in range(image.n_frames):
            image.seek(frame)
            durations.append(image.info["duration"])
        last = np.asarray(image.convert("RGB")).reshape(-1, 3)
    assert durations == pytest.approx([1000 * seconds for seconds in animation.seconds], abs=10)
    for kind in decode(tokens[0], SLOTS).types:
        colour = [int(COLOURS[kind][at : at + 2], 16) for at in (1, 3, 5)]
        assert np.abs(last - colour).max(1).min() <= 6, f"{ROOMS[kind]} has another colour"


def test_stages_of_each_sample():
    tokens = samples(3)
    page = draw_stages(trajectory(tokens), placements(tokens), size=100)
    assert (page.width, page.height) == (600, 300)
    for row, sample in enumerate(tokens):
        total = int((sample != np.where(IS_NODE, NODE_PAD, EDGE_PAD)).sum())
        captions = [s for s in page.shapes if isinstance(s, Text) and s.text.endswith(f"of {total} known")]
        counts = [int(s.text.split()[0]) for s in captions if 100 * row < s.y < 100 * row + 100]
        assert (len(counts), counts[0], counts[-1]) == (6, 0, total)
        assert counts == sorted(set(counts)), "every stage knows more"


def test_undecodable_samples_are_skipped():
    tokens = samples(3)
    tokens[1, 0] = NODE_MASK
    path = trajectory(tokens)[::6]
    path = np.concatenate([path, tokens[None]])
    (picture,) = trajectory_pictures(path, SLOTS)
    assert picture.png.startswith(b"\x89PNG")
    assert picture.gif.startswith(b"GIF89a")
    (same,) = trajectory_pictures(path[:, [0, 2]], SLOTS)
    assert replace(picture, png=None) == replace(same, png=None)
    assert list(trajectory_pictures(path[:, [1]], SLOTS)) == []
