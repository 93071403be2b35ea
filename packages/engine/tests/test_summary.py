"""The table at the end of a run."""

from dither.engine.runs.progress import show_metrics


def test_noise_floors_are_shown(console):
    figures = {"sample": {"js": 0.25, "level": 1.0, "js_floor": 0.125, "ground_floor": 7.0}}
    show_metrics(console, {"figures": figures, "baselines": {"js/real": 0.5, "other/real": 3.0}})
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert lines == [
        "metric model baseline",
        "sample js 0.25 floor 0.125, real 0.5",
        "sample level 1",
        "sample ground_floor 7",
        "baseline other/real 3",
    ]


def test_samples_have_their_own_baselines(console):
    figures = {"valid": {"auc": 0.75, "r": 0.5}, "sample": {"auc": 0.625, "r": 0.25}}
    baselines = {"auc/mean": 0.5, "r/mean": 0.0, "sample auc/mean": 0.375, "sample gain/mean": 1.0}
    show_metrics(console, {"figures": figures, "baselines": baselines})
    assert [" ".join(line.split()) for line in console.export_text().splitlines()][1:] == [
        "valid auc 0.75 mean 0.5",
        "valid r 0.5 mean 0",
        "sample auc 0.625 mean 0.375",
        "sample r 0.25",
        "baseline sample gain/mean 1",
    ]


def test_intervals_are_shown(console):
    show_metrics(console, {"figures": {"valid": {"nats": 3.0, "nats_ci95": 0.25}}, "baselines": {"nats/unigram": 4.0}})
    assert [" ".join(line.split()) for line in console.export_text().splitlines()][1:] == [
        "valid nats 3 ± 0.25 unigram 4"
    ]
