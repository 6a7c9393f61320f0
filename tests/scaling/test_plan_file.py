"""A file that is no plan is named for what it is, in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaling.plan_file import read_plan
from strategies.decision import Decision
from strategies.emit.deepspeed import deepspeed_config
from strategies.errors import ScalingError
from strategies.presets import configs_folder
from strategies.serialize import to_json
from tests.scaling.decisions import toy_decision


@pytest.fixture(scope="module")
def decision() -> Decision:
    return toy_decision("zero2", world_size=2, accumulation=1)


def test_a_plan_is_read_as_it_was_written(decision: Decision, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(to_json(decision))
    assert read_plan(tmp_path / "plan.json") == decision


def refusal(path: Path) -> str:
    with pytest.raises(ScalingError) as caught:
        read_plan(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("safety", "NaN", "nan"),
        ("safety", "-Infinity", "-inf"),
        ("safety", "1e999", "inf"),
        ("num_params", f"1{'0' * 400}", "1000000000... (401 digits)"),
    ],
)
def test_a_number_that_no_plan_has_is_named(
    decision: Decision, tmp_path: Path, name: str, given: str, shown: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(to_json(decision).replace(f'"{name}": {getattr(decision, name)}', f'"{name}": {given}', 1))
    expected = f"{path} is not a valid plan: {name}={shown} must be below 1e+30; make it again with `scaling plan`"
    assert refusal(path) == expected


def test_a_deepspeed_configuration_is_told_and_the_plan_beside_it_named(decision: Decision, tmp_path: Path) -> None:
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps(deepspeed_config(decision)))
    expected = f"{path} is no plan: it is a DeepSpeed configuration; give the plan.json that `scaling plan --out DIR` "
    assert refusal(path).startswith(expected)
    (tmp_path / "plan.json").write_text(to_json(decision))
    assert refusal(path).endswith(f"; give {tmp_path / 'plan.json'}")
    assert refusal(tmp_path).endswith(f"Is a directory; give {tmp_path / 'plan.json'}")


def test_a_model_is_told() -> None:
    assert "it is a model's config.json; give the plan.json" in refusal(configs_folder() / "models" / "llama-demo.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no plan: it is empty; give the plan.json that `scaling plan --out DIR` writes"),
        (b"{", "is no plan: it is not JSON (Expecting property name"),
        (b"compute_environment: LOCAL_MACHINE", "is no plan: it is not JSON"),
        (b"[1]", "is no plan: it holds no object in braces; give"),
        (b"{}", "is no plan: it has no model, num_params, cluster, job, plan, estimate; give"),
        (b"\xff\xfe", "cannot read the plan"),
        (None, "No such file or directory; give the plan.json that"),
    ],
)
def test_other_files_are_told(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "other.json"
    if content is not None:
        path.write_bytes(content)
    assert message in refusal(path)


def test_a_wrong_setting_is_named_without_words_of_a_library(decision: Decision, tmp_path: Path) -> None:
    content: dict[str, Any] = json.loads(to_json(decision))
    content["job"]["seq_len"] = "long"
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(content))
    assert refusal(path) == (
        f'{path} is not a valid plan: job.seq_len="long" must be a whole number; make it again with `scaling plan`'
    )
