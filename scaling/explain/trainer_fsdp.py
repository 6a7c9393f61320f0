"""FSDP in TrainingArguments: ``fsdp`` and ``fsdp_config``.

Source: transformers 5.24.0, training_args.py, _process_fsdp_args and _apply_legacy_fsdp_to_config.
"""

from __future__ import annotations

from collections.abc import Iterator

from scaling.explain.findings import Finding, Repair, Severity, Topic, removing, renaming, setting
from scaling.explain.key_table import nearest
from scaling.explain.tree import Tree, block, shown, whole

OF_BOTH = (
    "version", "min_num_params", "transformer_layer_cls_to_wrap", "cpu_offload", "auto_wrap_policy",
    "cpu_ram_efficient_loading", "state_dict_type", "activation_checkpointing", "reshard_after_forward", "xla",
    "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "xla_fsdp_settings",
)  # fmt: skip
OF_FSDP1 = ("forward_prefetch", "backward_prefetch", "use_orig_params", "sync_module_states", "limit_all_gathers")
SHARDING = ("full_shard", "shard_grad_op")
SHARDING_OF_FSDP1 = ("no_shard", "hybrid_shard", "hybrid_shard_zero2")
WORDS = (*SHARDING, *SHARDING_OF_FSDP1, "offload", "auto_wrap")


def fsdp_findings(tree: Tree, file: str) -> Iterator[Finding]:
    """Yield what is wrong with the two arguments."""
    config = block(tree, "fsdp_config")
    if isinstance(name := tree.get("fsdp_config"), str):
        message = f"fsdp_config names {shown(name)}, which is not looked into"
        yield _said(Severity.NOTE, Topic.HINT, file, "fsdp_config", message, "put the block here to have it looked at")
    version = whole(config.get("version", config.get("fsdp_version", 2))) or 2
    yield from _words(tree.get("fsdp"), version, file)
    for name in config:
        yield from _key(name, version, config, file)
    if version == 1 and tree.get("fsdp"):
        message = "fsdp_config.version=1 is deprecated and goes with transformers 5.20 or later"
        yield _said(
            Severity.WARNING, Topic.DEPRECATED, file, "fsdp_config.version", message, "leave it out: 2 is the default"
        )


def _words(given: object, version: int, file: str) -> Iterator[Finding]:
    if not given or isinstance(given, bool) or not isinstance(given, str | list):
        return
    words = given.split() if isinstance(given, str) else [str(each) for each in given]
    for word in words:
        if word.lower() not in WORDS:
            near = nearest(word, WORDS, cutoff=0.6)
            message = f"fsdp: {shown(word)} is none of {', '.join(WORDS)}"
            better: object = " ".join(near if each == word else each for each in words) if near else None
            better = word.lower() == "true" if word.lower() in ("true", "false") else better
            repairs = () if better is None else (setting("fsdp", better),)
            fix = "take it out" if better is None else f"write {shown(better)}"
            yield _said(Severity.ERROR, Topic.WRONG_TYPE, file, "fsdp", message, fix, *repairs)
        elif word.lower() in SHARDING_OF_FSDP1 and version == 2:
            message = f"fsdp: {word} is there with FSDP 1 only, and version 2 is the default since transformers 5"
            fix = "set fsdp_config.version=1, or take full_shard"
            yield _said(Severity.ERROR, Topic.VERSION, file, "fsdp", message, fix, setting("fsdp_config.version", 1))
    if set(map(str.lower, words)) <= set(WORDS):
        message = f"fsdp={shown(given)} as words is deprecated and still read"
        yield _said(
            Severity.WARNING, Topic.DEPRECATED, file, "fsdp", message, "write fsdp: true, and the rest in fsdp_config"
        )


def _key(name: str, version: int, config: Tree, file: str) -> Iterator[Finding]:
    key, bare = f"fsdp_config.{name}", name.removeprefix("fsdp_")
    if bare in OF_BOTH or (bare in OF_FSDP1 and version == 1):
        return
    if bare in OF_FSDP1:
        yield _said(Severity.NOTE, Topic.HINT, file, key, f"{key} does nothing with FSDP 2", f"take {key} out")
        return
    near = nearest(bare, (*OF_BOTH, *OF_FSDP1))
    if near and near not in config:
        message = f"{key} is no key, the nearest is {near}: the Trainer passes over it, the setting is lost"
        new = f"fsdp_config.{near}"
        yield _said(Severity.ERROR, Topic.UNKNOWN_KEY, file, key, message, f"write {near}", renaming(key, new))
        return
    message = f"{key} does nothing: the Trainer passes over it"
    yield _said(Severity.WARNING, Topic.HINT, file, key, message, f"take {key} out", removing(key))


def _said(severity: Severity, topic: Topic, file: str, key: str, message: str, fix: str, *repairs: Repair) -> Finding:
    return Finding(severity=severity, topic=topic, file=file, key=key, message=message, fix=fix, repairs=repairs)
