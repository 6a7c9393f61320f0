"""Forms of the memory model against traces of shapes they were not fitted on; the largest error by family and mode.

Method: for every variant and setting two random shapes of five blocks, and presets with their own widths at some depth,
are traced; the highest moments of forward and backward, activations and logits alone, are compared with the forms.
Usage: ``python -m benchmarks.activation_check [family ...]``; writes ``benchmarks/results/activation_forms.json`` and
``.md``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.activation_table import table
from benchmarks.environment import environment
from benchmarks.form_families import TASKS, Shape, depth_keys, random_shape
from benchmarks.form_losses import loss_function
from benchmarks.form_traces import WITHOUT_STEP, trace_shape
from benchmarks.form_traces import Setting as TraceSetting
from benchmarks.form_variants import FAMILIES, WITH_WINDOWS, variants, windowed
from scaling.ownership import Cause
from scaling.storage_log import EventKind
from scaling.trace import (
    Recompute,
    TraceLog,
    TraceOptions,
    TracePrecision,
    model_factory,
    read_config,
    token_batch,
    trace_deep,
)
from scaling.trace.hugging_face import at_depth, depth, layer_period
from scaling.trace.log import CAUSES
from strategies.errors import SpecError
from strategies.estimate import Phase
from strategies.job import Attention, LossImplementation
from strategies.load_model import load_model_spec, preset_path
from strategies.memory.activations import activation_levels
from strategies.memory.forms import has_fused_attention
from strategies.memory.stretches import Setting, Stretch, highest
from strategies.model_spec import ModelSpec, TaskKind
from strategies.plan import ActivationCheckpointing

RESULTS = Path(__file__).parent / "results"
DEPTH = 5
SEEDS = (11, 12)
FORMATS = {"16bit": TracePrecision.BF16, "autocast": TracePrecision.BF16_AUTOCAST, "fp32": TracePrecision.FP32}
_COUNTED = [CAUSES.index(cause) for cause in (Cause.ACTIVATIONS, Cause.RECOMPUTED_BLOCK, Cause.LOGITS)]
IN_FORWARD = (Stretch.FORWARD, Stretch.FIRST_BLOCK_IN_FORWARD)
IN_BACKWARD = (
    *(Stretch.BEFORE_FIRST_GRADIENT, Stretch.AFTER_FIRST_GRADIENT, Stretch.LAST_BLOCK),
    *(Stretch.FIRST_BLOCK, Stretch.EMBEDDING),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One traced setting."""

    family: str
    variant: str
    device: str
    number_format: str
    attention: str
    activation_checkpointing: str
    every: int
    loss: str
    batch: int
    seq: int
    forward_bytes: int
    forward_error: float
    """Predicted over traced, less one."""
    backward_bytes: int
    backward_error: float

    @property
    def worst(self) -> float:
        return max(abs(self.forward_error), abs(self.backward_error))


def main(families: list[str]) -> None:
    """Compare, print a line a family, and store all rows."""
    rows: list[Row] = []
    for family in families or FAMILIES:
        found = list(_family(family))
        rows += found
        worst = max(found, key=lambda row: row.worst, default=None)
        print(family, len(found), "rows", "" if worst is None else f"worst {worst.worst:.4%} {worst}", flush=True)
    if not families:
        rows += preset_rows()
    store(rows)


def store(rows: list[Row]) -> None:
    """Write the rows, one a line, and the table."""
    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    content = f'{{"environment": {json.dumps(environment())},\n"rows": [\n{lines}\n]}}\n'
    (RESULTS / "activation_forms.json").write_text(content)
    (RESULTS / "activation_forms.md").write_text(table(rows))


