"""Published runs as cases: what a row of `reference/measured.csv` says, in the words of `scaling estimate --cases`.

A row is left out, with the reason, where it names something outside the formulas (fp8, activation offload, another
optimizer) or does not say what decides its memory. Nothing is filled in from its result.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strategies.cluster import gpu_presets

FOLDER = Path(__file__).parent / "reference"
Row = Mapping[str, str]

STRATEGIES = (
    (r"shard_grad_op", {"strategy": "fsdp2", "reshard_after_forward": False}),
    (r"fsdp_full_shard \+ CPU offload", {"strategy": "fsdp2", "offload_param": "cpu", "offload_optimizer": "cpu"}),
    (r"fsdp_full_shard", {"strategy": "fsdp2"}),
    (r"zero_infinity", {"strategy": "zero3", "offload_param": "cpu", "offload_optimizer": "cpu"}),
    (r"zero_offload \(zero3", {"strategy": "zero3", "offload_optimizer": "cpu"}),
    (r"zero_offload|zero2, optimizer on CPU", {"strategy": "zero2", "offload_optimizer": "cpu"}),
    (r"zero2 \(fairscale", {}),
    (r"zero3", {"strategy": "zero3"}),
    (r"zero2", {"strategy": "zero2"}),
    (r"zero1/2", {}),
    (r"ddp with sharded optimizer|megatron", {}),
    (r"zero1", {"strategy": "zero1"}),
    (r"ddp|zero0|single gpu", {"strategy": "ddp"}),
)
FAMILIES = (
    (r"MPT", "mpt"),
    (r"BERT", "bert"),
    (r"T5", "t5"),
    (r"Qwen2", "qwen2"),
    (r"Gemma", "gemma"),
    (r"Phi-3", "phi3"),
    (r"Phi-2", "phi"),
    (r"StableLM-2", "stablelm"),
    (r"Llama|LLaMA|Vicuna", "llama"),
    (r"GPT", "gpt2"),
)
GPUS = {
    "V100-32GB-SXM3": "V100-32GB-SXM2",
    "L4-24GB": "L4",
    "A100-80GB": "A100-80GB-SXM",
    "A100-40GB": "A100-40GB-SXM",
    "A800-80GB": "A800-80GB-SXM",
}
"""Names of the rows that are no names of configs/gpus.csv; an A100 without further word is taken as the SXM one."""
NOT_STATED = "not stated"
WITHOUT_FAMILY = r"DeBERTa|DistilBERT|BlenderBot|MiniCPM|OLMo|encoder-decoder|nanochat|GPT-J|GLM"


REDUCES_ONCE = r"Kempner"
"""Frameworks whose FSDP2 runs hold whole gradients over the micro batches of a step. Not stated: four rows at 2 to 32
GPUs lie on 4 P + 6 P / N bytes beside what grows with the batch, and on nothing that falls faster."""
CHUNKED_LOSS = frozenset({"TTC-007", "TUNE-007", "TUNE-008"})
"""Rows whose source says so beside the columns."""
FUSED_LOSS = r"llm-foundry"
"""Its models train with flash-attn's cross-entropy unless told otherwise, which makes no fp32 logits. Of our three
losses ``fused`` comes closest; it leaves out the 16-bit logits."""
FUSED = {"torchtune": " (fused)"}
"""What the recipes of a framework ask for, where the row does not repeat it."""
OTHERWISE = {
    "TUNE-004": "its samples are much shorter than the stated length",
    "BSZ3-017": "activations checkpointed in CPU memory",
    "BSZ3-018": "activations checkpointed in CPU memory",
    "BSZ3-019": "activations checkpointed in CPU memory",
    "BSZ3-037": "killed for its host memory, not the GPU's",
}
"""What the source says beside the columns and no formula has."""


class LeftOut(Exception):
    """Why a row is no case."""


def published_rows() -> list[Row]:
    """Return the rows of data-parallel full training."""
    with (FOLDER / "measured.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row["parallelism"] == "dp" and row["method"] == "full"]


def case_of(row: Row) -> dict[str, Any]:
    """Return the case that the row describes.

    Raises:
        LeftOut: it names something that has no formula, or leaves out what decides its memory.
    """
    if row["id"] in OTHERWISE:
        raise LeftOut(OTHERWISE[row["id"]])
    plan = _strategy(row)
    gpus, micro, seq_len = _number(row, "n_gpus"), _number(row, "micro_batch"), _number(row, "seq_len")
    steps = int(row["grad_accum"] or 1)
    plan |= {"micro_batch_size": micro, "activation_checkpointing": _activation_checkpointing(row)}
    if plan["strategy"] == "fsdp2":
        plan["sync_each_batch"] = not re.search(REDUCES_ONCE, row["framework"])
    return {
        "id": row["id"],
        "model": _model(row),
        "cluster": _cluster(row, gpus),
        "job": {
            "seq_len": seq_len,
            "global_batch_size": micro * steps * gpus,
            "precision": _precision(row, plan["strategy"]),
            "optimizer": _optimizer(row),
            "fused_optimizer": is_fused(row["optimizer"] + FUSED.get(row["framework"], ""), plan["strategy"]),
            "attention": "eager" if row["attention"].startswith("eager") else "flash",
            "loss": _loss(row),
        },
        "plan": plan,
    }


def _number(row: Row, column: str) -> int:
    if not row[column].isdigit():
        raise LeftOut(f"{column} is {row[column] or 'not stated'}")
    return int(row[column])


def _strategy(row: Row) -> dict[str, Any]:
    for pattern, plan in STRATEGIES:
        if re.search(pattern, row["strategy"]):
            if not plan:
                raise LeftOut(f"strategy {row['strategy']}")
            return dict(plan)
    raise LeftOut(f"strategy {row['strategy']}")


def _activation_checkpointing(row: Row) -> str:
    known = row["activation_ckpt"]
    if known not in ("none", "full", "selective"):
        raise LeftOut(f"activation checkpointing: {known}")
    return known


def _precision(row: Row, strategy: str) -> str:
    text = row["precision"]
    if re.search(r"fp8|float8|FP8|FP4|MX", text) or not text or text in ("unknown", "not stated", "not recorded"):
        raise LeftOut(f"precision: {text or 'not stated'}")
    if re.search(r"pure bf16|bf16-true|bf16 pure|bf16 optimizer states|bf16 master", text):
        return "bf16-pure"
    if re.search(r"autocast|amp|shards|bf16 compute|fp32 params", text):
        return "fp16-autocast" if "fp16" in text else "bf16-autocast"
    if text == "fp32":
        return "fp32"
    narrow = "fp16" if "fp16" in text else "bf16"
    return narrow if strategy.startswith("zero") else f"{narrow}-autocast"


def _optimizer(row: Row) -> str:
    text = row["optimizer"].lower()
    if "in backward" in text or "muon" in text or "dana" in text or "unknown" in text or "paged" in text:
        raise LeftOut(f"optimizer: {row['optimizer']}")
    return "adamw-8bit" if "8bit" in text else "adamw"


def _loss(row: Row) -> str:
    if row["id"] in CHUNKED_LOSS:
        return "chunked"
    return "fused" if re.search(FUSED_LOSS, row["framework"]) else "standard"


def is_fused(optimizer: str, strategy: str) -> bool:
    """Whether one kernel updates a tensor: DeepSpeed's optimizers, or torch's where asked for; else it is for-each."""
    return strategy.startswith("zero") or "fused" in optimizer.lower()


def other_implementation(row: Row) -> str | None:
    """Return why what ran is known to be built differently from what is predicted; None where it is not."""
    framework, strategy = row.get("framework", ""), row["strategy"]
    if re.search(r"SimpleFSDP|graph trainer", framework):
        return "another implementation of sharding, compiled as a whole"
    if "Gemini" in framework:
        return "ColossalAI's chunked parameters"
    if "ColossalAI" in framework and "offload" in strategy:
        return "ColossalAI does not flatten the weights at initialisation"
    if row.get("compile") == "y" and "torchtune" in framework:
        return "compiled: fused operators keep less"
    if "Kempner" in framework and strategy == "fsdp_full_shard":
        return "reduces gradients of 16-bit weights in fp32, and is compiled: fewer bytes a logit"
    if row["id"] in OLD_TORCHTITAN:
        return "torchtitan of May 2024: fp32 logits, held over a step (traced to 0.14 %: results/trace_published.md)"
    if framework == "Mist":
        return "Mist's own runtime, not DeepSpeed"
    return None


OLD_TORCHTITAN = frozenset({"TTC-004", "TTC-005"})
"""Their commit's own model, loop and reduction, traced and replayed, give the published figure to 0.14 %."""


