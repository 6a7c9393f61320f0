"""The code in docs/library.md runs, and trains what the plan says: the weights are those of plain PyTorch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from scaling.launch_env import GLOO_GRACE_S
from tests.scaling.launching import TORCHRUN, start

ROOT = Path(__file__).parents[1]
TEXT, README = (ROOT / "docs" / "library.md").read_text(), (ROOT / "README.md").read_text()
NUM_RANKS, GLOBAL_BATCH = 2, 8
# Of the three gradients the norms are 0.99, 1.05 and 0.98: clipping must change the second and leave the others.
MAX_NORM = 1.02
# With so large an epsilon AdamW's update grows with the gradient, so that one that is scaled wrongly shows.
LEARNING_RATE, EPSILON = 1.0, 1.0
SENSITIVE = {
    'precision="fp32",': f'precision="fp32", gradient_clipping={MAX_NORM},',
    "lr=1e-3,": f"lr={LEARNING_RATE}, eps={EPSILON},",
}
SENSITIVE_TRAINER = {
    'precision="fp32",': f'precision="fp32", gradient_clipping={MAX_NORM},',
    "learning_rate=1e-3,": f"learning_rate={LEARNING_RATE}, adam_epsilon={EPSILON},",
}
AS_WRITTEN = 'gpu="cpu"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How the program of the document is run under another plan."""

    plan: dict[str, str]
    before: str = ""
    """Lines to run first."""
    shows: frozenset[str]
    """Classes that the prepared model must be made of, to know that the plan really ran."""


# What a CPU rank of DeepSpeed needs here: no compiler is started (see scaling/engines/deepspeed.py).
WITHOUT_COMPILER = """
import torch
from scaling.engines.deepspeed import import_deepspeed
import_deepspeed(torch.device("cpu"))
"""
# accelerate runs FSDP2 on GPUs only: here it takes its gloo ranks for such, and everything after that is its own.
RANKS_LIKE_GPUS = """
import os
from accelerate.state import DistributedType, PartialState
PartialState._prepare_backend = lambda *arguments: ("gloo", DistributedType.MULTI_GPU)
os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
"""
CHANGES = {
    "ddp": Change(plan={}, shows=frozenset({"DistributedDataParallel"})),
    "zero2": Change(
        plan={'strategy="ddp"': 'strategy="zero2"'}, before=WITHOUT_COMPILER, shows=frozenset({"DeepSpeedEngine"})
    ),
    "fsdp2": Change(
        plan={
            'strategy="ddp"': 'strategy="fsdp2", activation_checkpointing="full"',
            AS_WRITTEN: 'gpu="H100-80GB-SXM"',
        },
        before=RANKS_LIKE_GPUS,
        shows=frozenset({"FSDPLlamaForCausalLM", "FSDPCheckpointWrapper"}),
    ),
}
END = f"import atexit, time\natexit.register(time.sleep, {GLOO_GRACE_S})\n"
"""A defect of torch's that ends short programs on CPU ranks with SIGABRT is not what is tested here."""
SAVE = """
import sys
weights = accelerator.get_state_dict(model)
if accelerator.is_main_process:
    kinds = {type(module).__name__ for module in model.modules()}
    torch.save({"weights": weights, "kinds": kinds}, sys.argv[1])
"""
SAVE_TRAINER = """
import sys
if trainer.is_world_process_zero():
    torch.save({"weights": model.state_dict(), "steps": trainer.state.global_step}, sys.argv[1])
"""


def blocks(*, named: bool) -> dict[str, str]:
    """Return the document's Python code by file name, or the code without one by its place."""
    found = re.findall(r"```python ?(\S*)\n(.*?)```", TEXT, flags=re.DOTALL)
    return {name or str(place): code for place, (name, code) in enumerate(found) if bool(name) is named}


@pytest.mark.parametrize("code", blocks(named=False).values(), ids=blocks(named=False).keys())
def test_short_example_runs(code: str) -> None:
    exec(compile(code, "docs/library.md", "exec"), {})


def test_short_examples_plan_what_they_name() -> None:
    scope: dict[str, Any] = {}
    for code in blocks(named=False).values():
        exec(compile(code, "docs/library.md", "exec"), scope)
    assert scope["config"]["zero_optimization"]["stage"] == 3
    assert scope["config"]["train_batch_size"] == 32


@pytest.mark.deepspeed
def test_example_of_the_readme_runs_in_a_process_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    monkeypatch.setattr("accelerate.Accelerator", lambda **arguments: made.append(arguments))
    monkeypatch.setenv("WORLD_SIZE", "8")
    scope: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)[0], "README.md", "exec"), scope)
    (arguments,) = made
    told = arguments["deepspeed_plugin"].deepspeed_config
    assert told["train_batch_size"] == 64
    assert scope["arguments"]["deepspeed"]["train_batch_size"] == 64


@pytest.mark.distributed
@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("strategy", CHANGES)
def test_own_loop_trains_the_planned_global_batch(strategy: str, tmp_path: Path) -> None:
    change = CHANGES[strategy]
    code = replaced(blocks(named=True)["train.py"], change.plan | SENSITIVE)
    saved = run(change.before + code + SAVE, tmp_path)
    assert change.shows <= saved["kinds"]
    assert_trained_alike(saved["weights"], num_steps=3)


@pytest.mark.distributed
@pytest.mark.slow
def test_trainer_trains_the_planned_global_batch(tmp_path: Path) -> None:
    code = replaced(blocks(named=True)["trainer.py"], SENSITIVE_TRAINER)
    saved = run(code + SAVE_TRAINER, tmp_path)
    assert saved["steps"] == 2
    assert_trained_alike(saved["weights"], num_steps=2)


def replaced(code: str, changes: dict[str, str]) -> str:
    for old, new in changes.items():
        assert code.count(old) == 1, old
        code = code.replace(old, new)
    return code


def run(program: str, folder: Path) -> dict[str, Any]:
    """Run a program on the ranks of its plan and return what it saved."""
    path, out = folder / "program.py", folder / "out.pt"
    path.write_text(END + program.replace('output_dir="run"', f"output_dir={str(folder / 'run')!r}"))
    surroundings = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    done = start([*TORCHRUN, str(NUM_RANKS), path, out], environ=surroundings, timeout_s=300)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert "find_unused_parameters" not in done.stderr, "torch advises against a setting of the plan"
    return torch.load(out, weights_only=True)


def assert_trained_alike(given: dict[str, torch.Tensor], *, num_steps: int) -> None:
    """Compare with the weights that one process with plain PyTorch reaches on batches of 8."""
    config = transformers.LlamaConfig(
        vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    first = {name: weight.clone() for name, weight in model.state_dict().items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, eps=EPSILON, weight_decay=0.0)
    samples = torch.randint(512, (num_steps * GLOBAL_BATCH, 32), generator=torch.Generator().manual_seed(1))
    for batch in samples.split(GLOBAL_BATCH):
        model(input_ids=batch, labels=batch, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
    last = model.state_dict()
    assert given.keys() == last.keys()
    for name, weight in last.items():
        change = (weight - first[name]).abs().max()
        assert change > 0
        assert (given[name].cpu() - weight).abs().max() < 1e-3 * change, name
