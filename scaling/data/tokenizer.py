"""Tokenizers: one for bytes that needs no download, and any that ``transformers`` opens."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scaling.data.errors import DataError
from scaling.data.hub import hub_or_cache
from scaling.data.paths import expand_home
from scaling.errors import kind_and_line
from strategies.hub_config import is_hub_id
from strategies.model_spec import TaskKind

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

BYTES = "bytes"
_GIVE_TOKENIZER = f"give a folder written by save_pretrained, a hub name (needs a network or the cache), or {BYTES!r}"
Encoder = Callable[[Sequence[str]], "list[NDArray[np.unsignedinteger]]"]
"""Texts to token ids, one array a text, without special tokens around it."""


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer that ``name`` stands for: ``bytes``, a folder, or a name on the Hugging Face hub.

    Code that comes with a tokenizer is not run.

    Raises:
        DataError: there is no such tokenizer, or it cannot be opened.
    """
    if name == BYTES:
        return byte_tokenizer()
    from transformers import AutoTokenizer

    path = expand_home(name)
    if path.is_file():
        raise DataError(f"tokenizer {name!r} is a file; give the folder it is in, a hub name, or {BYTES!r}")
    if not path.is_dir() and not is_hub_id(name):
        raise DataError(f"tokenizer {name!r}: there is no such folder; {_GIVE_TOKENIZER}")
    silence = ""
    try:
        if path.is_dir():
            return AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        with hub_or_cache() as silence:
            return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and TypeError for broken folders
        reason = f"it is no folder, not in the Hugging Face cache, and {silence}" if silence else kind_and_line(error)
        raise DataError(f"cannot open tokenizer {name!r}: {reason}; {_GIVE_TOKENIZER}") from error


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose ids 0 to 255 are the bytes of the UTF-8 text, then bos 256, eos 257, pad 258.

    The names of the special tokens inside a text are text, so that any text comes back exactly. ``save_pretrained``
    writes a folder that ``AutoTokenizer`` opens. Vocabulary and decoder are the byte level of GPT-2's tokenizer,
    without merges: Radford et al. 2019, "Language models are unsupervised multitask learners", section 2.2.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = _characters_of_bytes()
    backend = Tokenizer(models.BPE(vocab={character: byte for byte, character in enumerate(characters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]  # transformers 5.24: __init__ lacks annotations
        tokenizer_object=backend,
        bos_token="<|bos|>",
        eos_token="<|eos|>",
        pad_token="<|pad|>",
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )


def tokenizer_for(name: str, kind: TaskKind) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer ``name`` as models of a kind use it; None for one that reads no text.

    Raises:
        DataError: it cannot be opened, or lacks what the kind needs.
    """
    if kind is TaskKind.IMAGE_CLASSIFICATION:
        return None
    tokenizer = load_tokenizer(name)
    return with_mask_token(tokenizer) if kind is TaskKind.MASKED_LM else tokenizer


def with_mask_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return the tokenizer with a token for hidden ones; the byte tokenizer is given one, ``<|mask|>``, id 259.

    Raises:
        DataError: another tokenizer has none: a model's vocabulary is not for us to extend.
    """
    if tokenizer.mask_token_id is not None:
        return tokenizer
    if tokenizer_identity(tokenizer) != tokenizer_identity(byte_tokenizer()):
        raise DataError(f"tokenizer {tokenizer.name_or_path!r} has no mask token; choose one made for masked models")
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    return tokenizer


def separator_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the token that ends a document: eos, or where a tokenizer has none (BERT) the separator."""
    for token_id in (tokenizer.eos_token_id, tokenizer.sep_token_id):
        if isinstance(token_id, int):
            return token_id
    raise DataError(
        f"tokenizer {tokenizer.name_or_path!r} has neither an eos nor a sep token to end documents; set one"
    )


def vocab_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the largest token id plus one: a model needs at least so many embeddings. Ids may have gaps."""
    return max(tokenizer.get_vocab().values()) + 1


def make_encoder(tokenizer: PreTrainedTokenizerBase, dtype: np.dtype[np.unsignedinteger]) -> Encoder:
    """Return a function from texts to ids, equal to ``tokenizer(texts, add_special_tokens=False)``, never truncated.

    The compiled tokenizer is called directly where there is one: 2.6 times faster than through transformers 5.24, which
    computes offsets and masks and turns all of it into Python objects (byte tokenizer, one core). Bytes need no
    tokenizer at all.
    """
    from transformers import PreTrainedTokenizerFast

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        return lambda texts: [np.array(ids, dtype=dtype) for ids in _call(tokenizer, texts)]
    if tokenizer_identity(tokenizer) == tokenizer_identity(byte_tokenizer()):
        return lambda texts: [np.frombuffer(text.encode(), dtype=np.uint8).astype(dtype) for text in texts]
    backend = _plain_backend(tokenizer)
    return lambda texts: [
        np.array(encoding.ids, dtype=dtype) for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)
    ]


def tokenizer_identity(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a text that changes whenever the ids of a text may have changed."""
    from transformers import PreTrainedTokenizerFast

    facts = [type(tokenizer).__name__, str(tokenizer.split_special_tokens), str(separator_id(tokenizer))]
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        return _digest([*facts, _plain_backend(tokenizer).to_str()])
    with tempfile.TemporaryDirectory() as folder:
        files = sorted(Path(path) for path in tokenizer.save_pretrained(folder))
        return _digest([*facts, *(hashlib.blake2b(path.read_bytes()).hexdigest() for path in files)])


def _plain_backend(tokenizer: PreTrainedTokenizerFast) -> Tokenizer:
    """Return the compiled tokenizer set to give all tokens and no padding, as transformers sets it before a call."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    return backend


def _call(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    return list(encoded["input_ids"])


def _characters_of_bytes() -> list[str]:
    """Return the printable character that stands for each byte in a byte-level vocabulary.

    A byte that is a printable Latin-1 character stands for itself, the others take the characters from 256 on.
    Source: openai/gpt-2, src/encoder.py, ``bytes_to_unicode``.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _digest(parts: Sequence[str]) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()