def _cluster(row: Row, gpus: int) -> dict[str, Any]:
    stated = row["gpu"].split(" (")[0]
    name = GPUS.get(stated, stated) or NOT_STATED
    known = gpu_presets()
    nominal = row["gpu_mem_gib"]
    closest = next((preset for preset in known if preset.startswith(name)), None)
    if closest is None:
        closest = next((preset for preset in known if preset.replace("-", "").startswith(name.replace("-", ""))), None)
    if closest is None and not nominal and not row["peak_mem_gib"]:
        raise LeftOut(f"gpu {name}")
    cluster: dict[str, Any] = {"gpu": closest or "A100-80GB-SXM", "gpus": gpus}
    if nominal and not float(nominal).is_integer():
        cluster["gpu_memory_gib"] = float(nominal)
    elif closest is None and nominal:
        cluster["gpu_memory_gib"] = round(float(nominal) * 0.98, 2)
    return cluster


def _model(row: Row) -> dict[str, Any]:
    name = row["model"]
    if re.search(WITHOUT_FAMILY, name):
        raise LeftOut(f"model {name}: not a known family")
    family = next((family for pattern, family in FAMILIES if re.search(pattern, name)), None)
    if family is None or not row["hidden"] or not row["vocab"]:
        raise LeftOut(f"model {name}: {'not a known family' if family is None else 'shape not stated'}")
    return CONFIGS[family](row) if family in CONFIGS else _llama_like(row, family)


