"""What a name stands for, and what comes out of each kind of file."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.data import text_source
from scaling.data.errors import DataError
from scaling.data.source import open_source, read_texts
from scaling.data.text_source import document_pieces, string_pieces

ROWS = ["first\r\ndocument", "", 'with "quotes", commas\nand lines', "日本語 🙂"]


def write_jsonl(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_builtin_corpus_is_the_standard_library() -> None:
    texts = list(read_texts("builtin:python"))
    library = Path(sysconfig.get_paths()["stdlib"])
    for name in ("argparse.py", "json/decoder.py", "asyncio/tasks.py"):
        assert (library / name).read_text(encoding="utf-8") in texts
    for name in ("encodings/cp437.py", "idlelib/pyshell.py"):
        assert not (library / name).is_file() or (library / name).read_text(encoding="utf-8") not in texts
    assert 5_000_000 < sum(map(len, texts)) < 30_000_000
    assert texts == list(read_texts("python-stdlib"))


@pytest.mark.parametrize("suffix", [".txt", ".md", ".py"])
def test_text_file_is_one_document_unchanged(tmp_path: Path, suffix: str) -> None:
    content = "first line\r\nsecond\rthird\n\n日本語\x00 end without newline"
    (tmp_path / f"a{suffix}").write_bytes(content.encode())
    assert list(read_texts(str(tmp_path / f"a{suffix}"))) == [content]


def test_text_file_loses_only_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    assert list(read_texts(str(tmp_path / "a.txt"))) == ["hello"]


def test_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name in ("b/2.txt", "a.md", "b/1.py", ".git/hidden.txt", "b/.hidden.txt", "picture.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    source = open_source(str(tmp_path))
    assert list(read_texts(str(tmp_path))) == ["a.md", "b/1.py", "b/2.txt"]
    assert source.description == f"{tmp_path}: 3 files (.md, .py, .txt), 1 of other kinds not read"
    assert source.num_bytes == len("a.mdb/1.pyb/2.txt")


def test_glob_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    for name in ("x/3.txt", "2.txt", "1.txt", "1.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(read_texts(f"{tmp_path}/*.txt")) == ["1.txt", "2.txt"]
    assert list(read_texts(f"{tmp_path}/**/*.txt")) == ["1.txt", "2.txt", "x/3.txt"]


def test_every_table_format_gives_the_same_documents(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"id": index, "text": text} for index, text in enumerate(ROWS)])
    (tmp_path / "a.json").write_text(json.dumps([{"id": index, "text": text} for index, text in enumerate(ROWS)]))
    pq.write_table(pa.table({"id": [0, 1, 2, 3], "text": ROWS}), tmp_path / "a.parquet")
    quoted = ['"' + text.replace('"', '""') + '"' for text in ROWS]
    (tmp_path / "a.csv").write_bytes(("id,text\n" + "".join(f"{i},{text}\n" for i, text in enumerate(quoted))).encode())
    for suffix in ("jsonl", "json", "parquet", "csv"):
        assert list(read_texts(str(tmp_path / f"a.{suffix}"), cache_dir=tmp_path)) == ROWS, suffix


def test_table_files_follow_each_other_and_missing_texts_are_empty(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "1.jsonl", [{"text": "a"}, {"text": None}])
    write_jsonl(tmp_path / "2.jsonl", [{"text": "b"}] * 300)
    assert list(read_texts(f"{tmp_path}/*.jsonl", cache_dir=tmp_path)) == ["a", "", *["b"] * 300]


def test_table_reader_keeps_its_files_in_the_given_cache(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])
    code = f"from scaling.data.source import read_texts; from pathlib import Path\n\
print(list(read_texts({str(tmp_path / 'a.jsonl')!r}, cache_dir=Path({str(tmp_path / 'cache')!r}))))"
    environment = {"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['a']"
    left = [path for path in (tmp_path / "home").rglob("*") if path.is_file()] if (tmp_path / "home").exists() else []
    assert left == []


@pytest.mark.parametrize(
    ("row", "text_column", "expected"),
    [
        ({"text": "t", "content": "c"}, None, "t"),
        ({"title": "x", "content": "c"}, None, "c"),
        ({"id": 1, "body": "b"}, None, "b"),
        ({"text": "t", "title": "x"}, "title", "x"),
    ],
)
def test_text_column_is_found(tmp_path: Path, row: dict[str, object], text_column: str | None, expected: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [row])
    assert list(read_texts(str(path), text_column=text_column, cache_dir=tmp_path)) == [expected]


@pytest.mark.parametrize(
    ("text_column", "message"),
    [
        (None, r"cannot tell which column .* it has: title \(string\), body \(string\), id \(int64\); .*--text-column"),
        ("id", r"text_column='id' is no column of strings .* id \(int64\)"),
        ("nope", r"text_column='nope' is no column of strings .* title \(string\)"),
    ],
)
def test_text_column_is_refused_naming_the_columns(tmp_path: Path, text_column: str | None, message: str) -> None:
    path = write_jsonl(tmp_path / "a.jsonl", [{"title": "x", "body": "b", "id": 1}])
    with pytest.raises(DataError, match=message):
        list(read_texts(str(path), text_column=text_column, cache_dir=tmp_path))


def test_text_column_is_refused_for_plain_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    for name in (str(tmp_path / "a.txt"), "builtin:python"):
        with pytest.raises(DataError, match=r"text_column='body' has no meaning .*plain text files have no columns"):
            open_source(name, text_column="body")


def test_folder_of_several_kinds_is_refused(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.jsonl"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(DataError, match=r"mixes kinds of files: 2 text \(such as a.txt\), 1 json \(such as c.jsonl\)"):
        open_source(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{tmp}/missing.txt", r"no file or folder is called '.*missing.txt'"),
        ("{tmp}/missing", r"no file or folder is called"),
        ("./missing", r"no file or folder is called './missing'"),
        ("a b c", r"no file or folder is called 'a b c'"),
        ("missing.jsonl", r"no file or folder is called 'missing.jsonl'"),
        ("{tmp}/*.txt", r"no file to read in '.*/\*.txt'"),
        ("{tmp}", r"no file to read in .*; give a file, folder or glob of .md, .py, .txt, .jsonl"),
        ("{tmp}/picture.png", r"cannot read '.*picture.png': the ending must be one of"),
        ("{tmp}/*.png", r"cannot read '.*picture.png': the ending must be one of"),
    ],
)
def test_source_refuses_what_it_cannot_read(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    with pytest.raises(DataError, match=message):
        open_source(name.format(tmp=tmp_path))


def test_source_refuses_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(DataError, match=r"a.txt is not UTF-8 text .*convert it"):
        list(read_texts(str(tmp_path / "a.txt")))


@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_source_refuses_a_broken_table(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a.{suffix}").write_bytes(b'{"text": "unfinished\n\x00\xff')
    with pytest.raises(DataError, match=rf"cannot read .*a.{suffix} as (json|parquet|csv): .*; correct the file"):
        list(read_texts(str(tmp_path / f"a.{suffix}"), cache_dir=tmp_path))


def test_identity_changes_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    before = open_source(str(path)).identity()
    assert open_source(str(path)).identity() == before
    path.write_text("two!")
    assert open_source(str(path)).identity() != before


def test_identity_of_a_file_that_went_away_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    source = open_source(str(path))
    path.unlink()
    with pytest.raises(DataError, match=r"cannot read .*a.txt: No such file"):
        source.identity()
    with pytest.raises(DataError, match=r"cannot read .*a.txt: No such file"):
        list(source.pieces())


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("wikitext", ("wikitext", None, "train")),
        ("allenai/c4:en", ("allenai/c4", "en", "train")),
        ("allenai/c4:en@train[:1%]", ("allenai/c4", "en", "train[:1%]")),
        ("stas/openwebtext-10k@validation", ("stas/openwebtext-10k", None, "validation")),
    ],
)
def test_dataset_name_is_loaded_with_config_and_split(
    monkeypatch: pytest.MonkeyPatch, name: str, asked: tuple[str, str | None, str]
) -> None:
    def load_dataset(path: str, config: str | None, *, split: str) -> datasets.Dataset:
        assert (path, config, split) == asked
        return datasets.Dataset.from_dict({"text": ROWS})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert list(read_texts(name)) == ROWS


def test_dataset_name_without_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        DataError,
        match=r"no file or folder is called .nobody/nothing., and loading the dataset .* failed: it is not in the "
        r"cache, and the network is switched off by HF_HUB_OFFLINE; check the spelling",
    ):
        list(read_texts("nobody/nothing"))


@settings(deadline=None)
@given(chunks=st.lists(st.text("ab \n", max_size=30)))
def test_pieces_make_up_the_document_and_stay_small(chunks: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_source, "MAX_PIECE_CHARS", 20)
        for pieces in (list(document_pieces(chunks)), list(string_pieces("".join(chunks)))):
            assert "".join(piece.text for piece in pieces) == "".join(chunks)
            assert [piece.ends_document for piece in pieces] == [False] * (len(pieces) - 1) + [True]
            assert all(len(piece.text) <= 20 for piece in pieces)


def test_pieces_end_where_no_token_crosses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_source, "MAX_PIECE_CHARS", 16)
    pieces = [piece.text for piece in string_pieces("one\ntwo\n\n  three\nfour five six seven")]
    assert pieces == ["one\n", "two\n\n  three\n", "four five six se", "ven"]


def test_a_home_folder_that_does_not_exist_is_told() -> None:
    with pytest.raises(DataError, match=r"'~nouser/x.txt' begins with '~nouser', and there is no such home folder"):
        open_source("~nouser/x.txt")


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_a_table_without_rows_is_told(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"empty.{suffix}"
    path.write_text("")
    if suffix == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(DataError, match=rf"empty.{suffix} has no rows; name files that do"):
        list(read_texts(str(path), cache_dir=tmp_path))


def test_an_empty_table_beside_others_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("")
    write_jsonl(tmp_path / "2.jsonl", [{"text": "b"}])
    assert list(read_texts(f"{tmp_path}/*.jsonl", cache_dir=tmp_path)) == ["b"]
