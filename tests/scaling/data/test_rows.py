"""Records with labels and pictures: every kind of file, the split, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from scaling.data.errors import DataError
from scaling.data.labelled import (
    ClassifiedImages,
    ClassifiedTexts,
    ImageReader,
    TextEncoder,
    choose_column,
    read_labels,
)
from scaling.data.order import Draw
from scaling.data.rows import Rows, open_rows, split_rows
from scaling.data.tokenizer import byte_tokenizer

RECORDS = [{"text": "good", "label": "pos"}, {"text": "bad", "label": "neg"}, {"text": "fine", "label": "pos"}]


def records(rows: Rows) -> list[Any]:
    return [dict(rows.row(index)) for index in range(len(rows))]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_a_table_is_read_by_its_columns(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"reviews{suffix}"
    table = datasets.Dataset.from_list(RECORDS)
    match suffix:
        case ".jsonl":
            file.write_text("".join(json.dumps(each) + "\n" for each in RECORDS))
        case ".csv":
            table.to_csv(str(file))
        case _:
            table.to_parquet(str(file))
    rows = open_rows(str(file), cache_dir=tmp_path / "cache")
    assert records(rows) == RECORDS
    labels = read_labels(rows, "label", num_labels=2)
    assert labels.names == ("neg", "pos")
    assert [labels.number(each["label"]) for each in RECORDS] == [1, 0, 1]


def test_a_dataset_that_was_saved_keeps_the_names_of_its_classes(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    table.save_to_disk(str(tmp_path / "saved"))
    rows = open_rows(str(tmp_path / "saved"))
    assert read_labels(rows, "label", num_labels=2).names == ("no", "yes")


def test_a_folder_of_images_has_its_folders_as_classes(tmp_path: Path) -> None:
    for name, colour in (("cats", (255, 0, 0)), ("dogs", (0, 0, 255))):
        (tmp_path / "train" / name).mkdir(parents=True)
        for index in range(2):
            Image.new("RGB", (8, 6), colour).save(tmp_path / "train" / name / f"{index}.png")
    rows = open_rows(str(tmp_path / "train"), cache_dir=tmp_path / "cache")
    labels = read_labels(rows, choose_column(rows, "label", None), num_labels=2)
    assert labels.names == ("cats", "dogs")
    read = ImageReader(size=4, num_channels=3, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    pixels = read([rows.row(0)["image"]])
    assert pixels.shape == (1, 3, 4, 4)
    # red, 255 of 255: (1 - 0.5) / 0.5; green and blue -1
    assert pixels[0, :, 0, 0].tolist() == [1.0, -1.0, -1.0]


def test_the_split_shares_no_record_and_is_the_same_each_time() -> None:
    rows = open_rows("builtin:modules")
    train, held_out = split_rows(rows, eval_fraction=0.1)
    assert held_out is not None
    assert len(train) + len(held_out) == len(rows)
    assert len(held_out) == round(0.1 * len(rows))
    again = split_rows(rows, eval_fraction=0.1)[1]
    assert again is not None
    assert records(again) == records(held_out)
    # sorted by class on disk; of each of the four classes some are held out
    assert {each["label"] for each in records(held_out)} == {0, 1, 2, 3}


def test_long_texts_are_cut_and_the_first_is_told(caplog: pytest.LogCaptureFixture) -> None:
    encode = TextEncoder(byte_tokenizer(), seq_len=4, ends_with=257)
    found = encode(["abcdef", "ab", ""])
    assert found["input_ids"].tolist() == [[97, 98, 99, 257], [97, 98, 257, 258], [257, 258, 258, 258]]
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]]
    encode(["abcdefgh"])
    assert [record.getMessage() for record in caplog.records] == [
        "a text of 6 tokens is cut to seq_len=4; others may be too"
    ]


def test_texts_are_padded_to_the_longest_of_their_batch() -> None:
    rows = open_rows("builtin:modules")
    labels = read_labels(rows, "label", num_labels=4)
    samples = ClassifiedTexts(rows, TextEncoder(byte_tokenizer(), seq_len=512), text_column="text", labels=labels)
    batch = samples.batch(Draw(ids=np.array([0, 1]), positions=np.array([0, 1])))
    longest = max(len(rows.row(index)["text"].encode()) for index in (0, 1))
    assert batch.inputs["input_ids"].shape == (2, longest)
    assert batch.num_loss_units == 2
    assert torch.equal(batch.labels, torch.tensor([0, 0]))


class TableOf(Rows):
    description = "a table"

    def __init__(self, **columns: list[Any]) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def row(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self._columns.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._columns)

    def identity(self) -> str:
        return "a table"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1, 5], "has 6 classes, but the model tells num_labels=3 apart; set num_labels=6"),
        ([0, -1], "holds -1; classes are counted from 0"),
        (
            [0, "a", 1, "b"],
            r"label of a table mixes kinds of labels: 'a' \(text\) and 0 \(whole number\); make all of them whole "
            "numbers from 0 on, or all of them texts",
        ),
        ([0.5, 1.0], r"holds 0.5 \(number with a fraction\); make all of them whole numbers"),
        ([True, False], r"holds False \(true or false\); make all of them whole numbers"),
        ([1, None, "a", None], "label of a table is empty in 2 of 4 records, first in record 2; fill it, or leave"),
        (["", "a"], "label of a table is empty in 1 of 2 records, first in record 1"),
    ],
)
def test_labels_that_are_no_classes_are_refused(values: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_labels(TableOf(label=values), "label", num_labels=3)


def test_a_class_that_has_no_name_is_refused_before_training(tmp_path: Path) -> None:
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    # As the hub's test splits have it, whose labels are kept back.
    table = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, -1]}, features=features)
    table.save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(DataError, match="holds -1; classes are counted from 0"):
        read_labels(open_rows(str(tmp_path / "saved")), "label", num_labels=2)


def test_a_broken_picture_is_named_by_its_record(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    Image.new("RGB", (8, 6)).save(tmp_path / "cats" / "0.png")
    (tmp_path / "cats" / "1.png").write_bytes(b"no picture")
    rows = open_rows(str(tmp_path), cache_dir=tmp_path / "cache")
    assert rows.row(0)["image"].size == (8, 6)
    with pytest.raises(DataError, match=r"record 2 of .* cannot be read: UnidentifiedImageError: .*; correct it"):
        rows.row(1)


def test_an_empty_picture_is_told_and_a_text_of_zero_is_a_text() -> None:
    read = ImageReader(size=4, num_channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    labels = read_labels(TableOf(label=[0, 1]), "label", num_labels=2)
    one = Draw(ids=np.array([0]), positions=np.array([0]))
    with pytest.raises(DataError, match="image is empty in a record; fill it"):
        ClassifiedImages(TableOf(image=[None], label=[0]), read, image_column="image", labels=labels).batch(one)
    encode = TextEncoder(byte_tokenizer(), seq_len=4)
    texts = ClassifiedTexts(TableOf(text=[0], label=[0]), encode, text_column="text", labels=labels)
    assert texts.batch(one).inputs["input_ids"].tolist() == [[ord("0")]]


@pytest.mark.parametrize(
    ("num_rows", "eval_fraction", "message"),
    [
        (40, 0.01, "holds out 0 of 40 records of a table; raise it to 0.025, which holds out one, give at least 51"),
        (3, 0.1, "raise it to 0.334, which holds out one, give at least 6 records"),
        (3, 0.9, "holds out 3 of 3 records of a table; lower it to 0.667 at most, which leaves one"),
        (1, 0.1, "give at least 2 records"),
    ],
)
def test_too_few_records_to_hold_out_say_what_is_enough(num_rows: int, eval_fraction: float, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        split_rows(TableOf(label=[0] * num_rows), eval_fraction=eval_fraction)
    for word in str(caught.value).replace(",", "").split():
        if word.startswith("0.") and word != str(eval_fraction):
            train, held_out = split_rows(TableOf(label=[0] * num_rows), eval_fraction=float(word))
            assert held_out is not None
            assert min(len(train), len(held_out)) == 1
    if "at least" in message and num_rows > 1:
        enough = int(message.split("at least ")[1].split()[0])
        assert split_rows(TableOf(label=[0] * enough), eval_fraction=eval_fraction)[1] is not None
        with pytest.raises(DataError):
            split_rows(TableOf(label=[0] * (enough - 1)), eval_fraction=eval_fraction)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("no columns")
    with pytest.raises(DataError, match="is plain text, without columns"):
        open_rows(str(tmp_path / "plain.txt"))
    with pytest.raises(DataError, match=r"has no label column named label or labels .*; it has kind: name one with"):
        choose_column(TableOf(kind=["a"]), "label", None)
    with pytest.raises(DataError, match="num_channels=2 of the model is not 1, 3 or 4"):
        ImageReader(size=4, num_channels=2, mean=(0.5,), std=(0.5,))
