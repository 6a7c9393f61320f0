"""Samples of language models: what is hidden from a masked one, and documents that are padded instead of packed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from scaling.data.errors import DataError
from scaling.data.order import Draw, SampleOrder
from scaling.data.padded import PaddedDocuments
from scaling.data.samples import MaskedSamples
from scaling.data.source import open_source
from scaling.data.store_format import TokenStore
from scaling.data.token_store import build_token_store
from scaling.data.tokenizer import byte_tokenizer, with_mask_token
from scaling.losses import IGNORED_LABEL
from scaling.tasks.language import CausalLm
from tests.scaling.decisions import TINY_LLAMA

TEXTS = ("a", "four", "a somewhat longer document", "", "the end")


class Rows:
    """A hundred rows of letters."""

    def __len__(self) -> int:
        return 100

    def batch(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> torch.Tensor:
        return (torch.arange(200).repeat(len(ids), 1) + torch.from_numpy(ids).unsqueeze(1)) % 26 + 97


def draw(*positions: int) -> Draw:
    return Draw(ids=np.array(positions) % 100, positions=np.array(positions))


@pytest.fixture(scope="module")
def masked() -> MaskedSamples:
    return MaskedSamples(Rows(), with_mask_token(byte_tokenizer()), share=0.15, seed=3, is_training=True)


def test_hidden_tokens_are_replaced_in_the_shares_of_the_bert_paper(masked: MaskedSamples) -> None:
    # Devlin et al. 2018, section 3.1: 15 % to predict; of those 80 % the mask, 10 % any token, 10 % as they are.
    batch = masked.batch(draw(*range(100)))
    plain = Rows().batch(np.arange(100))
    is_hidden, shown = batch.labels != IGNORED_LABEL, batch.inputs["input_ids"]
    number = int(is_hidden.sum())
    assert batch.num_loss_units == number
    assert number / plain.numel() == pytest.approx(0.15, abs=0.01)  # 20,000 tokens: three deviations are 0.008
    assert int((shown[is_hidden] == 259).sum()) / number == pytest.approx(0.8, abs=0.03)
    assert int((shown[is_hidden] == plain[is_hidden]).sum()) / number == pytest.approx(0.1, abs=0.03)
    assert torch.equal(shown[~is_hidden], plain[~is_hidden])
    assert torch.equal(batch.labels[is_hidden], plain[is_hidden])


def test_what_is_hidden_depends_on_the_position_in_the_run_alone(masked: MaskedSamples) -> None:
    whole, part = masked.batch(draw(4, 5, 6, 7)), masked.batch(draw(6, 7))
    assert torch.equal(whole.inputs["input_ids"][2:], part.inputs["input_ids"])
    assert torch.equal(whole.labels[2:], part.labels)
    a_pass_later = masked.batch(draw(106))
    assert torch.equal(Rows().batch(np.array([6])), Rows().batch(np.array([106 % 100])))
    assert not torch.equal(a_pass_later.labels, part.labels[:1])


def test_special_tokens_are_never_hidden() -> None:
    class Separators(Rows):
        def batch(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> torch.Tensor:
            return torch.full((len(ids), 200), 257)

    masked = MaskedSamples(Separators(), with_mask_token(byte_tokenizer()), share=0.5, seed=0, is_training=True)
    assert masked.batch(draw(0, 1)).num_loss_units == 0


def test_a_tokenizer_without_a_mask_token_is_refused() -> None:
    with pytest.raises(DataError, match="has no mask token"):
        MaskedSamples(Rows(), byte_tokenizer(), share=0.15, seed=0, is_training=True)
    other = byte_tokenizer()
    other.add_special_tokens({"cls_token": "<|cls|>"})
    with pytest.raises(DataError, match="has no mask token; choose one made for masked models"):
        with_mask_token(other)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    for index, text in enumerate(TEXTS):
        (tmp_path / f"{index}.txt").write_text(text)
    source = open_source(str(tmp_path))
    return build_token_store(source, byte_tokenizer(), cache_dir=tmp_path / "cache", show_progress=False)


def test_documents_become_rows_of_their_own_and_long_ones_are_cut(store: TokenStore) -> None:
    documents = PaddedDocuments(store, seq_len=10, split="train", eval_fraction=0.0, padding_id=258)
    rows = [
        documents.batch(Draw(ids=np.array([index]), positions=np.array([index]))) for index in range(len(documents))
    ]
    texts = ["".join(chr(each) if each < 256 else "|" for each in row.inputs["input_ids"][0].tolist()) for row in rows]
    assert texts == ["a|", "four|", "a somewhat", " longer do", "cument|", "the end|"]


def test_padding_has_no_label_and_no_attention(store: TokenStore) -> None:
    documents = PaddedDocuments(store, seq_len=10, split="train", eval_fraction=0.0, padding_id=258)
    batch = documents.batch(Draw(ids=np.array([0, 1]), positions=np.array([0, 1])))
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    assert batch.labels.tolist() == [[97, 257, -100, -100, -100], [102, 111, 117, 114, 257]]
    assert batch.num_loss_units == 1 + 4


def test_padded_rows_have_the_loss_of_each_document_alone(store: TokenStore) -> None:
    documents = PaddedDocuments(store, seq_len=32, split="train", eval_fraction=0.0, padding_id=258)
    model: Any = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**TINY_LLAMA))
    task = CausalLm()
    together = documents.batch(Draw(ids=np.arange(4), positions=np.arange(4)))
    alone = [documents.batch(Draw(ids=np.array([index]), positions=np.array([index]))) for index in range(4)]
    with torch.no_grad():
        # transformers' own loss, a mean over the predicted tokens of one document
        theirs = [
            float(model(input_ids=each.inputs["input_ids"], labels=each.labels).loss) * each.num_loss_units
            for each in alone
        ]
        assert float(task.loss_sum(model, together)) == pytest.approx(sum(theirs), rel=1e-6)


def test_every_token_of_every_document_is_in_one_row(store: TokenStore) -> None:
    documents = PaddedDocuments(store, seq_len=5, split="train", eval_fraction=0.0, padding_id=258)
    order = SampleOrder(num_samples=len(documents), global_batch_size=1, seed=0)
    found = [
        token
        for step in range(len(documents))
        for draw in order.rank_draws(step, rank=0, world_size=1, micro_batch_size=1)
        for token in documents.batch(draw).inputs["input_ids"].flatten().tolist()
    ]
    # of 27 and of 8 tokens: one is left over by neither, 27 = 5 * 5 + 2, 8 = 5 + 3
    assert sorted(found) == sorted(store.tokens.tolist())
