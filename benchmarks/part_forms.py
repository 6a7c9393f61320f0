"""Forms of models of which a part is trained: adapters on usual sets of layers, or all but the embedding.

The method is that of ``benchmarks/activation_forms.py``, with ranks that are independent of all other sizes. Under
stage 3 linear layers are DeepSpeed's, which keep their input whether their weight is trained or not.
Usage: ``python -m benchmarks.part_forms [--format NAME] [family ...]``; writes, or adds one number format to,
``strategies/memory/forms/parts/<family>.json``.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, final

from benchmarks.activation_forms import FOLDER, Maker, text
from benchmarks.form_families import IDS, depth_keys, random_shape
from benchmarks.form_fit import UnexplainedBytesError
from benchmarks.form_prune import feature_values
from benchmarks.form_variants import variants
from scaling.trace import Recompute, TracePrecision
from strategies.adapt import as_trained
from strategies.architectures.variants import variant_of
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.memory.forms import PARTS_END
from strategies.memory.moments import STAGE3
from strategies.trained import Lora

FORMATS = {
    "16bit": TracePrecision.BF16,
    f"16bit{STAGE3}": TracePrecision.BF16,
    "autocast": TracePrecision.BF16_AUTOCAST,
    f"autocast{STAGE3}": TracePrecision.BF16_AUTOCAST,
    "fp32": TracePrecision.FP32,
    f"fp32{STAGE3}": TracePrecision.FP32,
}
RANKS = (8, 16, 64, 128)
"""That moments are chosen for."""
_LIKE_LLAMA = (("q_proj", "v_proj"), ("q_proj", "k_proj", "v_proj", "o_proj"), ("all-linear",))
TARGETS: dict[str, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys(("llama", "mistral", "qwen2", "gemma"), _LIKE_LLAMA),
    "gpt2": (("c_attn",), ("c_attn", "c_proj"), ("all-linear",)),
}
"""What adapters are put on: PEFT's own choice, attention, everything."""
EMBEDDINGS = {"gpt2": ("wte", "wpe")}


def jobs(family: str) -> Iterator[Job]:
    """Yield what is trained of a family."""
    for targets in TARGETS[family]:
        yield Job(seq_len=2, global_batch_size=1, lora=Lora(target_modules=targets))
    yield Job(seq_len=2, global_batch_size=1, freeze=EMBEDDINGS.get(family, ("embed_tokens",)))


def main(words: list[str]) -> None:
    """Make the files of the families that are named, or of all."""
    number_format = words.pop(words.index("--format") + 1) if "--format" in words else None
    for family in [word for word in words if word != "--format"] or TARGETS:
        start = time.process_time()
        path = FOLDER / "parts" / f"{family}.json"
        path.parent.mkdir(exist_ok=True)
        found = json.loads(path.read_text()) if number_format and path.is_file() else {}
        for variant, parts in _variants(family, [number_format] if number_format else list(FORMATS)):
            found[variant] = {**found.get(variant, {}), **parts}
            path.write_text(text(found))
        print(f"{family}: {path.stat().st_size // 1024} KiB, {time.process_time() - start:.0f} s", flush=True)


def _variants(family: str, formats: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    values = feature_values(family, ranks=RANKS)
    for settings in variants(family):
        grouping = settings.get("grouping")
        variant = variant_of(settings, family=family) + (f";{grouping}" if grouping else "")
        for job in jobs(family):
            name = f"{trained_parts(family, job)}{PARTS_END}{variant}"
            # Where no linear layer is frozen stage 3's keep what others do, but for autocast's copies of weights.
            same = () if job.lora else (f"16bit{STAGE3}", f"fp32{STAGE3}")
            own = [each for each in formats if each not in same]
            yield name, dict(_forms(family, settings, job, values=values, formats=own))


def _forms(
    family: str, settings: Mapping[str, Any], job: Job, *, values: Any, formats: list[str]
) -> Iterator[tuple[str, Any]]:
    for name in formats:
        like: PartMaker | None = None
        for kernels in ("cuda", "cpu"):
            by_stage3 = name.endswith(STAGE3)
            maker = PartMaker(family, settings, kernels, FORMATS[name], values, like=like, by_stage3=by_stage3, job=job)
            like = like or maker
            try:
                parts = list(maker.parts())
            except (UnexplainedBytesError, ValueError) as error:
                print(f"{family} {dict(settings)} {kernels} {name}: {error}", flush=True)
                break
            yield from ((f"{kernels}.{name}.{key}", value) for key, value in parts)


@final
class PartMaker(Maker):
    """Makes the forms of fused attention, without activation checkpointing and with full one."""

    checkpointings = (Recompute.NONE, Recompute.FULL)

    def _attentions(self, reference: str) -> Iterator[str]:
        yield reference


def trained_parts(family: str, job: Job) -> str:
    """Return what the form files call that which a job trains."""
    shape = random_shape(family, {}, seed=0)
    config = {"model_type": family, **shape.values, **depth_keys(family, 2), **IDS}
    return as_trained(load_model_spec(config), job).trained_parts


if __name__ == "__main__":
    main(sys.argv[1:])