def _llama_like(row: Row, family: str) -> dict[str, Any]:
    config: dict[str, Any] = {
        "model_type": family,
        "hidden_size": int(row["hidden"]),
        "intermediate_size": int(row["ffn"]),
        "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": int(row["heads"]),
        "num_key_value_heads": int(row["kv_heads"] or row["heads"]),
        "vocab_size": int(row["vocab"]),
        "max_position_embeddings": 2**20,
        "tie_word_embeddings": row["model"].startswith(("Llama-3.2-1B", "Llama-3.2-3B", "Gemma", "Qwen2.5-3B")),
    }
    if family == "gemma":
        config["head_dim"] = 256
    return config


def _gpt2(row: Row) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "n_embd": int(row["hidden"]),
        "n_layer": int(row["layers"]),
        "n_head": int(row["heads"]),
        "n_inner": int(row["ffn"] or 4 * int(row["hidden"])),
        "n_positions": max(1024, int(row["seq_len"] or 0)),
        "vocab_size": int(row["vocab"]),
    }


def _mpt(row: Row) -> dict[str, Any]:
    return {
        "model_type": "mpt",
        "d_model": int(row["hidden"]),
        "n_layers": int(row["layers"]),
        "n_heads": int(row["heads"]),
        "expansion_ratio": 4,
        "max_seq_len": int(row["seq_len"]),
        "vocab_size": int(row["vocab"]),
    }


def _bert(row: Row) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "hidden_size": int(row["hidden"]),
        "num_hidden_layers": int(row["layers"]),
        "num_attention_heads": int(row["heads"]),
        "intermediate_size": int(row["ffn"]),
        "vocab_size": int(row["vocab"]),
        "max_position_embeddings": 512,
    }


CONFIGS = {"gpt2": _gpt2, "mpt": _mpt, "bert": _bert}