def _family(family: str) -> Iterator[Row]:
    for settings in variants(family):
        for seed in SEEDS:
            shape = random_shape(family, settings, seed=seed, batch=1 if seed % 2 else None, is_realistic=True)
            config = {"model_type": family, **shape.values, **depth_keys(family, DEPTH)}
            for mode in modes(family) if shape.batch > 1 else _FOR_ONE_SAMPLE:
                yield from _row(family, settings, shape, config, mode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What is compared besides the shape."""

    device: str = "cuda"
    number_format: str = "16bit"
    attention: str = "flash"
    checkpointing: ActivationCheckpointing = ActivationCheckpointing.NONE
    every: int = 1
    loss: LossImplementation = LossImplementation.STANDARD


def modes(family: str) -> Iterator[Mode]:
    """Yield the modes compared: every value of every setting, not all combinations."""
    none, full, selective = (
        ActivationCheckpointing.NONE,
        ActivationCheckpointing.FULL,
        ActivationCheckpointing.SELECTIVE,
    )
    for number_format in FORMATS:
        yield from (Mode(number_format=number_format, checkpointing=each) for each in (none, full, selective))
    for attention in ("eager", "windowed") if family in WITH_WINDOWS else ("eager",):
        yield Mode(attention=attention)
        yield Mode(attention=attention, checkpointing=full)
    yield Mode(checkpointing=full, every=2)
    if family not in TASKS:
        yield Mode(loss=LossImplementation.CHUNKED)
        yield Mode(number_format="autocast", loss=LossImplementation.FUSED, checkpointing=full)
    yield Mode(device="cpu", number_format="fp32")
    yield Mode(device="cpu", checkpointing=full)


_FOR_ONE_SAMPLE = (
    Mode(),
    Mode(checkpointing=ActivationCheckpointing.FULL),
    Mode(number_format="autocast"),
    Mode(number_format="fp32"),
    Mode(attention="eager"),
)


def _row(
    family: str, settings: Mapping[str, Any], shape: Shape, config: Mapping[str, Any], mode: Mode
) -> Iterator[Row]:
    if mode.attention == "windowed":
        config = windowed(family, config, num_layers=DEPTH)
    spec = load_model_spec(dict(config))
    attention = "eager" if mode.attention == "eager" else "flash"
    try:
        if attention == "flash" and not has_fused_attention(spec):
            return
        predicted = _predict(spec, mode, batch=shape.batch, seq=shape.seq)
    except (SpecError, KeyError):
        return
    log = trace_shape(
        TraceSetting(
            family=family,
            values=settings,
            precision=FORMATS[mode.number_format],
            kernels=mode.device,
            attention="eager" if attention == "eager" else "sdpa",
            is_windowed=mode.attention == "windowed",
            checkpointing=Recompute(mode.checkpointing.value),
            loss=mode.loss,
        ),
        shape,
        num_layers=DEPTH,
        every=mode.every,
    )
    yield _compared(spec, mode, predicted, peaks(log), family=family, batch=shape.batch, seq=shape.seq)


def _compared(
    spec: ModelSpec,
    mode: Mode,
    predicted: Mapping[Phase, int],
    traced: Mapping[Phase, int],
    *,
    family: str,
    batch: int,
    seq: int,
) -> Row:
    forward, backward = (predicted[phase] / traced[phase] - 1 for phase in (Phase.FORWARD, Phase.BACKWARD))
    return Row(
        family=family,
        variant=spec.variant,
        device=mode.device,
        number_format=mode.number_format,
        attention=mode.attention,
        activation_checkpointing=mode.checkpointing.value,
        every=mode.every,
        loss=mode.loss.value,
        batch=batch,
        seq=seq,
        forward_bytes=traced[Phase.FORWARD],
        forward_error=forward,
        backward_bytes=traced[Phase.BACKWARD],
        backward_error=backward,
    )


def _predict(spec: ModelSpec, mode: Mode, *, batch: int, seq: int) -> dict[Phase, int]:
    """Return the highest moments of activations and logits by the forms."""
    setting = Setting(
        seq_len=seq,
        number_format=mode.number_format,
        attention=Attention.EAGER if mode.attention == "eager" else Attention.FLASH,
        activation_checkpointing=mode.checkpointing,
        checkpoint_every=mode.every,
        loss=mode.loss,
        on_cpu=mode.device == "cpu",
    )
    levels = activation_levels(spec, setting, micro_batch_size=batch)
    return {
        phase: max(highest(levels[stretch], batch).total for stretch in stretches)
        for phase, stretches in ((Phase.FORWARD, IN_FORWARD), (Phase.BACKWARD, IN_BACKWARD))
    }


def peaks(log: TraceLog) -> dict[Phase, int]:
    """Return the highest sum of activations and logits in forward and in backward of the first step."""
    counted = np.isin(log.cause[log.storage], _COUNTED)
    early = np.isin(log.storage, _gradients_of_forward(log))
    found: dict[Phase, int] = {}
    for section, first, end in log.ranges():
        if section.phase in (Phase.FORWARD, Phase.BACKWARD):
            # In backward they become the weights' gradients at once.
            wanted = counted | early if section.phase is Phase.FORWARD else counted
            live = np.cumsum(np.where(wanted, log.change_bytes, 0))
            found[section.phase] = int(live[max(first - 1, 0) : end].max())
    return found


PRESETS = (
    ("llama-3.1-8b", 2, 4096, Mode(number_format="autocast")),
    ("mixtral-8x7b", 2, 4096, Mode()),
    ("gemma-3-1b", 2, 2048, Mode()),
    ("mistral-7b", 2, 8192, Mode(checkpointing=ActivationCheckpointing.FULL)),
    ("gemma-2-2b", 2, 2048, Mode(attention="eager")),
    ("phi-2", 2, 2048, Mode()),
    ("qwen3-30b-a3b", 1, 4096, Mode(checkpointing=ActivationCheckpointing.SELECTIVE)),
    ("qwen2.5-7b", 2, 4096, Mode(loss=LossImplementation.CHUNKED)),
    ("gpt2-xl", 4, 1024, Mode(attention="eager")),
    ("starcoder2-3b", 2, 8192, Mode()),
    ("pythia-1b", 4, 2048, Mode()),
    ("falcon-7b", 1, 2048, Mode(checkpointing=ActivationCheckpointing.FULL)),
)
"""Models at full size and depth: name, samples, tokens each, mode."""


def preset_rows() -> Iterator[Row]:
    """Yield presets at full size, traced at three depths and continued to their own."""
    for name, batch, seq, mode in PRESETS:
        spec = load_model_spec(name)
        predicted = _predict(spec, mode, batch=batch, seq=seq)
        config = read_config(_path(name))
        config.dtype = None  # weights are made in fp32 and then cast, as the trainer does
        attention = "eager" if mode.attention == "eager" else "sdpa"
        log = trace_deep(
            partial(_at_depth, config, attention),
            token_batch(micro_batch_size=batch, seq_len=seq),
            TraceOptions(
                precision=FORMATS[mode.number_format],
                activation_checkpointing=Recompute(mode.checkpointing.value),
                num_steps=1,
            ),
            depth=depth(config),
            period=layer_period(config),
            loss=loss_function(mode.loss, TaskKind.CAUSAL_LM),
            engine=WITHOUT_STEP,
        )
        yield _compared(spec, mode, predicted, peaks(log), family=name, batch=batch, seq=seq)


def _at_depth(config: Any, attention: str, num_layers: int) -> Callable[[], Any]:
    return model_factory(at_depth(config, num_layers), attention=attention)


def _path(preset: str) -> Path:
    path = preset_path(preset)
    assert path is not None
    return path


def _gradients_of_forward(log: TraceLog) -> list[int]:
    """Return the gradients of weights that a fused loss makes in forward."""
    ends = {section.phase: end for section, _, end in log.ranges()}
    made = log.storage[: ends[Phase.FORWARD]][log.kind[: ends[Phase.FORWARD]] == EventKind.ALLOCATE]
    return [int(number) for number in made if log.cause[number] == CAUSES.index(Cause.GRADIENTS)]


if __name__ == "__main__":
    main(sys.argv[1:])
