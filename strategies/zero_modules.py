"""The modules of a model as DeepSpeed's stage 3 meets them: its unit of gathering."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from strategies.model_spec import ModelSpec
from strategies.parameter_order import blocks_of_tensors

STACKED_DIMENSIONS = 3
"""Of the weights of all experts in one tensor."""
ADAPTER_LISTS = ("lora_A", "lora_B")
"""Modules that hold adapters by name, and never run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleStep:
    """One module, in forward or backward."""

    weights: tuple[int, ...]
    """Indices of the weights that are its own."""
    block: int
    """-1 before the blocks, their number after them."""
    is_backward: bool = False


@cache
def module_steps(spec: ModelSpec) -> tuple[ModuleStep, ...]:
    """Return the modules in about the order of forward: that of names, with the norms of a block before what they feed.

    A module without weights of its own (a block, its attention) counts too: it is another chance to fetch ahead.
    """
    steps: list[ModuleStep] = []
    leaves = _moe_blocks(spec)
    entered, before = set[str](), ""
    for block, name, index in _in_order_of_use(spec):
        module = name.rpartition(".")[0]
        module = next((leaf for leaf in leaves if module.startswith(leaf)), module)
        parents = module.split(".")[:-1]
        for length in range(1, len(parents) + 1):
            parent = ".".join(parents[:length])
            is_called = parents[length - 1] not in ADAPTER_LISTS
            if is_called and parent not in entered and not f"{name[len(parent) + 1 :]}".partition(".")[0].isdigit():
                entered.add(parent)
                steps.append(ModuleStep(weights=(), block=block))
        if module == before:
            steps[-1] = ModuleStep(weights=(*steps[-1].weights, index), block=block)
        else:
            steps.append(ModuleStep(weights=(index,), block=block))
        before = module
    if spec.tied_embeddings:
        steps.append(ModuleStep(weights=(0,), block=steps[-1].block))
    return tuple(steps)


def _in_order_of_use(spec: ModelSpec) -> list[tuple[int, str, int]]:
    """Return (block, name, index) of every tensor."""
    named = zip(blocks_of_tensors(spec), (name for name, _ in spec.parameters()), strict=True)
    tensors = [(block, name, index) for index, (block, name) in enumerate(named)]
    num_blocks = max(block for block, _, _ in tensors)
    return sorted(tensors, key=lambda each: (each[0], _place_in_block(each[1]) if 0 <= each[0] < num_blocks else 0))


def _place_in_block(name: str) -> int:
    if "input_layernorm" in name:
        return 0
    if "self_attn." in name:
        return 1
    return 2 if "post_attention_layernorm" in name else 3


def _moe_blocks(spec: ModelSpec) -> list[str]:
    """Return the modules that hold stacked experts with their router, which are gathered as one.

    Source: deepspeed 0.19.8, runtime/zero/leaf_module_config.py.
    """
    experts = (name.rpartition(".")[0] for name, shape in spec.parameters() if len(shape) == STACKED_DIMENSIONS)
    return list(dict.fromkeys(module.rpartition(".")[0] for module in experts))
