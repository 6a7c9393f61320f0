"""Token stores: what is in them, when they are made again, and many processes that want the same one."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from scaling.data import build_lock, text_source, token_writer
from scaling.data.errors import DataError
from scaling.data.source import open_source
from scaling.data.text_source import Piece, TextSource
from scaling.data.token_store import build_token_store, open_token_store
from scaling.data.tokenizer import load_tokenizer

EOS = 257  # of the byte tokenizer
TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents(TextSource):
    """Documents in memory. All share one identity, so that what a builder does can be varied behind one name."""

    texts: tuple[str, ...]
    log: Path
    """A line is added whenever reading begins."""
    seconds: float = 0.0
    """How long reading takes before the last document."""

    @property
    def description(self) -> str:
        return "documents"

    @property
    def num_bytes(self) -> None:
        return None

    def identity(self) -> str:
        return "documents"

    def pieces(self) -> Iterator[Piece]:
        with self.log.open("a") as log:
            log.write(f"{os.getpid()}\n")
        for index, text in enumerate(self.texts):
            if index == len(self.texts) - 1:
                time.sleep(self.seconds)
            yield Piece(text=text, ends_document=True)

    def num_readings(self) -> int:
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0


def build_in_process(source: Documents, cache_dir: Path, ready: Path) -> None:
    token_writer.MAX_BATCH_PIECES = 1  # so that a builder that is killed has written something
    tokenizer = load_tokenizer("bytes")
    ready.touch()
    build_token_store(source, tokenizer, cache_dir=cache_dir, show_progress=False)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def source(tmp_path: Path) -> Documents:
    return Documents(texts=("abc", "", "é", "xyz"), log=tmp_path / "log")


def test_store_holds_each_document_and_its_separator(source: Documents, tmp_path: Path) -> None:
    store = build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    assert store.tokens.tolist() == [*b"abc", EOS, *"é".encode(), EOS, *b"xyz", EOS]
    assert store.document_ends.tolist() == [4, 7, 11]
    assert (store.num_tokens, store.num_documents, store.header.num_empty_documents) == (11, 3, 1)
    assert (store.vocab_size, store.separator_id, store.header.num_text_bytes) == (259, EOS, 8)
    assert (store.header.source, store.header.fingerprint) == ("documents", store.path.name)
    assert store.tokens.dtype == np.uint16
    assert isinstance(store.tokens, np.memmap)
    assert not store.tokens.flags.writeable


def test_store_is_reused_and_pickles_as_its_path(source: Documents, tmp_path: Path) -> None:
    first = build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    second = build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    assert source.num_readings() == 1
    assert second.path == first.path
    copy = pickle.loads(pickle.dumps(first))
    assert copy.tokens.tolist() == first.tokens.tolist()
    assert len(pickle.dumps(first)) < 1000


def test_store_uses_four_bytes_where_ids_need_them(source: Documents, tmp_path: Path) -> None:
    words = {f"w{index}": index for index in range(70_000)}
    backend = Tokenizer(models.WordLevel(words, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="w65535")
    long_ids = Documents(texts=("w1 w65536 w69999",), log=tmp_path / "log")
    store = build_token_store(long_ids, tokenizer, cache_dir=tmp_path, show_progress=False)
    assert store.tokens.dtype == np.uint32
    assert store.tokens.tolist() == [1, 65536, 69999, 65535]
    assert (tmp_path / "tokens" / store.path.name / "tokens.bin").stat().st_size == 16


LLAMA_3_WORDS = (  # meta-llama/llama3, llama/tokenizer.py, pat_str
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize("words", ["gpt2", "llama3"])
def test_long_document_in_pieces_has_the_tokens_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    backend = Tokenizer(models.BPE())
    llama_3 = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA_3_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.pre_tokenizer = llama_3 if words == "llama3" else pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = Path(__file__).read_text()
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=["<eos>"], show_progress=False)
    backend.train_from_iterator([text], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")
    monkeypatch.setattr(text_source, "MAX_PIECE_CHARS", 3000)
    monkeypatch.setattr(token_writer, "MAX_BATCH_CHARS", 4000)
    monkeypatch.setattr(token_writer, "MAX_BATCH_PIECES", 2)
    store = build_token_store(open_source(__file__), tokenizer, cache_dir=tmp_path, show_progress=False)
    assert len(list(open_source(__file__).pieces())) > 3
    assert store.tokens.tolist() == [*tokenizer(text)["input_ids"], 0]
    assert store.document_ends.tolist() == [store.num_tokens]


def test_store_is_made_again_when_a_file_or_the_tokenizer_changes(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    tokenizer = load_tokenizer("bytes")

    def build() -> tuple[str, str]:
        store = build_token_store(open_source(str(path)), tokenizer, cache_dir=tmp_path, show_progress=False)
        return store.path.name, store.content_hash

    first = build()
    os.utime(path, ns=(1, 1))
    touched = build()
    assert touched[0] != first[0]
    assert touched[1] == first[1]
    path.write_text("two")
    edited = build()
    assert edited[1] != first[1]
    tokenizer.add_tokens(["tw"])
    assert build()[0] != edited[0]


@pytest.mark.parametrize("damage", ["tokens.bin", "document_ends.bin", "header.json"])
def test_damaged_store_is_made_again_with_a_warning(
    source: Documents, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    expected = store.tokens.tolist()
    with (store.path / damage).open("r+b") as file:
        file.truncate(3)
    with pytest.raises(DataError, match=r"holds no complete token store .*delete it and build it again"):
        open_token_store(store.path)
    with caplog.at_level(logging.WARNING):
        rebuilt = build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    assert rebuilt.tokens.tolist() == expected
    assert "it is built again" in caplog.text


@pytest.mark.parametrize("texts", [(), ("", "")])
def test_empty_corpus_is_refused_and_leaves_nothing(tmp_path: Path, texts: tuple[str, ...]) -> None:
    empty = Documents(texts=texts, log=tmp_path / "log")
    with pytest.raises(DataError, match=r"documents holds no text; name files that do"):
        build_token_store(empty, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    assert [path.suffix for path in (tmp_path / "tokens").iterdir()] == [".lock"]


def test_unreadable_document_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("good")
    (tmp_path / "2.txt").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"2.txt is not UTF-8 text"):
        build_token_store(open_source(f"{tmp_path}/*.txt"), load_tokenizer("bytes"), cache_dir=tmp_path)
    assert [path.suffix for path in (tmp_path / "tokens").iterdir()] == [".lock"]


def test_cache_folder_that_cannot_be_written_is_refused(source: Documents, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(DataError, match=r"cannot write the token store .*; free space there or choose another cache"):
        build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path / "file", show_progress=False)


def test_file_system_without_locks_is_refused(
    source: Documents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(build_lock.fcntl, "flock", no_locks)
    with pytest.raises(
        DataError, match=r"cannot lock files \(Operation not supported\); choose a cache folder on a local"
    ):
        build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)


def test_progress_goes_to_stderr(source: Documents, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_token_store(source, load_tokenizer("bytes"), cache_dir=tmp_path)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "tokenise documents" in captured.err
    assert "11 tokens" in captured.err


def test_many_processes_build_once(tmp_path: Path) -> None:
    slow = Documents(texts=("abc", "xyz"), log=tmp_path / "log", seconds=0.5)
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=build_in_process, args=(slow, tmp_path, tmp_path / f"ready{index}"))
        for index in range(3)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(TIMEOUT_S)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert slow.num_readings() == 1
    store = build_token_store(slow, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    assert store.tokens.tolist() == [*b"abc", EOS, *b"xyz", EOS]


def test_killed_builder_leaves_nothing_that_is_used_and_blocks_nobody(tmp_path: Path) -> None:
    stuck = Documents(texts=("half", "written"), log=tmp_path / "log", seconds=3600)
    good = Documents(texts=("abc", "xyz"), log=tmp_path / "log")
    context = multiprocessing.get_context("spawn")
    builder = context.Process(target=build_in_process, args=(stuck, tmp_path, tmp_path / "ready1"))
    builder.start()
    folder = tmp_path / "tokens"
    wait_until(lambda: stuck.num_readings() == 1)
    waiter = context.Process(target=build_in_process, args=(good, tmp_path, tmp_path / "ready2"))
    waiter.start()
    wait_until((tmp_path / "ready2").exists)
    time.sleep(0.3)
    assert waiter.is_alive()  # it waits for the lock
    assert good.num_readings() == 1
    assert builder.pid is not None
    os.kill(builder.pid, signal.SIGKILL)
    builder.join(TIMEOUT_S)
    assert builder.exitcode == -signal.SIGKILL
    waiter.join(TIMEOUT_S)
    assert waiter.exitcode == 0
    assert sorted(path.suffix for path in folder.iterdir()) == ["", ".lock"]
    store = build_token_store(good, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    assert store.tokens.tolist() == [*b"abc", EOS, *b"xyz", EOS]


def test_builder_killed_alone_leaves_only_a_partial_store_that_the_next_one_clears(tmp_path: Path) -> None:
    stuck = Documents(texts=("half", "written"), log=tmp_path / "log", seconds=3600)
    good = Documents(texts=("abc", "xyz"), log=tmp_path / "log")
    builder = multiprocessing.get_context("spawn").Process(
        target=build_in_process, args=(stuck, tmp_path, tmp_path / "ready")
    )
    builder.start()
    wait_until(lambda: list((tmp_path / "tokens").glob("*.partial/tokens.bin")))
    assert builder.pid is not None
    os.kill(builder.pid, signal.SIGKILL)
    builder.join(TIMEOUT_S)
    assert sorted(path.suffix for path in (tmp_path / "tokens").iterdir()) == [".lock", ".partial"]
    store = build_token_store(good, load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False)
    assert store.tokens.tolist() == [*b"abc", EOS, *b"xyz", EOS]
    assert sorted(path.suffix for path in (tmp_path / "tokens").iterdir()) == ["", ".lock"]


def test_waiting_process_names_the_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def take() -> None:
        with build_lock.build_lock(tmp_path / "x.lock"):
            pass

    monkeypatch.setattr(build_lock, "FIRST_NOTICE_S", 0.0)
    waiter = threading.Thread(target=take, daemon=True)
    with caplog.at_level(logging.WARNING), build_lock.build_lock(tmp_path / "x.lock"):
        waiter.start()
        wait_until(lambda: caplog.text)
        assert waiter.is_alive()
    waiter.join(TIMEOUT_S)
    assert not waiter.is_alive()
    assert f"waiting since 0 s for process {os.getpid()} on" in caplog.text
