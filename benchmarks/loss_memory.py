"""Peak bytes, value and gradients of our losses beside Hugging Face's own, at a vocabulary of 152,000 words.

Method: one process, a decoder with Qwen2's vocabulary; one forward and one backward under the storage meter with each
loss, weights made before. ``hugging-face`` is ``model(input_ids=..., labels=...).loss``. Values and gradients are
compared with torch's cross-entropy in fp64, on a batch with ignored labels; Hugging Face's own is always fp32. Twice:
through the whole model, whose backward rounds more than any loss does, and of the loss alone, by the hidden states and
the head's weight, which are what it has.
Usage: ``python -m benchmarks.loss_memory``; writes ``benchmarks/results/loss_memory.json`` and ``.md``; exit code 1
where a loss of ours or its gradient is further from fp64 than Hugging Face's by more than 1e-6, or of the loss alone
further than 1e-6 from fp64 or from the standard one.
"""

from __future__ import annotations

import copy
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional

from benchmarks.environment import environment
from benchmarks.loss_alone import EXACT, HUGGING_FACE, LOSSES, alone_table, largest_alone, measure_alone, relative
from scaling.batch import Batch, causal_batch
from scaling.fused_loss import compute_loss_fused
from scaling.losses import IGNORED_LABEL
from scaling.meter import StorageMeter
from scaling.ownership import module_owners
from scaling.tasks.language import CausalLm
from strategies.estimate import Phase
from strategies.job import LossImplementation, Precision
from strategies.units import GIB

RESULTS = Path(__file__).parent / "results"
VOCABULARY = 151_936
"""Qwen2's, as its config.json has it."""
LARGEST_EXCESS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A decoder and a batch."""

    hidden_size: int
    num_layers: int
    num_tokens: int
    precision: Precision = Precision.FP32

    def __str__(self) -> str:
        return f"{self.precision}, hidden {self.hidden_size}, {self.num_layers} layers, {self.num_tokens} tokens"


SETUPS = (
    Setup(hidden_size=128, num_layers=4, num_tokens=512),
    Setup(hidden_size=128, num_layers=4, num_tokens=2048),
    Setup(hidden_size=896, num_layers=2, num_tokens=512),
    Setup(hidden_size=896, num_layers=2, num_tokens=512, precision=Precision.BF16),
)
"""896: Qwen2-0.5B's width. Two of its 24 blocks, so that this machine holds the largest of the losses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakRow:
    """Peak of one forward and backward."""

    setup: str
    loss: str
    peak_bytes: int
    """With weights and their gradients."""
    added_bytes: int
    """Above what was there before the forward: the weights."""
    peak_ratio: float
    """To that with Hugging Face's loss."""
    added_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferenceRow:
    """How far a loss in fp32 is from torch's in fp64, and from ours that is called standard."""

    loss: str
    value: float
    """Relative to fp64."""
    gradient: float
    """2-norm of the difference over that of the gradient, for the parameter where it is largest; to fp64."""
    whole_gradient: float
    """Likewise of all parameters together, as clipping takes them."""
    value_to_standard: float
    gradient_to_standard: float
    whole_gradient_to_standard: float


def main() -> int:
    """Measure, print and store."""
    torch.set_num_threads(1)
    differences = measure_differences(SETUPS[0])
    print(differences_table(differences), flush=True)
    alone = measure_alone(decoder(SETUPS[0]), ragged_batch(SETUPS[0]))
    print(alone_table(alone), flush=True)
    peaks: list[PeakRow] = []
    for setup in SETUPS:
        peaks += measure_peaks(setup)
        print(peaks_table(peaks[-len(LOSSES) :]), flush=True)
    content = {
        "environment": environment(),
        "vocabulary": VOCABULARY,
        "differences": [asdict(row) for row in differences],
        "alone": [asdict(row) for row in alone],
        "peaks": [asdict(row) for row in peaks],
    }
    (RESULTS / "loss_memory.json").write_text(json.dumps(content, indent=1) + "\n")
    title = f"# Losses at a vocabulary of {VOCABULARY:,}\n\n`python -m benchmarks.loss_memory`\n"
    text = "\n".join([title, differences_table(differences), alone_table(alone), peaks_table(peaks)])
    (RESULTS / "loss_memory.md").write_text(text)
    return 1 if max(worst_excess(differences), *map(largest_alone, alone)) > LARGEST_EXCESS else 0


def worst_excess(rows: Sequence[DifferenceRow]) -> float:
    """Return by how much a loss of ours, or its gradient, is further from fp64 than Hugging Face's, at most."""
    [theirs] = [row for row in rows if row.loss == HUGGING_FACE]
    return max(max(row.value - theirs.value, row.gradient - theirs.gradient) for row in rows)


def measure_peaks(setup: Setup) -> list[PeakRow]:
    """Return the peak of every loss."""
    model, batch = decoder(setup), ragged_batch(setup)
    weights = sum(parameter.nbytes for parameter in model.parameters())
    peaks = {}
    for loss in LOSSES:
        gc.collect()  # the meter and the model of the loss before hold each other
        peaks[loss] = peak_bytes(copy.deepcopy(model), batch, loss=loss, setup=setup)
    theirs = peaks[HUGGING_FACE]
    return [
        PeakRow(
            setup=str(setup),
            loss=loss,
            peak_bytes=peak,
            added_bytes=peak - weights,
            peak_ratio=peak / theirs,
            added_ratio=(peak - weights) / (theirs - weights),
        )
        for loss, peak in peaks.items()
    ]


