"""From the flags to samples: which reader, tokenizer and picture settings a model's task needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scaling.data.labelled import (
    CaptionedImages,
    ClassifiedImages,
    ClassifiedTexts,
    ImageReader,
    Labels,
    TextEncoder,
    choose_column,
    read_labels,
)
from scaling.data.packed import PackedDataset, Split
from scaling.data.padded import PaddedDocuments
from scaling.data.rows import Rows, open_rows, split_rows
from scaling.data.samples import CausalSamples, MaskedSamples, Samples, TokenRows
from scaling.data.source import open_source
from scaling.data.streamed import open_streams
from scaling.data.text_source import TextSource
from scaling.data.token_store import build_token_store
from scaling.data.tokenizer import tokenizer_for
from scaling.data.tokenizer import vocab_size as tokenizer_vocab_size
from scaling.errors import ConfigError, one_line
from scaling.models import kind_of
from scaling.tasks.example import require_image_length, vocabulary
from scaling.train_config import Packing, TrainConfig
from strategies.decision import Decision
from strategies.load_model import resolve_model
from strategies.model_spec import TaskKind

DEFAULT_DATA = {
    TaskKind.CAUSAL_LM: "builtin:python",
    TaskKind.MASKED_LM: "builtin:python",
    TaskKind.SEQUENCE_CLASSIFICATION: "builtin:modules",
    TaskKind.IMAGE_CLASSIFICATION: "builtin:shapes",
    TaskKind.CONTRASTIVE: "builtin:shapes",
}
"""What is always there, by what the model is made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Samples to train on and those held out."""

    tokenizer: Any
    train: Samples
    held_out: Samples | None
    content_hash: str
    label_names: tuple[str, ...] = ()


def open_samples(config: TrainConfig, decision: Decision, *, model_config: Any, show_progress: bool) -> Found:
    """Return the samples that the flags name, as the model reads them.

    Raises:
        ConfigError: a flag has no effect on this task, or the tokenizer is not the model's.
        DataError: the data cannot be read or are too few.
    """
    kind = kind_of(model_config)
    _refuse_without_effect(config, kind)
    tokenizer = tokenizer_for(config.tokenizer, kind)
    if tokenizer is not None:
        _require_embeddings(tokenizer, config, decision, model_config=model_config)
    data = DEFAULT_DATA[kind] if config.data == "auto" else config.data
    if kind in (TaskKind.CAUSAL_LM, TaskKind.MASKED_LM):
        return _texts(config, decision, kind, tokenizer, data=data, show_progress=show_progress)
    rows = open_rows(data, cache_dir=config.cache_dir)
    return _records(rows, config, decision, kind, tokenizer, model_config=model_config)


def _refuse_without_effect(config: TrainConfig, kind: TaskKind) -> None:
    reads_text = kind in (TaskKind.CAUSAL_LM, TaskKind.MASKED_LM)
    useless = {
        "packing": config.packing is not Packing.PACKED and kind is not TaskKind.CAUSAL_LM,
        "streaming": config.streaming and not reads_text,
        "label_column": config.label_column is not None and (reads_text or kind is TaskKind.CONTRASTIVE),
        "image_column": config.image_column is not None
        and kind not in (TaskKind.IMAGE_CLASSIFICATION, TaskKind.CONTRASTIVE),
        "text_column": config.text_column is not None and kind is TaskKind.IMAGE_CLASSIFICATION,
    }
    if named := [f"{name}={getattr(config, name)}" for name, is_useless in useless.items() if is_useless]:
        raise ConfigError(f"{', '.join(named)} has no effect on a model made for {kind}; leave it out")
    if config.streaming and config.packing is not Packing.PACKED:
        raise ConfigError("packing=padded does not go with streaming=True; leave one of them out")


def _require_embeddings(tokenizer: Any, config: TrainConfig, decision: Decision, *, model_config: Any) -> None:
    size = vocabulary(model_config) or 0
    if (num_ids := tokenizer_vocab_size(tokenizer)) > size:
        raise ConfigError(
            f"tokenizer={config.tokenizer} has ids up to {num_ids - 1}, but model {decision.model} has "
            f"vocab_size={size}; take the model's own tokenizer or a model with a larger vocabulary"
        )


def _texts(
    config: TrainConfig, decision: Decision, kind: TaskKind, tokenizer: Any, *, data: str, show_progress: bool
) -> Found:
    source = open_source(data, text_column=config.text_column, cache_dir=config.cache_dir)
    if config.streaming:
        return _streamed(source, config, decision, kind, tokenizer)
    seq_len, fraction = decision.job.seq_len, config.eval_fraction if config.eval_every else 0.0
    store = build_token_store(source, tokenizer, cache_dir=config.cache_dir, show_progress=show_progress)

    def samples(split: Split) -> Samples:
        if config.packing is Packing.PADDED:
            padding = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else store.separator_id
            return PaddedDocuments(store, seq_len=seq_len, split=split, eval_fraction=fraction, padding_id=padding)
        packed = PackedDataset(store, seq_len=seq_len, split=split, eval_fraction=fraction)
        return _language(packed, config, kind, tokenizer, is_training=split == "train")

    return Found(
        tokenizer=tokenizer,
        train=samples("train"),
        held_out=samples("eval") if fraction else None,
        content_hash=store.content_hash,
    )


def _streamed(source: TextSource, config: TrainConfig, decision: Decision, kind: TaskKind, tokenizer: Any) -> Found:
    job = decision.job
    num_held_out = config.eval_batches * job.global_batch_size if config.eval_every else 0
    train, held_out = open_streams(source, tokenizer, seq_len=job.seq_len, seed=config.seed, num_held_out=num_held_out)
    return Found(
        tokenizer=tokenizer,
        train=_language(train, config, kind, tokenizer, is_training=True),
        held_out=_language(held_out, config, kind, tokenizer, is_training=False) if held_out else None,
        content_hash=_digest(source.identity()),
    )


def _language(rows: TokenRows, config: TrainConfig, kind: TaskKind, tokenizer: Any, *, is_training: bool) -> Samples:
    if kind is TaskKind.CAUSAL_LM:
        return CausalSamples(rows)
    share = config.mask_probability
    return MaskedSamples(rows, tokenizer, share=share, seed=config.seed, is_training=is_training)


def _records(
    rows: Rows, config: TrainConfig, decision: Decision, kind: TaskKind, tokenizer: Any, *, model_config: Any
) -> Found:
    fraction = config.eval_fraction if config.eval_every else 0.0
    folder, seq_len = resolve_model(decision.model).folder, decision.job.seq_len
    label_names: tuple[str, ...] = ()
    make: Callable[[Rows], Samples]
    match kind:
        case TaskKind.SEQUENCE_CLASSIFICATION:
            labels = _labels(rows, config, model_config)
            label_names = labels.names
            make = partial(
                ClassifiedTexts,
                encode=TextEncoder(tokenizer, seq_len=seq_len),
                text_column=choose_column(rows, "text", config.text_column),
                labels=labels,
            )
        case TaskKind.IMAGE_CLASSIFICATION:
            require_image_length(model_config, seq_len=seq_len)
            labels = _labels(rows, config, model_config)
            label_names = labels.names
            make = partial(
                ClassifiedImages,
                read=_image_reader(model_config, folder),
                image_column=choose_column(rows, "image", config.image_column),
                labels=labels,
            )
        case _:
            make = partial(
                CaptionedImages,
                encode=TextEncoder(tokenizer, seq_len=seq_len, ends_with=_end_of_caption(model_config, tokenizer)),
                read=_image_reader(model_config.vision_config, folder),
                text_column=choose_column(rows, "text", config.text_column),
                image_column=choose_column(rows, "image", config.image_column),
            )
    train, held_out = split_rows(rows, eval_fraction=fraction)
    return Found(
        tokenizer=tokenizer,
        train=make(train),
        held_out=make(held_out) if held_out else None,
        content_hash=_digest(rows.identity()),
        label_names=label_names,
    )


def _labels(rows: Rows, config: TrainConfig, model_config: Any) -> Labels:
    column = choose_column(rows, "label", config.label_column)
    return read_labels(rows, column, num_labels=model_config.num_labels)


def _image_reader(vision: Any, folder: Path | None) -> ImageReader:
    """Return the reader for the model's pictures; mean and deviation are those of its preprocessor_config.json."""
    file = folder / "preprocessor_config.json" if folder else None
    settings = _read_settings(file) if file and file.is_file() else {}
    centre = [0.5] * vision.num_channels  # transformers' ViTImageProcessor, where nothing is said
    mean, std = settings.get("image_mean", centre), settings.get("image_std", centre)
    for name, values in (("image_mean", mean), ("image_std", std)):
        if not isinstance(values, list) or len(values) != vision.num_channels:
            raise ConfigError(f"{file} has {name}={values}, and the model has num_channels={vision.num_channels}")
    return ImageReader(size=vision.image_size, num_channels=vision.num_channels, mean=mean, std=std)


def _read_settings(file: Path) -> dict[str, Any]:
    try:
        settings = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {one_line(error)}; correct it or take it away") from error
    return settings if isinstance(settings, dict) else {}


def _end_of_caption(model_config: Any, tokenizer: Any) -> int:
    """Return the token at whose place CLIP reads a text.

    Raises:
        ConfigError: the tokenizer's is another one, so that the model would read somewhere else.
    """
    expected, end = model_config.text_config.eos_token_id, tokenizer.eos_token_id
    # transformers 5.24, modeling_clip.py: 2 stands for the largest id of a text, as in the first published configs.
    if expected != end and not (expected == 2 and end == tokenizer_vocab_size(tokenizer) - 1):
        raise ConfigError(
            f"the model reads a text at eos_token_id={expected}, but the tokenizer ends one with {end}; set "
            f"text_config.eos_token_id={end} in its config.json, or take the model's own tokenizer"
        )
    return int(end)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
