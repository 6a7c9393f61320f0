"""Packed samples and the split into training and evaluation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling.data.errors import DataError
from scaling.data.packed import PackedDataset, evaluation_start
from scaling.data.source import open_source
from scaling.data.store_format import StoreHeader, TokenStore
from scaling.data.token_store import build_token_store
from scaling.data.tokenizer import load_tokenizer


def store_of(*document_lengths: int) -> TokenStore:
    """A store whose token ``i`` is ``i``, so that a sample shows where it was cut."""
    num_tokens = sum(document_lengths)
    header = StoreHeader(
        source="test",
        fingerprint="",
        dtype="uint32",
        vocab_size=num_tokens,
        separator_id=0,
        num_tokens=num_tokens,
        num_documents=len(document_lengths),
        num_empty_documents=0,
        num_text_bytes=num_tokens,
        content_hash="",
    )
    tokens = np.arange(num_tokens, dtype=np.uint32)
    return TokenStore(
        path=Path(), header=header, tokens=tokens, document_ends=np.cumsum(document_lengths, dtype=np.uint64)
    )


def test_samples_are_consecutive_slices_and_the_rest_is_left_out() -> None:
    dataset = PackedDataset(store_of(7, 4), seq_len=3, split="train", eval_fraction=0.0)
    assert len(dataset) == 3
    assert [dataset[index].tolist() for index in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    for index in (3, -1):
        with pytest.raises(IndexError, match=rf"sample {index} is not in 0..2"):
            dataset[index]


def test_batch_is_a_tensor_of_the_samples_in_order() -> None:
    dataset = PackedDataset(store_of(20), seq_len=4, split="train", eval_fraction=0.0)
    batch = dataset.batch(np.array([3, 0]))
    assert batch.dtype == torch.int64
    assert batch.tolist() == [[12, 13, 14, 15], [0, 1, 2, 3]]
    assert dataset.batch(np.empty(0, dtype=np.int64)).shape == (0, 4)


def test_batch_from_a_file_on_disk_is_the_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello world")
    store = build_token_store(
        open_source(str(tmp_path / "a.txt")), load_tokenizer("bytes"), cache_dir=tmp_path, show_progress=False
    )
    batch = PackedDataset(store, seq_len=5, split="train", eval_fraction=0.0).batch(np.array([1, 0]))
    assert [bytes(row.tolist()) for row in batch] == [b" worl", b"hello"]
    batch[0, 0] = 0  # the tensor is a copy: the file cannot be written through it
    assert PackedDataset(store, seq_len=5, split="train", eval_fraction=0.0)[1].tolist() == list(b" worl")


@pytest.mark.parametrize(
    ("document_lengths", "eval_fraction", "start"),
    [
        ([100], 0.0, 100),
        ([90, 10], 0.1, 90),
        ([85, 15], 0.1, 85),  # one and a half times the share: still whole documents
        ([84, 16], 0.1, 90),  # more: cut inside the document
        ([95, 5], 0.1, 95),
        ([96, 4], 0.1, 90),
        ([50, 42, 8], 0.1, 92),
        ([50, 30, 8, 12], 0.1, 88),
        ([100], 0.25, 75),
        ([10] * 10, 0.5, 50),
    ],
)
def test_evaluation_takes_the_last_documents(document_lengths: list[int], eval_fraction: float, start: int) -> None:
    assert evaluation_start(store_of(*document_lengths), eval_fraction) == start


@settings(deadline=None, max_examples=200)
@given(
    document_lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40),
    seq_len=st.integers(1, 8),
    eval_fraction=st.floats(0.01, 0.99),
)
def test_splits_share_no_token_and_lose_less_than_a_sample_each(
    document_lengths: list[int], seq_len: int, eval_fraction: float
) -> None:
    store = store_of(*document_lengths)
    seen: list[int] = []
    num_splits = 0
    for split in ("train", "eval"):
        try:
            dataset = PackedDataset(store, seq_len=seq_len, split=split, eval_fraction=eval_fraction)
        except DataError:  # shorter than one sample
            continue
        seen += [int(token) for index in range(len(dataset)) for token in dataset[index]]
        num_splits += 1
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    assert len(seen) > store.num_tokens - 2 * seq_len
    held_out = store.num_tokens - evaluation_start(store, eval_fraction)
    assert abs(held_out - store.num_tokens * eval_fraction) <= store.num_tokens * eval_fraction / 2 + 1


@pytest.mark.parametrize(
    ("seq_len", "split", "eval_fraction", "message"),
    [
        (101, "train", 0.0, r"seq_len=101 is longer than the training data of 100 tokens; shorten it or add data$"),
        (95, "train", 0.1, r"seq_len=95 is longer than the training data of 90 tokens; .*lower eval_fraction=0.1"),
        (11, "eval", 0.1, r"eval_fraction=0.1 holds out 10 of 100 tokens, fewer than seq_len=11; raise it to 0.11, "),
        (1, "eval", 0.0, r"eval_fraction=0.0 holds out 0 of 100 tokens, fewer than seq_len=1; raise it to 0.01, "),
        (51, "eval", 0.1, r"fewer than seq_len=51; shorten seq_len, add data, or do not evaluate"),
        (0, "train", 0.1, r"seq_len=0 must be above zero"),
        (8, "train", 1.0, r"eval_fraction=1.0 must be at least 0 and below 1"),
        (8, "train", -0.1, r"eval_fraction=-0.1 must be at least 0 and below 1"),
    ],
)
def test_packing_refuses_what_does_not_fit(seq_len: int, split: str, eval_fraction: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PackedDataset(store_of(100), seq_len=seq_len, split=split, eval_fraction=eval_fraction)  # type: ignore[arg-type]
