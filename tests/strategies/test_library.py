"""Planning as a call: the decision is that of the command, from any form of model, without a framework."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import strategies
from scaling.cli import app
from scaling.cli.plan import plan as command
from strategies.decision import Decision
from strategies.errors import JobError, NoPlanFitsError, PlanError, SpecError
from strategies.explain import describe_plan
from strategies.job import LossImplementation
from strategies.keywords import KINDS
from strategies.load_model import resolve_model
from strategies.plan import Plan
from strategies.serialize import from_json, plain, to_json

JOB: dict[str, Any] = {"gpus": 8, "gpu": "H100-80GB-SXM", "seq_len": 4096, "global_batch_size": 64}
FLAGS = [
    word for name, value in JOB.items() for word in (f"--{name.replace('_', '-')}", str(value))
]  # as somebody types them
OF_THE_COMMAND_ONLY = {
    *("out", "overwrite", "json", "plot", "html"),  # printed or written
    "level",  # torch
    *("what_if", "longest_seq_len", "best_global_batch_size", "largest_model", "smallest_cluster"),
}
NEEDED = {"model", "seq_len", "global_batch_size"}
"""In a call always; the command can be asked for them."""


def test_decision_is_that_of_the_command() -> None:
    printed = CliRunner().invoke(app, ["plan", "llama-3.1-8b", *FLAGS, "--json"])
    assert json.loads(printed.stdout) == plain(strategies.plan("llama-3.1-8b", **JOB))


def test_fixed_parts_are_those_of_the_command() -> None:
    fixed = ["--strategy", "zero3", "--activation-checkpointing", "full", "--micro-batch-size", "2"]
    printed = CliRunner().invoke(app, ["plan", "llama-3.1-8b", *FLAGS, *fixed, "--json"])
    decision = strategies.plan(
        "llama-3.1-8b", **JOB, strategy="zero3", activation_checkpointing="full", micro_batch_size=2
    )
    assert json.loads(printed.stdout) == plain(decision)
    assert describe_plan(decision.plan).startswith("zero3, activation checkpointing full")
    assert decision.plan.micro_batch_size == 2


def test_keywords_and_defaults_are_those_of_the_flags() -> None:
    flags = {name: each.default for name, each in inspect.signature(command).parameters.items()}
    keywords = {name: each.default for name, each in inspect.signature(strategies.plan).parameters.items()}
    assert flags.keys() - OF_THE_COMMAND_ONLY == keywords.keys() - {"runs_in"}
    for name in keywords.keys() - NEEDED - {"runs_in"}:
        assert keywords[name] == flags[name], name


def test_model_in_every_form(tmp_path: Path) -> None:
    import transformers

    content = dict(resolve_model("llama-3.1-8b").config)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(content))
    wanted = strategies.plan("llama-3.1-8b", **JOB)
    config = transformers.AutoConfig.for_model(**content)
    for model in (content, config, path, str(path), tmp_path):
        decision = strategies.plan(model, **JOB)
        assert decision.plan == wanted.plan
        assert decision.num_params == wanted.num_params == 8_030_261_248  # the model's card
        assert decision.estimate.peak_allocated_bytes == wanted.estimate.peak_allocated_bytes
    assert strategies.plan(tmp_path, **JOB).model == str(tmp_path)


def test_plan_is_a_call_beside_the_module_of_its_noun() -> None:
    assert inspect.isfunction(strategies.plan)
    assert sys.modules["strategies.plan"].Plan is Plan


def test_planning_imports_no_framework() -> None:
    program = (
        "import sys, strategies; light = set(sys.modules); "
        f"strategies.plan('llama-3.1-8b', **{JOB!r}); "
        "heavy = {'torch', 'numpy', 'transformers', 'accelerate', 'deepspeed', 'pydantic', 'scaling', 'typer'}; "
        "print(sorted(heavy & set(sys.modules)), 'strategies.select' in light)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.split("\n")[0] == "[] False"


@pytest.mark.parametrize("runner", ["accelerate", "transformers"])
def test_runner_limits_the_choice_to_what_it_can_be_told(runner: str) -> None:
    anything = strategies.plan("llama-3.1-8b", **JOB)
    decision = strategies.plan("llama-3.1-8b", **JOB, runs_in=runner)
    assert anything.job.loss is LossImplementation.FUSED
    assert decision.job.loss is LossImplementation.STANDARD
    assert decision.training_arguments()["per_device_train_batch_size"] == decision.plan.micro_batch_size
    assert decision.loop_settings().micro_batch_size == decision.plan.micro_batch_size


def test_a_fixed_part_that_the_runner_cannot_have_is_refused() -> None:
    with pytest.raises(PlanError, match="activation_checkpointing=selective under zero2 cannot be told to accelerate"):
        strategies.plan(
            "llama-3.1-8b", **JOB, runs_in="accelerate", strategy="zero2", activation_checkpointing="selective"
        )


def test_adapters_need_a_rank() -> None:
    with pytest.raises(PlanError, match="lora_targets='q_proj' names layers for adapters; give their lora_rank too"):
        strategies.plan("llama-3.1-8b", **JOB, lora_targets="q_proj")
    decision = strategies.plan(
        "llama-3.1-8b", **JOB, lora_rank=16, lora_targets="q_proj, v_proj", activation_checkpointing="none"
    )
    assert decision.job.lora is not None
    assert decision.job.lora.target_modules == ("q_proj", "v_proj")


@pytest.mark.parametrize(
    ("name", "value", "choices"),
    [
        ("strategy", "zero4", "ddp, zero1, zero2, zero3, fsdp2"),
        ("precision", "half", "fp32, fp16, bf16"),
        ("offload_param", "disk", "none, cpu, nvme"),
        ("runs_in", "keras", "accelerate, transformers"),
    ],
)
def test_unknown_word_is_told_with_the_known_ones(name: str, value: str, choices: str) -> None:
    with pytest.raises(PlanError, match=f"{name}='{value}' is not known; give {choices}"):
        strategies.plan("llama-3.1-8b", **JOB, **{name: value})


SMALL: dict[str, Any] = {"gpus": 2, "gpu": "H100-80GB-SXM", "seq_len": 128, "global_batch_size": 8}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("seq_len", "128", "a whole number"),
        ("seq_len", 128.5, "a whole number"),
        ("seq_len", None, "a whole number"),
        pytest.param("seq_len", 10**5000, "a whole number", id="5001 digits"),
        ("global_batch_size", 8.0, "a whole number"),
        ("gpus", 2.0, "a whole number or None"),
        ("gpus", "2", "a whole number or None"),
        ("gpus", True, "a whole number or None"),
        ("micro_batch_size", "2", "a whole number or None"),
        ("micro_batch_size", 2.0, "a whole number or None"),
        ("checkpoint_every", 1.5, "a whole number or None"),
        ("reshard_after_forward", "no", "True or False or None"),
        ("reshard_after_forward", 0, "True or False or None"),
        ("sync_each_batch", 0, "True or False or None"),
        ("safety", "0.9", "a number"),
        ("safety", None, "a number"),
        ("safety", True, "a number"),
        ("gradient_clipping", None, "a number"),
        pytest.param("gradient_clipping", 10**400, "a number", id="401 digits"),
        ("gpu_memory_gib", "80", "a number or None"),
        ("gpu", None, "text"),
        ("precision", None, "text"),
        ("freeze", [1], "a list of text or None"),
        ("freeze", "lm_head", "a list of text or None"),
        ("lora_rank", "8", "a whole number or None"),
        ("lora_rank", 8.5, "a whole number or None"),
        ("lora_targets", [1], "text or a list of text or None"),
    ],
)
def test_value_of_another_type_is_told_by_name(name: str, value: object, wanted: str) -> None:
    with pytest.raises(PlanError) as refused:
        strategies.plan("gpt2", **SMALL | {name: value})
    message = str(refused.value)
    assert message.startswith(f"{name}=")
    assert message.endswith(f"({type(value).__name__}) cannot be used; give {wanted}")
    assert len(message) < 200


def test_every_value_of_another_type_is_told_at_once() -> None:
    with pytest.raises(
        PlanError, match=r"gpus='2' \(str\) cannot be used; .*\. seq_len=None \(NoneType\) cannot be used"
    ):
        strategies.plan("gpt2", **SMALL | {"gpus": "2", "seq_len": None})


def test_every_keyword_has_an_annotation_that_is_checked() -> None:
    annotations = dict(strategies.plan.__annotations__)
    del annotations["model"], annotations["return"]
    assert {part for text in annotations.values() for part in text.split(" | ")} == KINDS.keys()


def test_unknown_keyword_is_refused_as_by_any_function() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'sequence_length'"):
        strategies.plan("gpt2", **SMALL, sequence_length=128)


@pytest.mark.parametrize("every", [0, -1])
def test_checkpointing_of_no_block_is_refused(every: int) -> None:
    with pytest.raises(PlanError, match=f"checkpoint_every={every} must be above zero"):
        strategies.plan("gpt2", **SMALL, checkpoint_every=every)


def test_adapters_take_a_list_of_names_as_peft_does() -> None:
    listed = strategies.plan("gpt2", **SMALL, lora_rank=8, lora_targets=["c_attn", "c_proj"])
    assert listed == strategies.plan("gpt2", **SMALL, lora_rank=8, lora_targets="c_attn,c_proj")
    for nothing in ("", []):
        with pytest.raises(JobError, match="names no layer"):
            strategies.plan("gpt2", **SMALL, lora_rank=8, lora_targets=nothing)


@pytest.mark.parametrize("whole", [{"lora_rank": 8}, {"safety": 0}, {"gradient_clipping": 1}], ids=str)
def test_decision_is_written_again_as_it_was_read(whole: dict[str, int]) -> None:
    written = to_json(strategies.plan("gpt2", **SMALL, **whole))
    assert to_json(from_json(Decision, written, source="test")) == written


def test_something_else_than_a_model_is_refused() -> None:
    with pytest.raises(SpecError, match="model is a int; give a preset"):
        strategies.plan(7, **JOB)  # type: ignore[arg-type]


def test_nothing_fits_raises_what_the_command_prints() -> None:
    small = JOB | {"gpus": 1, "gpu": "RTX4090"}
    with pytest.raises(NoPlanFitsError, match="no plan fits"):
        strategies.plan("llama-3.1-8b", **small, strategy="ddp")
