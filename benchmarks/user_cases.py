"""Users' reports of runs that fitted or ran out of memory, as cases (`reference/user_cases.csv`).

Full training only. What a report leaves out is assumed in favour of fitting, so that a predicted "does not fit" is
never owed to the assumption: one sample, 512 tokens, activation checkpointing where it is not denied.
"""

from __future__ import annotations

import csv
import re
from typing import Any

from benchmarks.published_cases import FOLDER, LeftOut, Row, is_fused
from strategies.cluster import gpu_presets

PRESETS = (
    (r"Qwen2.5-3B", "qwen2.5-3b"),
    (r"BERT-large", "bert-large"),
    (r"GPT2-XL", "gpt2-xl"),
    (r"GPT2-large", "gpt2-large"),
    (r"Pythia-6.9B", "pythia-6.9b"),
    (r"Pythia-12B", "pythia-12b"),
    (r"Llama-2-7B|LLaMA-7B|Vicuna-7B", "llama-2-7b"),
    (r"LLaMA-13B", "llama-2-13b"),
    (r"Qwen3-14B", "qwen3-14b"),
    (r"Llama-3-70B", "llama-3-70b"),
    (r"LLaDA-8B", "llama-3-8b"),
    (r"T5-11B", "t5-11b"),
    (r"GPT-J-6B", "gpt-j-6b"),
    (r"BLOOM-1B7", "bloom-1b7"),
    (r"bloomz-7b1", "bloom-7b1"),
    (r"Qwen3-30B-A3B", "qwen3-30b-a3b"),
)
T0_3B = {
    "model_type": "t5",
    "d_model": 2048,
    "d_ff": 5120,
    "d_kv": 64,
    "num_heads": 32,
    "num_layers": 24,
    "num_decoder_layers": 24,
    "vocab_size": 32128,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
}
"""The dimensions that its row states: T5 v1.1, not the first T5 of 3B."""
STRATEGIES = (
    (r"FSDP on 1 GPU", "ddp"),
    (r"FSDP", "fsdp2"),
    (r"ZeRO-2 and ZeRO-3", "zero3"),
    (r"ZeRO-3", "zero3"),
    (r"ZeRO-2|stage 2", "zero2"),
    (r"ZeRO-1", "zero1"),
    (r"DDP|single|ZeRO-0", "ddp"),
)
GPUS = {
    "A100-80GB": "A100-80GB-SXM",
    "A100-40GB": "A100-40GB-SXM",
    "A100 (40GB implied)": "A100-40GB-SXM",
    "A100-SXM4-40GB": "A100-40GB-SXM",
    "A100-SXM4-80GB": "A100-80GB-SXM",
    "V100-32GB": "V100-32GB-SXM2",
    "V100-16GB": "V100-16GB-SXM2",
    "H100-80GB": "H100-80GB-SXM",
    "A10G": "A10G",
    "RTX 3090": "RTX3090",
    "T4": "T4",
    "T4 (g4dn.4xlarge)": "T4",
    "GH200-96GB": "GH200-96GB",
    "80GB class": "A100-80GB-SXM",
}


def user_rows() -> list[Row]:
    """Return the reports of full training that fitted or ran out of device memory."""
    with (FOLDER / "user_cases.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row["method"].startswith("full") and row["outcome"] in ("fits", "oom")]


def case_of(row: Row) -> dict[str, Any]:
    """Return the case that the report describes.

    Raises:
        LeftOut: it names something that has no formula, or not enough of it.
    """
    model: Any = T0_3B if row["model"].startswith("T0_3B") else _first(PRESETS, row["model"], "model")
    strategy = _first(STRATEGIES, row["strategy"], "strategy")
    if not row["n_gpus"].isdigit() or row["gpu"] not in GPUS:
        raise LeftOut(f"{row['n_gpus']} x {row['gpu']}: no such cluster")
    gpus, micro = int(row["n_gpus"]), _leading_number(row["micro_batch"], default=1)
    steps = int(row["grad_accum"] or 1)
    assert GPUS[row["gpu"]] in gpu_presets()
    return {
        "id": row["id"],
        "model": model,
        "cluster": {"gpu": GPUS[row["gpu"]], "gpus": gpus},
        "job": {
            "seq_len": _seq_len(row),
            "global_batch_size": micro * steps * gpus,
            "precision": _precision(row, strategy),
            "optimizer": _optimizer(row),
            "fused_optimizer": is_fused(row["optimizer"], strategy),
            "attention": "eager" if row["attention"].startswith("eager") else "flash",
        },
        "plan": {
            "strategy": strategy,
            "micro_batch_size": micro,
            "activation_checkpointing": "none" if row["act_ckpt"].startswith("none") else "full",
            "offload_optimizer": "cpu" if "optimizer" in row["offload"] and strategy != "fsdp2" else "none",
            "offload_param": "cpu" if "param" in row["offload"] and strategy == "zero3" else "none",
        },
    }


def _first(choices: tuple[tuple[str, str], ...], text: str, what: str) -> str:
    for pattern, value in choices:
        if re.search(pattern, text):
            return value
    raise LeftOut(f"{what} {text}")


def _leading_number(text: str, *, default: int) -> int:
    found = re.match(r"\d+", text)
    if "total" in text:
        raise LeftOut(f"micro batch: {text}")
    return int(found.group()) if found else default


def _seq_len(row: Row) -> int:
    found = re.match(r"(\d+)", row["seq_len"]) or re.search(r"<=(\d+)", row["seq_len"])
    return int(found.group(1)) if found else 512


def _precision(row: Row, strategy: str) -> str:
    text = row["precision"]
    if text.startswith("fp32") or "falls back to fp32" in text:
        return "fp32"
    if "pure" in text or "bf16 master" in text:
        return "bf16-pure"
    narrow = "fp16" if "fp16" in text else "bf16"
    return narrow if strategy.startswith("zero") else f"{narrow}-autocast"


def _optimizer(row: Row) -> str:
    text = row["optimizer"]
    if re.search(r"Muon|4-bit", text):
        raise LeftOut(f"optimizer {text}")
    return "adamw-8bit" if "8-bit" in text else "adamw"
