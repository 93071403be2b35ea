"""The table at the end of a run."""

from dither.engine.summary import show_figures


def test_the_noise_floor_of_a_figure_stands_beside_it(console):
    figures = {"sample": {"js": 0.25, "level": 1.0, "js_floor": 0.125, "ground_floor": 7.0}}
    show_figures(console, {"figures": figures, "baselines": {"js/real": 0.5, "other/real": 3.0}})
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines == [
        "figure model baseline",
        "sample js 0.25 floor 0.125, real 0.5",
        "sample level 1",
        "sample ground_floor 7",
        "baseline other/real 3",
    ]


def test_an_interval_stands_behind_its_figure(console):
    show_figures(console, {"figures": {"valid": {"nats": 3.0, "nats_ci95": 0.25}}, "baselines": {"nats/unigram": 4.0}})
    assert [" ".join(line.split()) for line in console.export_text().splitlines()][1:] == [
        "valid nats 3 ± 0.25 unigram 4"
    ]
