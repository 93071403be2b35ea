"""One reader of records for `prepare text` and prompts with responses: formats, compression, damage."""

import bz2
import gzip
import json
import lzma

import pyarrow
import pyarrow.ipc
import pytest
from pyarrow import parquet

from dither.registry.config.errors import Refused
from dither.tasks.language_model.data.documents import read_documents
from dither.tasks.language_model.data.pairs import Example
from dither.tasks.language_model.data.specs import (
    ConvertedText,
    PromptResponse,
    TextFiles,
)
from dither.tasks.language_model.data.text_files import (
    NotText,
    read_files,
    read_text_file,
)
from dither.tasks.prepared.rejected import Rejected

pytestmark = pytest.mark.usefixtures("cache")

ROWS = [
    {"prompt": f"question {n}, naïve?", "response": f'answer "{n}"\nin two lines'}
    for n in range(20)
]
LINES = "\n".join(map(json.dumps, ROWS))
TABLE = pyarrow.Table.from_pylist(ROWS)


def zstd(data: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(data, asbytes=True)


def csv_text(delimiter: str = ",") -> str:
    rows = ["prompt", "response"], *([*row.values()] for row in ROWS)
    cells = [['"' + cell.replace('"', '""') + '"' for cell in row] for row in rows]
    return "\r\n".join(map(delimiter.join, cells))


def write_arrow(path, table=TABLE, opener=pyarrow.ipc.new_stream):
    with opener(path, table.schema) as file:
        file.write_table(table, max_chunksize=7)


def as_type(kind):
    return pyarrow.table({name: TABLE[name].cast(kind) for name in TABLE.column_names})


def as_dictionary(table):
    columns = {name: table[name].dictionary_encode() for name in table.column_names}
    return pyarrow.table(columns)


def write_bytes(content: str | bytes):
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


FORMATS = {
    "a.jsonl": write_bytes(LINES),
    "bom.jsonl": write_bytes("\ufeff" + LINES),
    "lines.json": write_bytes(LINES),
    "array.json": write_bytes("\ufeff" + json.dumps(ROWS, indent=1)),
    "a.csv": write_bytes("\ufeff" + csv_text()),
    "a.tsv": write_bytes(csv_text("\t")),
    "a.jsonl.gz": write_bytes(gzip.compress(LINES.encode())),
    "a.json.bz2": write_bytes(bz2.compress(json.dumps(ROWS).encode())),
    "a.csv.xz": write_bytes(lzma.compress(csv_text().encode())),
    "a.ndjson.zst": write_bytes(zstd(LINES.encode())),
    "a.parquet": lambda path: parquet.write_table(TABLE, path),
    "view.parquet": lambda path: parquet.write_table(
        as_type(pyarrow.string_view()), path
    ),
    "dictionary.parquet": lambda path: parquet.write_table(as_dictionary(TABLE), path),
    "stream.arrow": write_arrow,
    "large.arrow": lambda path: write_arrow(path, as_type(pyarrow.large_string())),
    "file.arrow": lambda path: write_arrow(path, opener=pyarrow.ipc.new_file),
    "a.feather": lambda path: write_arrow(path, opener=pyarrow.ipc.new_file),
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_records(tmp_path, name):
    path = tmp_path / name
    FORMATS[name](path)
    documents = [*read_documents(path, "response")]
    texts = ["".join(document.pieces) for document in documents]
    assert texts == [row["response"] for row in ROWS]
    pairs = PromptResponse(paths=[str(path)]).examples()
    texts = [[piece.text for piece in pair.pieces] for pair in pairs]
    found = [{"prompt": prompt, "response": response} for prompt, response in texts]
    assert found == ROWS


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.zst"])
def test_compressed_text(tmp_path, name):
    text = "first\nsecond, naïve\n" * 50
    data = text.encode()
    ways = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress, "zst": zstd}
    compressed = ways[name[2:]](data)
    path = tmp_path / f"text.txt.{name[2:]}"
    path.write_bytes(compressed)
    (document,) = read_documents(path, "text")
    assert "".join(document.pieces) == text
    assert read_text_file(path) == text
    corpus = TextFiles(paths=[str(path)]).build()
    parts = [corpus.splits[split][0].load() for split in ("train", "valid", "test")]
    assert "".join(parts) == text
    path.write_bytes(compressed[: len(compressed) // 2])
    with pytest.raises(Refused):
        ConvertedText(paths=[str(path)], tokenizer="bytes").prepare()
    with pytest.raises(Refused):
        TextFiles(paths=[str(path)]).build()


BROKEN = {
    "surrogate": (b'{"prompt": "a", "response": "\\ud800"}', "damaged-file"),
    "latin": (b'{"prompt": "a", "response": "caf\xe9"}', "damaged-file"),
    "comma": (b'{"prompt": "a", "response": "b",}', "syntax-error"),
    "list": (b'["a", "b"]', "invalid-value"),
    "number": (b'{"prompt": 7, "response": "b"}', "invalid-value"),
    "key": (b'{"prompt": "a", "answer": "b"}', "invalid-value"),
}


@pytest.mark.parametrize("damage", BROKEN)
def test_broken_lines_are_named_by_both_readers(tmp_path, damage):
    raw, code = BROKEN[damage]
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(LINES.encode() + b"\n" + raw)
    (misfit,) = PromptResponse(paths=[str(path)]).check()
    assert misfit.code == code
    assert misfit.message.startswith(f"{path}:21: ")
    if damage in ("latin", "comma", "list", "key"):
        last = [*read_documents(path, "response")][-1]
        assert isinstance(last, Rejected)
        assert last.place == f"{path}, line 21"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", '[{"text": "a"},]'),
        ("a.json", '[{"text": "a"}'),
        ("a.json", '{"text": "a"'),
        ("a.csv", 'text,text\n"a","b"'),
        ("a.csv", 'text,n\n"a"b,c'),
        ("a.csv", "text,n\na,b,c"),
        ("a.jsonl", ""),
        ("a.jsonl", "\n \n"),
        ("a.json", "[]"),
        ("a.csv", "text,n\n"),
        ("a.parquet", "text"),
        ("a.arrow", "text"),
        ("a.parquet.gz", "text"),
    ],
)
def test_damaged_records_are_never_plain_text(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    (rejected,) = read_documents(tmp_path / name, "text")
    assert isinstance(rejected, Rejected)


@pytest.mark.parametrize(
    "name", ["a.jsonl", "a.json", "a.csv", "a.TSV", "part-0", "a.txt", "a.gz"]
)
def test_records_are_never_plain_text(tmp_path, refused, name):
    lines = "".join(json.dumps({"text": f"line {n}"}) + "\n" for n in range(3))
    data = lines.encode()
    if name.endswith(".gz"):
        data = gzip.compress(data)
    path = tmp_path / name
    path.write_bytes(data)
    with refused("unknown-format"):
        TextFiles(paths=[str(path)]).build()
    with refused("unreadable-file"):
        read_text_file(path)
    # Of a name that says nothing, also where records are expected.
    if name in ("part-0", "a.txt", "a.gz"):
        (document,) = read_documents(path, "text")
        with pytest.raises(NotText, match="JSON lines"):
            "".join(document.pieces)
        # Another key is that of a text in JSON.
        (document,) = read_documents(path, "body")
        assert "".join(document.pieces) == lines


def test_names_of_records_are_refused_where_they_are_named(tmp_path, caplog):
    folder = tmp_path / "my code"
    folder.mkdir()
    (folder / "a.txt").write_text("text\n")
    (folder / "package.json").write_text('{\n  "name": "a"\n}\n')
    for pattern in ("*", "**/package.json"):
        spec = TextFiles(paths=[f"{folder}/{pattern}"])
        assert not [*spec.check()]
    caplog.clear()
    documents = read_files([f"{folder}/*"])
    assert [document.load()[0] for document in documents] == ["t", "{"]
    assert "read as plain text: 1, such as" in caplog.text
    path = f"{folder}/package.json"
    (misfit,) = TextFiles(paths=[path]).check()
    assert (misfit.path, misfit.code) == (("paths", 0), "unknown-format")
    assert misfit.help == f"dither prepare text '{path}'"


@pytest.mark.parametrize(
    ("name", "renamed"), [("part-0", "part-0.jsonl"), ("a.gz", "a.jsonl.gz")]
)
def test_records_without_a_name_get_one(tmp_path, refusal, name, renamed):
    data = b'{"text": "a"}\n' * 3
    (tmp_path / name).write_bytes(gzip.compress(data) if "gz" in name else data)
    (problem,) = refusal(read_files, [str(tmp_path / name)]).problems
    fix = f"rename it, then: dither prepare text {tmp_path / renamed}"
    assert problem.help == fix
    (tmp_path / name).rename(tmp_path / renamed)
    assert len([*read_documents(tmp_path / renamed, "text")]) == 3


def test_arrow_streams_may_end_without_a_mark(tmp_path, caplog):
    path = tmp_path / "a.arrow"
    write_arrow(path)
    whole = path.read_bytes()
    assert len([*read_documents(path, "prompt")]) == len(ROWS)
    path.write_bytes(whole + bytes(100))
    assert len([*read_documents(path, "prompt")]) == len(ROWS)
    assert not caplog.text
    # One that was closed so, or cut between two batches.
    path.write_bytes(whole[:-8])
    assert len([*read_documents(path, "prompt")]) == len(ROWS)
    assert "may be cut short" in caplog.text
    # Cut inside of a batch.
    for length in (9, 12, 30):
        path.write_bytes(whole[:-length])
        rejected = [*read_documents(path, "prompt")][-1]
        assert isinstance(rejected, Rejected)
        assert rejected.sort == "unreadable"


def conversations_of(tmp_path, template, rows):
    """Return the texts of rows in JSON lines, and of the same rows in a table."""
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    texts = []
    for name in ("a.jsonl", "a.parquet"):
        spec = PromptResponse(
            paths=[str(tmp_path / name)], messages="chat", chat_template=str(template)
        )
        texts.append([example.load() for example in spec.examples()])
    return texts


def test_conversations_of_tables_are_those_of_lines(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{{ m.role }}{% if 'name' in m %} {{ m.name }}{% endif %}"
        ": {{ m.content }}\n{% endfor %}"
    )
    ask = {"role": "user", "name": "Ada", "content": "hi"}
    rows = [{"chat": [ask, {"role": "assistant", "content": f"{n}"}]} for n in range(4)]
    lines, table = conversations_of(tmp_path, template, rows)
    assert lines == table
    assert lines[3] == "user Ada: hi\nassistant: 3\n"


def test_nulls_of_json_are_seen_by_templates(tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for m in messages %}{% if 'calls' in m %}{{ m.calls }} {% endif %}"
        "{{ m.content }}\n{% endfor %}"
    )
    messages = [
        {"role": "user", "content": "hi", "calls": None},
        {"role": "assistant", "content": "yes", "calls": "f"},
    ]
    rows = [{"chat": messages}] * 3
    texts = [found[0] for found in conversations_of(tmp_path, template, rows)]
    # In a table a null is a key that another message has.
    assert texts == ["None hi\nf yes\n", "hi\nf yes\n"]


def test_a_line_of_json_errors_in_an_array_is_named(tmp_path, refusal):
    path = tmp_path / "pairs.json"
    path.write_text('[\n{"prompt": "a", "response": "b"},\n]')
    refused = refusal(PromptResponse(paths=[str(path)]).examples)
    assert refused.codes == ["syntax-error"]
    assert "line 2" in str(refused) or "line 3" in str(refused)


def test_nulls_and_empty_labels_are_missing(tmp_path):
    rows = [{"prompt": None, "response": "b", "kind": None}, {"response": "c"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    spec = PromptResponse(paths=[str(tmp_path / "a.parquet")], label="kind")
    assert [
        (p.pieces[0].text, p.label) for p in spec.examples() if isinstance(p, Example)
    ] == [("", None)] * 2
    assert spec.label_names() == ()


def test_the_index_column_of_pandas_is_no_label(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(",prompt,response\n0,hi,hello\n1,hi,hello\n")
    pairs = [
        p
        for p in PromptResponse(paths=[str(path)]).examples()
        if isinstance(p, Example)
    ]
    assert [(p.pieces[0].text, p.label) for p in pairs] == [("hi", None), ("hi", None)]
