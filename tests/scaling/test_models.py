"""Models for training: where weights come from, which models are refused, and that a seed fixes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from scaling.errors import ModelError
from scaling.models import InitialWeights, build_config, build_model, choose_weights
from scaling.storage_log import StorageLog
from scaling.train_config import Init
from strategies.decision import Decision
from strategies.job import Precision
from strategies.load_model import ResolvedModel, resolve_model
from strategies.plan import ActivationCheckpointing
from tests.scaling.decisions import TINY_LLAMA, toy_decision

RANDOM = InitialWeights(folder=None)


def decision_for(
    config: Any, *, precision: Precision = Precision.FP32, checkpointing: Any = ActivationCheckpointing.NONE
) -> Decision:
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    toy = toy_decision("ddp", world_size=1, accumulation=1, precision=precision)
    return replace(
        toy,
        model="tiny",
        num_params=sum(parameter.numel() for parameter in model.parameters()),
        plan=replace(toy.plan, activation_checkpointing=checkpointing),
    )


def resolved(config: dict[str, Any] = TINY_LLAMA, *, folder: Path | None = None) -> ResolvedModel:
    return ResolvedModel(name="tiny", config=config, folder=folder, origin="a test")


def test_the_same_seed_gives_the_same_weights_and_another_one_others() -> None:
    config = build_config(resolved())
    decision = decision_for(config)
    first, second, other = (build_model(config, RANDOM, decision=decision, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


def test_weights_have_the_format_of_the_plan_and_tables_keep_theirs() -> None:
    config = build_config(resolved())
    model = build_model(config, RANDOM, decision=decision_for(config, precision=Precision.BF16), seed=0)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}
    assert model.training


def test_attention_is_fused_and_nothing_is_cached_for_generation() -> None:
    config = build_config(resolved())
    model: Any = build_model(config, RANDOM, decision=decision_for(config), seed=0)
    assert model.config._attn_implementation == "sdpa"
    assert model(input_ids=torch.zeros(1, 4, dtype=torch.int64)).past_key_values is None


CHECKPOINTINGS = {
    "none": (ActivationCheckpointing.NONE, 1),
    "selective, every second block": (ActivationCheckpointing.SELECTIVE, 2),
    "selective": (ActivationCheckpointing.SELECTIVE, 1),
    "full, every second block": (ActivationCheckpointing.FULL, 2),
    "full": (ActivationCheckpointing.FULL, 1),
}


def test_activation_checkpointing_gives_equal_gradients_in_less_memory() -> None:
    config = build_config(resolved({**TINY_LLAMA, "num_hidden_layers": 4}))
    ids = torch.arange(64).reshape(2, 32)
    gradients, kept_bytes = {}, {}
    for name, (checkpointing, every) in CHECKPOINTINGS.items():
        decision = decision_for(config, checkpointing=checkpointing)
        decision = replace(decision, plan=replace(decision.plan, checkpoint_every=every))
        model: Any = build_model(config, RANDOM, decision=decision, seed=0)
        with StorageLog() as log:
            log.adopt(model.parameters())
            before = log.live_bytes
            loss = model(input_ids=ids).logits.float().square().mean()
            kept_bytes[name] = log.live_bytes - before
            loss.backward()
        gradients[name] = [parameter.grad for parameter in model.parameters()]
    for name, found in gradients.items():
        assert all(torch.equal(a, b) for a, b in zip(found, gradients["none"], strict=True)), name
    assert kept_bytes["none"] > kept_bytes["selective, every second block"] > kept_bytes["selective"]
    assert kept_bytes["selective"] > kept_bytes["full"]
    # Two of four blocks keep everything: half of what all four save is not saved.
    halfway = (kept_bytes["none"] + kept_bytes["full"]) / 2
    assert kept_bytes["full, every second block"] == pytest.approx(halfway, rel=0.01)


def test_blocks_that_cannot_be_told_apart_are_checkpointed_all_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(resolved())
    decision = decision_for(config, checkpointing=ActivationCheckpointing.FULL)
    decision = replace(decision, plan=replace(decision.plan, checkpoint_every=2))
    monkeypatch.setattr("transformers.modeling_layers.GradientCheckpointingLayer", torch.nn.Conv3d)
    with pytest.raises(ModelError, match="has no layers that can be told apart; use checkpoint_every=1"):
        build_model(config, RANDOM, decision=decision, seed=0)


def test_a_folder_with_weights_is_taken_unless_random_is_asked_for(tmp_path: Path) -> None:
    torch.manual_seed(9)
    config = build_config(resolved())
    saved: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    saved.save_pretrained(tmp_path)
    model = resolve_model(str(tmp_path))
    for init in (Init.AUTO, Init.PRETRAINED):
        weights = choose_weights(model, init=init)
        assert str(weights) == f"pretrained weights from {tmp_path}"
        built = build_model(build_config(model), weights, decision=decision_for(config), seed=0)
        assert all(torch.equal(a, b) for a, b in zip(built.parameters(), saved.parameters(), strict=True))
    assert str(choose_weights(model, init=Init.RANDOM)) == "random weights"


def test_auto_without_weights_is_random_and_pretrained_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY_LLAMA))
    model = resolve_model(str(tmp_path))
    assert choose_weights(model, init=Init.AUTO) == RANDOM
    with pytest.raises(ModelError, match=r"init=pretrained, but model .* comes without weights \(model.safetensors"):
        choose_weights(model, init=Init.PRETRAINED)


def test_weights_that_lack_a_tensor_are_refused(tmp_path: Path) -> None:
    config = build_config(resolved())
    saved: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    state = {name: tensor for name, tensor in saved.state_dict().items() if name != "model.layers.1.mlp.up_proj.weight"}
    saved.save_pretrained(tmp_path, state_dict=state)
    with pytest.raises(ModelError, match=r"lack .*model.layers.1.mlp.up_proj.weight"):
        build_model(config, InitialWeights(folder=tmp_path), decision=decision_for(config), seed=0)


def test_a_model_of_another_size_than_planned_is_refused() -> None:
    config = build_config(resolved())
    planned = replace(decision_for(config), num_params=1000)
    with pytest.raises(ModelError, match=r"has num_params=\d+, but the plan was made for num_params=1000"):
        build_model(config, RANDOM, decision=planned, seed=0)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "t5"}, "is made for task=seq2seq-lm; only these are trained here: causal-lm, masked-lm"),
        (
            {"model_type": "nonsense"},
            "model_type='nonsense', which transformers .* does not build as a causal language",
        ),
        (
            {"model_type": "bert", "architectures": ["BertLMHeadModel"]},
            r"sees the tokens it is to predict \(is_decoder=False\)",
        ),
        ({"model_type": "mixtral", "output_router_logits": True}, "output_router_logits=True"),
        ({**TINY_LLAMA, "num_attention_heads": "four"}, "transformers refuses its config"),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        build_config(resolved(config))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "nope"}, r"model tiny cannot be built: KeyError: .*nope.*; correct its config"),
        ({"rope_scaling": {"type": "nonsense"}}, r"model tiny cannot be built: KeyError: .*nonsense.*; correct its"),
        ({"rope_scaling": {"type": "linear"}}, r"transformers refuses its config: KeyError: .*factor"),
    ],
)
def test_a_value_that_transformers_does_not_know_is_told_in_one_line(changes: dict[str, Any], message: str) -> None:
    planned = decision_for(build_config(resolved()))
    with pytest.raises(ModelError, match=message) as caught:
        build_model(build_config(resolved({**TINY_LLAMA, **changes})), RANDOM, decision=planned, seed=0)
    assert "\n" not in str(caught.value)


def test_a_model_without_checkpointing_is_refused_when_the_plan_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config(resolved())
    decision = decision_for(config, checkpointing=ActivationCheckpointing.FULL)

    def refuse(*_: object, **__: object) -> None:
        raise ValueError("LlamaForCausalLM is not compatible with gradient checkpointing")

    monkeypatch.setattr(transformers.PreTrainedModel, "activation_checkpointing_enable", refuse)
    with pytest.raises(ModelError, match="activation_checkpointing=full, but model tiny does not support it"):
        build_model(config, RANDOM, decision=decision, seed=0)


def test_code_named_by_a_config_is_not_run() -> None:
    config = build_config(resolved({**TINY_LLAMA, "auto_map": {"AutoModelForCausalLM": "evil.Model"}}))
    assert type(config).__module__.startswith("transformers.")
    assert not getattr(config, "auto_map", None)
