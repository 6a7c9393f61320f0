"""Traces on meta tensors against the same steps on real CPU tensors: equal in every event, so in every peak."""

from __future__ import annotations

import pytest

from benchmarks.trace_families import TEN_ARCHITECTURES, family_batch, family_model
from benchmarks.trace_modules import OWN_MODULES, cross_entropy, token_rows
from scaling.trace import Recompute, TraceOptions, TracePrecision, profile, trace_step
from strategies.estimate import CauseBytes, MemoryProfile, Phase

MODES = (
    (TracePrecision.BF16, Recompute.NONE),
    (TracePrecision.BF16_AUTOCAST, Recompute.FULL),
)


@pytest.mark.parametrize(("precision", "recompute"), MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("family", TEN_ARCHITECTURES)
def test_trace_matches_real_cpu_steps(family: str, precision: TracePrecision, recompute: Recompute) -> None:
    """All nine modes of every architecture are in benchmarks/trace_truth.py."""
    options = TraceOptions(kernels="cpu", precision=precision, activation_checkpointing=recompute)
    model, batch = family_model(family, num_layers=2), family_batch(family, seq_len=32)
    traced, real = (trace_step(model, batch, options, on_cpu=on_cpu) for on_cpu in (False, True))
    assert profile(traced) == profile(real)
    assert traced.equals(real)


@pytest.mark.parametrize("recompute", [Recompute.FULL, Recompute.SELECTIVE])
def test_trace_of_every_second_block_matches_real_cpu_steps(recompute: Recompute) -> None:
    options = TraceOptions(kernels="cpu", activation_checkpointing=recompute, checkpoint_every=2, evaluate=True)
    model, batch = family_model("llama", num_layers=3), family_batch("llama", seq_len=32)
    traced, real = (trace_step(model, batch, options, on_cpu=on_cpu) for on_cpu in (False, True))
    assert traced.equals(real)


@pytest.mark.parametrize("name", OWN_MODULES)
@pytest.mark.parametrize("precision", [TracePrecision.FP32, TracePrecision.BF16_AUTOCAST], ids=lambda mode: mode.value)
def test_trace_of_own_module_matches_real_cpu_steps(name: str, precision: TracePrecision) -> None:
    """Own loss, two micro batches a step, three steps; dropout, a layer used twice, tied and frozen weights."""
    options = TraceOptions(kernels="cpu", precision=precision, gradient_accumulation_steps=2, num_steps=3)
    traced, real = (
        trace_step(OWN_MODULES[name], token_rows(), options, loss=cross_entropy, on_cpu=on_cpu)
        for on_cpu in (False, True)
    )
    assert profile(traced) == profile(real)
    assert traced.equals(real)


def test_first_step_lacks_the_optimizer_states_of_later_ones() -> None:
    log = trace_step(family_model("llama", num_layers=2), family_batch("llama"), TraceOptions(num_steps=3))
    forwards = [_forward(profile(log, step=step)) for step in range(3)]
    parameters = forwards[0].parameters
    assert [causes.optimizer_states for causes in forwards] == [0, 2 * parameters, 2 * parameters]
    assert [causes.gradients for causes in forwards] == [0, 0, 0]


def test_gradients_live_through_the_forward_of_later_micro_batches() -> None:
    options = TraceOptions(num_steps=1, gradient_accumulation_steps=2)
    causes = _forward(profile(trace_step(family_model("llama", num_layers=2), family_batch("llama"), options)))
    assert causes.gradients == causes.parameters


def test_values_that_were_assumed_are_counted() -> None:
    """Llama asks once a forward whether its positions are packed (transformers, masking_utils.py)."""
    model, batch = family_model("llama", num_layers=1), family_batch("llama")
    assert trace_step(model, batch, TraceOptions(num_steps=3)).assumed_values == 3
    own = trace_step(OWN_MODULES["tied weights"], token_rows(), TraceOptions(), loss=cross_entropy)
    assert own.assumed_values == 0


def _forward(memory: MemoryProfile) -> CauseBytes:
    return next(phase.causes for phase in memory.phases if phase.phase is Phase.FORWARD)
