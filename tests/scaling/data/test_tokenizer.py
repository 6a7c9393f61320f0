"""The byte tokenizer, opening other tokenizers, and the fast path to their ids."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from scaling.data.errors import DataError
from scaling.data.tokenizer import load_tokenizer, make_encoder, separator_id, tokenizer_identity, vocab_size

ANY_UTF8 = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)  # surrogates have no UTF-8 form
TEXTS = [
    "def f(x):\n\treturn  x\r\n",
    "naïve café 日本語 🙂",
    "",
    "a <eos> b <|eos|> c",
    " \n\n  leading and trailing  ",
]


@pytest.fixture(scope="module")
def reopened(tmp_path_factory: pytest.TempPathFactory) -> PreTrainedTokenizerBase:
    folder = tmp_path_factory.mktemp("bytes")
    load_tokenizer("bytes").save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder, local_files_only=True)


@pytest.fixture
def bpe() -> PreTrainedTokenizerFast:
    """A small BPE tokenizer of GPT-2's kind."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([Path(__file__).read_text()], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>")


@settings(deadline=None, max_examples=200)
@given(text=ANY_UTF8)
def test_byte_tokenizer_gives_the_utf8_bytes_and_the_text_back(reopened: PreTrainedTokenizerBase, text: str) -> None:
    for tokenizer in (load_tokenizer("bytes"), reopened):
        ids = tokenizer(text)["input_ids"]
        assert bytes(ids) == text.encode("utf-8")
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "text", ["<|eos|>", "a<|bos|><|pad|>b", "\ufeff", "\x00\r\n\u2028", "e\u0301 is not é", "\U0010ffff"]
)
def test_byte_tokenizer_keeps_texts_that_others_change(reopened: PreTrainedTokenizerBase, text: str) -> None:
    ids = reopened(text)["input_ids"]
    assert bytes(ids) == text.encode("utf-8")
    assert reopened.decode(ids) == text


def test_byte_tokenizer_saves_a_folder_that_auto_tokenizer_opens(reopened: PreTrainedTokenizerBase) -> None:
    assert isinstance(reopened, PreTrainedTokenizerFast)
    assert (reopened.bos_token_id, reopened.eos_token_id, reopened.pad_token_id) == (256, 257, 258)
    assert len(reopened) == vocab_size(reopened) == 259
    assert tokenizer_identity(reopened) == tokenizer_identity(load_tokenizer("bytes"))


def test_load_tokenizer_opens_a_folder(bpe: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    bpe.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    assert tokenizer(TEXTS)["input_ids"] == bpe(TEXTS)["input_ids"]
    assert separator_id(tokenizer) == bpe.convert_tokens_to_ids("<eos>")


@pytest.mark.parametrize("split_special_tokens", [False, True])
def test_encoder_matches_transformers(bpe: PreTrainedTokenizerFast, split_special_tokens: bool) -> None:
    bpe.split_special_tokens = split_special_tokens
    expected = bpe(TEXTS, add_special_tokens=False)["input_ids"]
    assert (bpe.eos_token_id in expected[3]) is not split_special_tokens
    bpe.backend_tokenizer.enable_truncation(3)  # a tokenizer.json may come with both
    bpe.backend_tokenizer.enable_padding(length=50)
    encoded = make_encoder(bpe, np.dtype("<u2"))(TEXTS)
    assert [ids.tolist() for ids in encoded] == expected
    assert {ids.dtype for ids in encoded} == {np.dtype("<u2")}


@settings(deadline=None)
@given(text=ANY_UTF8)
def test_encoder_of_bytes_matches_transformers(reopened: PreTrainedTokenizerBase, text: str) -> None:
    [ids, _] = make_encoder(reopened, np.dtype("<u2"))([text, *TEXTS[:1]])
    assert ids.tolist() == reopened(text, add_special_tokens=False)["input_ids"]
    assert ids.dtype == np.dtype("<u2")


def test_encoder_of_bytes_knows_tokens_that_were_added(reopened: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    reopened.save_pretrained(tmp_path)
    tokenizer = load_tokenizer(str(tmp_path))
    tokenizer.add_tokens(["return"])
    [ids] = make_encoder(tokenizer, np.dtype("<u2"))(["a return b"])
    assert ids.tolist() == [*b"a ", 259, *b" b"]


def test_encoder_works_without_a_compiled_tokenizer() -> None:
    class Words(PreTrainedTokenizerBase):
        """Stands for tokenizers in Python: only what the encoder calls."""

        def __call__(self, texts: list[str], **_: object) -> dict[str, list[list[int]]]:
            return {"input_ids": [[len(word) for word in text.split()] for text in texts]}

    encoded = make_encoder(Words(), np.dtype("<u4"))(["a bb", "", "ccc"])
    assert [ids.tolist() for ids in encoded] == [[1, 2], [], [3]]


def test_identity_differs_when_the_ids_would(bpe: PreTrainedTokenizerFast) -> None:
    before = tokenizer_identity(bpe)
    bpe("some text", truncation=True, max_length=2)  # leaves its settings behind
    assert tokenizer_identity(bpe) == before
    bpe.split_special_tokens = True
    with_split = tokenizer_identity(bpe)
    bpe.add_tokens(["return"])
    assert len({before, with_split, tokenizer_identity(bpe)}) == 3


def test_separator_is_sep_where_there_is_no_eos(bpe: PreTrainedTokenizerFast) -> None:
    bert_like = PreTrainedTokenizerFast(tokenizer_object=bpe.backend_tokenizer, sep_token="[SEP]")
    assert separator_id(bert_like) == bert_like.convert_tokens_to_ids("[SEP]")


def test_separator_is_missed_clearly(bpe: PreTrainedTokenizerFast) -> None:
    bare = PreTrainedTokenizerFast(tokenizer_object=bpe.backend_tokenizer)
    with pytest.raises(DataError, match=r"neither an eos nor a sep token"):
        separator_id(bare)


def test_load_tokenizer_refuses_a_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"tokenizer.json' is a file; give the folder"):
        load_tokenizer(str(tmp_path / "tokenizer.json"))


@pytest.mark.parametrize(
    "files", [{}, {"tokenizer.json": "{ not json"}, {"config.json": '{"model_type": "llama"}'}], ids=str
)
def test_load_tokenizer_refuses_a_folder_without_a_tokenizer(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=r"cannot open tokenizer .*give a folder written by save_pretrained"):
        load_tokenizer(str(tmp_path))


def test_load_tokenizer_says_what_to_do_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"cannot open tokenizer 'nobody/nothing-here'.*needs a network or the cache"):
        load_tokenizer("nobody/nothing-here")


def test_a_home_folder_that_does_not_exist_is_told() -> None:
    with pytest.raises(DataError, match=r"'~nouser/x' begins with '~nouser', and there is no such home folder"):
        load_tokenizer("~nouser/x")
