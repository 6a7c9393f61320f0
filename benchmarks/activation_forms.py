"""Make the form files of the memory model: what every family keeps and holds for a moment, fitted from traces.

Method: narrow models with three blocks are traced at three random shapes and once with a fourth block. The bytes of
every storage are explained as a product of sizes, exactly or not at all; their running sum is the level after every
event; the fourth block tells what repeats. Of all moments those are kept that are the highest at some realistic size.
Usage: ``python -m benchmarks.activation_forms [family ...]``; writes ``strategies/memory/forms/<family>.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.form_families import STACK_KEYS, TASKS
from benchmarks.form_fit import UnexplainedBytesError
from benchmarks.form_moments import BlockMoments, HeadCut, HeadMoments, block_moments, head_cut, head_moments
from benchmarks.form_prune import as_form, feature_values, pruned
from benchmarks.form_stacks import head_of_stacks, stack_moments
from benchmarks.form_traces import PARTS, Events, Setting, traced
from benchmarks.form_variants import FAMILIES, WITH_WINDOWS, variants
from scaling.trace import Recompute, TracePrecision
from strategies.architectures.variants import variant_of
from strategies.estimate import Phase
from strategies.job import Job, LossImplementation
from strategies.memory.forms import STAGE3_AUTOCAST

FOLDER = Path(__file__).parents[1] / "strategies" / "memory" / "forms"
FORMATS = {
    "16bit": TracePrecision.BF16,
    "autocast": TracePrecision.BF16_AUTOCAST,
    STAGE3_AUTOCAST: TracePrecision.BF16_AUTOCAST,
    "fp32": TracePrecision.FP32,
}
Traces = Mapping[Phase, Events]


def main(families: list[str]) -> None:
    """Make the files of ``families``, or of all."""
    for family in families or FAMILIES:
        start = time.process_time()
        FOLDER.mkdir(exist_ok=True)
        found = dict(_variants(family))
        (FOLDER / f"{family}.json").write_text(text(found))
        size = (FOLDER / f"{family}.json").stat().st_size
        print(f"{family}: {len(found)} variants, {size // 1024} KiB, {time.process_time() - start:.0f} s", flush=True)


def text(found: Mapping[str, Any]) -> str:
    """Return JSON with one line a setting, so that changes can be read."""
    lines = [
        f"{json.dumps(variant)}: {{\n"
        + ",\n".join(f"{json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in parts.items())
        + "\n}"
        for variant, parts in found.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _variants(family: str) -> Iterator[tuple[str, dict[str, Any]]]:
    values = feature_values(family)
    for settings in variants(family):
        grouping = settings.get("grouping")
        name = variant_of(settings, family=family) + (f";{grouping}" if grouping else "")
        yield name, dict(_settings(family, settings, values=values))


def _settings(family: str, settings: Mapping[str, Any], *, values: Any) -> Iterator[tuple[str, Any]]:
    for name, precision in FORMATS.items():
        by_stage3 = name == STAGE3_AUTOCAST
        on_cuda = Maker(family, settings, "cuda", precision, values, by_stage3=by_stage3)
        on_cpu = Maker(family, settings, "cpu", precision, values, like=on_cuda, by_stage3=by_stage3)
        for maker in (on_cuda, on_cpu):
            try:
                parts = list(maker.parts())
            except (UnexplainedBytesError, ValueError) as error:
                print(f"{family} {dict(settings)} {maker.kernels} {name}: {error}", flush=True)
                continue
            yield from ((f"{maker.kernels}.{name}.{key}", value) for key, value in parts)


class Maker:
    """One variant, precision and device."""

    checkpointings = tuple(Recompute)

    def __init__(
        self,
        family: str,
        settings: Mapping[str, Any],
        kernels: str,
        precision: TracePrecision,
        values: Any,
        *,
        like: Maker | None = None,
        by_stage3: bool = False,
        job: Job | None = None,
    ) -> None:
        """`like`: the same on the other device, whose heads for other losses are taken: products and softmax alone.

        `job`: what is trained, where that is not everything.
        """
        self.family, self.settings, self.kernels, self.precision = family, settings, kernels, precision
        self.values, self.like, self.by_stage3, self.job = values, like, by_stage3, job
        self.heads: dict[str, Any] = {}

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yield blocks by attention and activation checkpointing, and heads by loss."""
        reference_attention, reference = self._reference()
        self._reference_attention = reference_attention
        others: dict[LossImplementation, Traces] = {}
        if self.family not in TASKS and self.like is None:
            others = {loss: self._traced(reference_attention, loss=loss) for loss in _OTHER_LOSSES}
        cut = self.cut = self._cut(reference, others)
        for attention in self._attentions(reference_attention):
            for checkpointing in self.checkpointings:
                is_reference = attention == reference_attention and checkpointing is Recompute.NONE
                traces = reference if is_reference else self._traced(attention, checkpointing=checkpointing)
                for stack, moments in self._stacks(attention, checkpointing, traces):
                    yield f"blocks.{attention}{stack}.{checkpointing.value}", self._block(moments)
        for loss, other in {**others, LossImplementation.STANDARD: reference}.items():
            self.heads[f"head.{loss.value}"] = self._head(
                head_moments(other, cut, like=reference, loss_is_apart=self._loss_is_apart(loss))
            )
        if self.like is not None:
            self.heads = {**self.like.heads, **self.heads}
        yield from self.heads.items()

    def _loss_is_apart(self, loss: LossImplementation) -> bool:
        """Whether autocast, in which the trainer runs the model's own forward, ends before the loss begins."""
        has_autocast = self.precision.autocast_dtype is not None
        return has_autocast and self.family not in TASKS and loss is not LossImplementation.FUSED

    def _stacks(self, attention: str, checkpointing: Recompute, traces: Traces) -> Iterator[tuple[str, BlockMoments]]:
        """Yield the moments of every stack with what ends its kind's name; ``traces`` are those of a deeper decoder."""
        if self.family not in STACK_KEYS:
            yield "", block_moments(traces, self.cut)
            return
        encoder = self._traced(attention, checkpointing=checkpointing, stack="encoder")
        yield from zip(("-encoder", "-decoder"), stack_moments(encoder, traces, self.cut), strict=True)

    def _cut(self, reference: Traces, others: Mapping[LossImplementation, Traces]) -> HeadCut:
        if self.like is not None:
            return self.like.cut
        if self.family in STACK_KEYS:
            return head_of_stacks(reference, self._traced(self._reference_attention, checkpointing=Recompute.FULL))
        if not others:
            return _whole_head(reference)
        cuts = [head_cut(reference, other) for other in others.values()]
        return HeadCut(
            forward=max(each.forward for each in cuts),
            backward=max(each.backward for each in cuts),
            evaluation=max(each.evaluation for each in cuts),
        )

    def _reference(self) -> tuple[str, Traces]:
        """Return the fused attention's trace, or the plain one's where the library has no other."""
        try:
            return "flash", self._traced("flash")
        except ValueError as error:
            if "scaled_dot_product" not in str(error):
                raise
            return "eager", self._traced("eager")

    def _attentions(self, reference: str) -> Iterator[str]:
        if reference == "flash":
            yield "flash"
            if self.family in WITH_WINDOWS:
                yield "windowed"
        if self.kernels == "cuda" or reference == "eager":
            yield "eager"

    def _traced(
        self,
        attention: str,
        *,
        checkpointing: Recompute = Recompute.NONE,
        loss: LossImplementation = LossImplementation.STANDARD,
        stack: str = "decoder",
    ) -> Traces:
        settings = dict(self.settings)
        setting = Setting(
            family=self.family,
            values=settings,
            precision=self.precision,
            kernels=self.kernels,
            attention="eager" if attention == "eager" else "sdpa",
            is_windowed=attention == "windowed",
            checkpointing=checkpointing,
            loss=loss,
            stack=stack if self.family in STACK_KEYS else None,
            by_stage3=self.by_stage3,
            job=self.job,
        )
        return traced(setting)

    def _block(self, found: BlockMoments) -> dict[str, Any]:
        kept = found.kept_in_forward.sum(axis=0)
        result: dict[str, Any] = {
            "kept": _split(found.kept),
            "kept_in_forward": _split(found.kept_in_forward),
            "forward_base": _split(found.forward_base),
            "backward_base": _split(found.backward_base),
        }
        for name in ("forward", "top", "bottom"):
            result[name] = self._moments(getattr(found, name), base=2 * kept)
        if found.evaluation is not None:
            result["evaluation_kept"] = _split(found.evaluation_kept)
            result["evaluation_base"] = _split(found.evaluation_base)
            result["evaluation"] = self._moments(found.evaluation, base=2 * found.evaluation_kept.sum(axis=0))
        return result

    def _head(self, found: HeadMoments) -> dict[str, Any]:
        nothing = np.zeros(len(self.values))
        moments = {each.name: self._moments(getattr(found, each.name), base=nothing) for each in fields(HeadMoments)}
        return {name: levels for name, levels in moments.items() if levels or not name.endswith("after_model")}

    def _moments(self, levels: Any, *, base: Any) -> list[dict[str, Any]]:
        return [_split(levels[index]) for index in pruned(levels, values=self.values, base=base)]


_OTHER_LOSSES = (LossImplementation.CHUNKED, LossImplementation.FUSED)


def _whole_head(reference: Traces) -> HeadCut:
    """Return where head and loss begin in models that know one loss alone: after the last block that repeats."""
    from benchmarks.form_moments import last_allocation, window

    forward, backward = reference[Phase.FORWARD], reference[Phase.BACKWARD]
    evaluation = reference[Phase.EVALUATION]
    return HeadCut(
        forward=last_allocation(forward.keys) - window(forward).latest,
        backward=max(window(backward).earliest - 1, 1),
        evaluation=last_allocation(evaluation.keys) - window(evaluation).latest,
    )


def _split(level: Any) -> dict[str, Any]:
    """Return one level by part, without parts that hold nothing."""
    return {part: form for part, row in zip(PARTS, level, strict=True) if (form := as_form(row))}


if __name__ == "__main__":
    main(sys.argv[1:])