def peak_bytes(model: Any, batch: Batch, *, loss: str, setup: Setup) -> int:
    """Return the most bytes that are alive during one forward and one backward, weights included."""
    meter = StorageMeter(vocab_size=VOCABULARY)
    if loss == LossImplementation.FUSED:
        compute_loss_fused(model, precision=setup.precision)
    meter.start()
    meter.attach(lambda: module_owners(model))
    with meter.phase(Phase.FORWARD):
        value = mean_loss(model, batch, loss=loss)
    with meter.phase(Phase.BACKWARD):
        value.backward()  # type: ignore[no-untyped-call]
    meter.stop()
    return meter.measurement().peak_allocated_bytes


def measure_differences(setup: Setup) -> list[DifferenceRow]:
    """Return how far every loss is from the exact one."""
    model, batch = decoder(setup), ragged_batch(setup)
    exact_value, exact_gradients = value_and_gradients(copy.deepcopy(model).double(), batch, loss=EXACT)
    found = {}
    for loss in LOSSES:
        own = copy.deepcopy(model)
        if loss == LossImplementation.FUSED:
            compute_loss_fused(own, precision=setup.precision)
        found[loss] = value_and_gradients(own, batch, loss=loss)
    value, gradients = found[LossImplementation.STANDARD]
    return [
        DifferenceRow(
            loss=loss,
            value=abs(own_value - exact_value) / exact_value,
            gradient=largest_difference(own_gradients, exact_gradients),
            whole_gradient=whole_difference(own_gradients, exact_gradients),
            value_to_standard=abs(own_value - value) / value,
            gradient_to_standard=largest_difference(own_gradients, gradients),
            whole_gradient_to_standard=whole_difference(own_gradients, gradients),
        )
        for loss, (own_value, own_gradients) in found.items()
    ]


def value_and_gradients(model: Any, batch: Batch, *, loss: str) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the mean loss and its gradient by parameter, in fp64."""
    value = mean_loss(model, batch, loss=loss)
    value.backward()  # type: ignore[no-untyped-call]
    return float(value.detach()), {name: parameter.grad.double() for name, parameter in model.named_parameters()}


def mean_loss(model: Any, batch: Batch, *, loss: str) -> torch.Tensor:
    """Return the mean over the tokens that count, by torch, by Hugging Face or by our task."""
    if loss == EXACT:
        logits = model(**batch.inputs).logits[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), batch.labels[:, 1:].flatten(), ignore_index=IGNORED_LABEL)
    if loss == HUGGING_FACE:
        theirs: torch.Tensor = model(**batch.inputs, labels=batch.labels).loss
        return theirs
    return CausalLm(loss=LossImplementation(loss)).loss_sum(model, batch) / batch.num_loss_units


def largest_difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the largest relative 2-norm of a difference; a gradient that is zero by its mathematics is left out."""
    largest = max(float(gradient.norm()) for gradient in expected.values())
    return max(
        relative(found[name], gradient)
        for name, gradient in expected.items()
        if float(gradient.norm()) > 1e-6 * largest  # the bias of keys cannot matter under a softmax
    )


def whole_difference(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """Return the relative 2-norm of the difference of all gradients together."""
    return relative(*(torch.cat([each[name].flatten() for name in expected]) for each in (found, expected)))


def decoder(setup: Setup) -> Any:
    """Return Qwen2 with random weights."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=setup.hidden_size,
        intermediate_size=4 * setup.hidden_size,
        num_hidden_layers=setup.num_layers,
        num_attention_heads=setup.hidden_size // 64,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    dtype = torch.bfloat16 if setup.precision is Precision.BF16 else torch.float32
    return transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)


def ragged_batch(setup: Setup) -> Batch:
    """Return two rows, the second of which ends in ignored labels."""
    shape = (2, setup.num_tokens // 2)
    ids = torch.randint(0, VOCABULARY, shape, generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[1, shape[1] // 2 :] = IGNORED_LABEL
    return causal_batch(ids, labels=labels)


def differences_table(rows: Sequence[DifferenceRow]) -> str:
    """Return the differences as a Markdown table."""
    lines = [
        f"Differences, {SETUPS[0]}, relative; gradients by 2-norm, of all parameters together and of the worst:\n",
        "| loss | value to fp64 | all to fp64 | worst to fp64 | value to standard | all to it | worst to it |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        to_fp64 = (row.value, row.whole_gradient, row.gradient)
        figures = (*to_fp64, row.value_to_standard, row.whole_gradient_to_standard, row.gradient_to_standard)
        lines.append(f"| {row.loss} | {' | '.join(f'{figure:.1e}' for figure in figures)} |")
    return "\n".join(lines) + "\n"


def peaks_table(rows: Sequence[PeakRow]) -> str:
    """Return the peaks as a Markdown table."""
    lines = [
        "Peak of one forward and backward, weights and gradients included; beside it what is added to the weights:\n",
        "| model and batch | loss | peak, GiB | to Hugging Face | added, GiB | to Hugging Face |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        peak, added = row.peak_bytes / GIB, row.added_bytes / GIB
        lines.append(
            f"| {row.setup} | {row.loss} | {peak:.3f} | {row.peak_ratio:.3f} | {added:.3f} | {row.added_ratio:.3f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
