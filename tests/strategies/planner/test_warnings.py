"""What is said before a plan is launched."""

from dataclasses import replace

import pytest

from strategies.job import LossImplementation, Precision
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.planner.sweep import Question
from strategies.search import FixedParts
from strategies.select import decide
from strategies.units import GIB
from tests.strategies.planner.builders import question


def warned(asked: Question) -> str:
    decision = decide(asked.spec, cluster=asked.cluster, job=asked.job, fixed=asked.fixed, safety=asked.safety)
    return "\n".join(decision.warnings)


def test_logits_that_dominate_are_named() -> None:
    fixed = FixedParts(activation_checkpointing=ActivationCheckpointing.FULL, micro_batch_size=4)
    asked = question("gemma-2b", seq_len=2048, global_batch_size=32, fixed=fixed)
    # 4 x 2048 x 256,000 logits of 10 to 12 bytes are 20 to 23 GiB (docs/memory.md).
    assert "logits hold 2" in warned(asked)
    fused = asked.on(job=replace(asked.job, loss=LossImplementation.FUSED))
    assert "logits" not in warned(fused)


def test_a_stage_that_needs_more_than_the_one_below_is_named() -> None:
    """On one rank nothing is shared, and stage 1 holds gradients twice (docs/memory.md, flattened and widened)."""
    fixed = FixedParts(strategy=StrategyName.ZERO1, micro_batch_size=1)
    alone = question("gemma-2b", gpus=1, seq_len=128, global_batch_size=1, fixed=fixed)
    assert "zero1 needs more than ddp here" in warned(alone)
    assert "needs more" not in warned(question("gemma-2b", gpus=8, seq_len=128, global_batch_size=8, fixed=fixed))


@pytest.mark.parametrize(("host_gib", "words"), [(None, "the nodes' memory is not known"), (125, "almost full")])
def test_host_memory_is_warned_of(host_gib: int | None, words: str) -> None:
    fixed = FixedParts(strategy=StrategyName.ZERO2, offload_optimizer=OffloadDevice.CPU)
    host = None if host_gib is None else host_gib * GIB
    # Eight ranks build 8 x 16 GB of weights first: 122 GiB with their processes.
    asked = question(fixed=fixed if host is None else FixedParts(strategy=StrategyName.ZERO2), host_memory_bytes=host)
    assert words in warned(asked)


def test_shards_of_few_rows_are_named() -> None:
    """Eight experts are one tensor of eight rows: of sixteen ranks half have one expert each, and half have none."""
    asked = question("mixtral-8x7b", gpu="H200-141GB-SXM", gpus=16)
    assert "of 16 ranks the fullest keep 1.97 times an even share" in warned(asked)  # experts are 97 % of the weights
    assert "has 8 rows" in warned(asked)
    assert "even share" not in warned(asked.on(fixed=FixedParts(strategy=StrategyName.ZERO3)))
    assert "even share" not in warned(question(gpus=16))


def test_sixteen_bit_states_are_warned_of() -> None:
    asked = question("llama-3.2-1b")
    pure = asked.on(job=replace(asked.job, precision=Precision.BF16_PURE))
    assert "may stop moving" in warned(pure)
    assert "may stop moving" not in warned(asked)
