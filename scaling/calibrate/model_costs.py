"""A bare decoder, forward and backward: what a block costs without tokens, a parameter, and a byte of activations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from scaling.batch import causal_batch
from scaling.calibrate.reference_models import DEEP, FEW_TOKENS, MIDDLE, THIN, WIDE, WIDE_TOKENS, decision_for, spec_of
from scaling.calibrate.timing import Stopwatch
from scaling.losses import token_sum_loss
from scaling.models import InitialWeights, build_config, build_model
from strategies.decision import Decision
from strategies.job import Precision
from strategies.load_model import resolve_model
from strategies.plan import ActivationCheckpointing
from strategies.time.calibrated import elementwise_bytes, micro_batch
from strategies.time.calibration import Calibration, MemoryRate, ModelCost

SEQ_LEN = 128
MICRO_BATCHES = (1, 4, 12)
SMALLEST_SHARE = 0.05
"""Of a micro batch that elementwise operators take at least: none would be left if products were measured too slow."""
UNLIMITED = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class BareModel:
    """Seconds of a micro batch without an engine."""

    thin: dict[ActivationCheckpointing, float]
    deep: float
    wide: float


def measure_bare(watch: Stopwatch) -> BareModel:
    """Return the seconds of the reference models with few tokens."""
    return BareModel(
        thin={kind: micro_batch_s(watch, THIN, checkpointing=kind) for kind in ActivationCheckpointing},
        deep=micro_batch_s(watch, DEEP),
        wide=micro_batch_s(watch, WIDE, seq_len=WIDE_TOKENS),
    )


def with_model_costs(calibration: Calibration, bare: BareModel, watch: Stopwatch) -> Calibration:
    """Return the calibration with what the bare model costs; each cost is what those before it leave unexplained."""
    layers = spec_of(THIN).num_layers
    model = tuple(ModelCost(activation_checkpointing=kind, s_per_block=s / layers) for kind, s in bare.thin.items())
    unlimited = tuple(
        MemoryRate(precision=precision, num_bytes=1.0, bytes_per_s=UNLIMITED)
        for precision in (Precision.FP32, Precision.BF16)
    )
    calibration = replace(calibration, model=model, elementwise=unlimited)
    calibration = replace(calibration, weight_s_per_param=_weight_seconds(calibration, bare))
    rates = tuple(
        _memory_rate(calibration, watch, precision=precision, micro_batch_size=size)
        for precision in (Precision.FP32, Precision.BF16)
        for size in MICRO_BATCHES
    )
    return replace(calibration, elementwise=rates)


def micro_batch_s(
    watch: Stopwatch,
    config: dict[str, Any],
    *,
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE,
    seq_len: int = FEW_TOKENS,
    micro_batch_size: int = 1,
    precision: Precision = Precision.FP32,
    repeats: int = 6,
) -> float:
    """Return the seconds of forward, loss and backward of one micro batch, gradients added to those that are there."""
    decision = decision_for(
        config,
        num_ranks=watch.num_ranks,
        checkpointing=checkpointing,
        seq_len=seq_len,
        micro_batch_size=micro_batch_size,
        precision=precision,
    )
    model = reference_model(config, decision)
    batch = causal_batch(random_ids(decision, config))

    def run() -> None:
        loss = token_sum_loss(model(**batch.inputs).logits, batch.labels)
        loss.backward()  # type: ignore[no-untyped-call]

    return watch.seconds(run, repeats=repeats)


def reference_model(config: dict[str, Any], decision: Decision) -> torch.nn.Module:
    """Return the module of a reference model with random weights."""
    return build_model(build_config(resolve_model(config)), InitialWeights(folder=None), decision=decision, seed=0)


def random_ids(decision: Decision, config: dict[str, Any]) -> torch.Tensor:
    """Return tokens (micro batch, seq)."""
    shape = (decision.plan.micro_batch_size, decision.job.seq_len)
    return torch.randint(config["vocab_size"], shape, generator=torch.Generator().manual_seed(0))


def _weight_seconds(calibration: Calibration, bare: BareModel) -> float:
    decision, spec = decision_for(WIDE, num_ranks=calibration.ranks, seq_len=WIDE_TOKENS), spec_of(WIDE)
    explained = micro_batch(spec, calibration, job=decision.job, plan=decision.plan).total_s
    return max(0.0, bare.wide - explained) / spec.num_params


def _memory_rate(
    calibration: Calibration, watch: Stopwatch, *, precision: Precision, micro_batch_size: int
) -> MemoryRate:
    spec = spec_of(MIDDLE)
    decision = decision_for(
        MIDDLE, num_ranks=watch.num_ranks, seq_len=SEQ_LEN, micro_batch_size=micro_batch_size, precision=precision
    )
    seconds = micro_batch_s(
        watch, MIDDLE, seq_len=SEQ_LEN, micro_batch_size=micro_batch_size, precision=precision, repeats=4
    )
    explained = micro_batch(spec, calibration, job=decision.job, plan=decision.plan).total_s
    left = max(seconds - explained, SMALLEST_SHARE * seconds)
    moved = elementwise_bytes(spec, job=decision.job, plan=decision.plan)
    num_bytes = float(micro_batch_size * SEQ_LEN * spec.hidden_size * precision.compute_bytes)
    return MemoryRate(precision=precision, num_bytes=num_bytes, bytes_per_s=moved / left)
