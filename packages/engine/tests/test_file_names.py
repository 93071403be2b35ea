"""Every place that takes a path refuses a name that no file can have, without a traceback."""

import pytest

import dither
from dither.engine.cli import main
from dither.engine.runs.run_directory import RunDirectory
from dither.registry.config.errors import Refused
from dither.registry.files.lookup import exists, is_file, is_folder

LONG = "x" * 300
NAMES = {
    "long": LONG,
    "long-inside": f"folder/{LONG}",
    "long-path": "/".join(30 * ["d" * 200]),
    "null": "a\0b",
}
PLACES = (
    "run NAME",
    "run NAME.toml",
    "run --resume NAME",
    "run EXP --runs NAME",
    "run EXP -p NAME.py",
    "run EXP --set train.start_from=NAME",
    "run EXP --set name=NAME",
    "validate NAME",
    "validate NAME.toml",
    "validate EXP -p NAME.py",
    "validate EXP --set train.start_from=NAME",
    "resolve NAME",
    "bench NAME",
    "sweep NAME",
    "sweep EXP --sweep seed=[1] --runs NAME",
    "sweep --resume NAME",
    "sweep status NAME",
    "sweep status RUN --out NAME",
    "runs list NAME",
    "runs verify NAME",
    "runs diff NAME RUN",
    "runs diff RUN NAME.toml",
    "report NAME",
    "report RUN NAME",
    "report RUN --out NAME.html",
    "sample NAME",
    "sample RUN --out NAME",
    "sample RUN --constraints NAME",
    "sample RUN --checkpoint NAME",
    "sample RUN -p NAME.py",
    "evaluate NAME",
    "evaluate RUN -p NAME.py",
    "export NAME --out other",
    "export RUN --out NAME",
    "export RUN --out NAME --hub",
    "export NAME --push a/b",
    "new experiment NAME.toml --from EXP",
    "new experiment other.toml --from NAME",
    "new plugin name --kind block --out NAME",
    "schema --out NAME",
    "registry sync --file NAME",
    "registry check --file NAME",
    "plugins test NAME.py",
    "prepare text NAME",
    "list -p NAME.py",
    "describe block adaln-zero -p NAME.py",
)
FILES = {
    "extends": 'extends = "NAME"\n',
    "extends-list": 'extends = ["exp.toml", "NAME.toml"]\n',
    "plugins": 'extends = "exp.toml"\nplugins = ["NAME.py"]\n',
    "start_from": 'extends = "exp.toml"\n[train]\nstart_from = "NAME"\n',
    "name": 'extends = "exp.toml"\nname = "NAME"\n',
}
VERBS = ("validate", "resolve", "run", "bench")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, write_experiment):
    """A run that all tests read: the commands are refused before they write."""
    folder = tmp_path_factory.mktemp("run")
    changes = {"train.steps": 1, "evaluate.every": 1, "sample.count": 1}
    return dither.train(write_experiment(folder), changes, folder / "runs")


@pytest.fixture
def run_folder(finished, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return finished


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id=key, marks=[pytest.mark.slow] if key != "null" else [])
        for key, name in NAMES.items()
    ],
)
def test_commands_refuse_impossible_names(run_folder, experiment_file, capsys, name):
    values = {"EXP": str(experiment_file), "RUN": str(run_folder)}
    wrong = []
    for place in PLACES:
        words = [
            values.get(word, word).replace("NAME", name) for word in place.split(" ")
        ]
        # A traceback fails the test.
        code = main(words)
        if code != 2:
            wrong.append((place, code, capsys.readouterr().err[-300:]))
    assert not wrong


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
@pytest.mark.parametrize("key", FILES)
def test_experiment_files_refuse_impossible_names(
    run_folder, experiment_file, name, key
):
    path = experiment_file.with_name("other.toml")
    path.write_text(FILES[key].replace("NAME", name.replace("\0", "\\u0000")))
    if key == "name":
        verbs = ["run"]
    elif name == NAMES["null"]:
        verbs = VERBS
    else:
        verbs = ["validate"]
    assert [main([verb, str(path)]) for verb in verbs] == [2] * len(verbs)


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_python_refuses_impossible_names(experiment_file, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    calls = (
        lambda: dither.load(name),
        lambda: dither.load(f"{name}/{name}"),
        lambda: dither.load_experiment(name),
        lambda: dither.train(experiment_file, {"train.steps": 1}, runs=name),
        lambda: RunDirectory.create(tmp_path, name),
        lambda: RunDirectory.open(tmp_path / name),
    )
    for call in calls:
        with pytest.raises(Refused):
            call()


@pytest.mark.parametrize(
    "variable", ["DITHER_DATA", "XDG_CACHE_HOME", "DITHER_PLUGINS"]
)
@pytest.mark.parametrize("name", [LONG, f"/{LONG}", f"~{LONG}"])
def test_environment_variables_may_hold_impossible_names(
    experiment_file, monkeypatch, variable, name, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, name)
    expected = 2 if variable == "DITHER_PLUGINS" else 0
    assert main(["validate", str(experiment_file)]) == expected
    assert main(["list"]) == expected
    assert main(["doctor"]) in (0, 1)


def test_a_name_that_no_file_can_have_names_none(tmp_path):
    for name in NAMES.values():
        path = tmp_path / name
        assert (exists(path), is_file(path), is_folder(path)) == (False, False, False)


def test_a_file_that_fails_while_it_is_read_is_named(capsys):
    assert main(["certify", "--verify", "/proc/self/mem"]) == 2
    assert "'/proc/self/mem': Input/output error" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["model", "name", "train.lr_schedule", "sampler.x"])
def test_a_word_that_is_not_utf8_is_refused(experiment_file, key):
    words = ["validate", str(experiment_file), "--set", f"{key}=a\udcffb"]
    assert main(words) == 2
