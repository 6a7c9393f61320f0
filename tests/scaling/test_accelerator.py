"""accelerate as installed takes a plan's arguments, and no variable of the environment overrules them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scaling.launching import TORCHRUN, succeed

pytestmark = [pytest.mark.distributed, pytest.mark.deepspeed, pytest.mark.slow]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What the Accelerators of one process became, by plan."""
    printed = succeed([*TORCHRUN, "1", "-m", "tests.scaling.accelerator_objects"])
    return json.loads(printed[printed.index("{") :])


def test_every_accelerator_accumulates_as_planned(found: dict[str, Any]) -> None:
    assert len(found) == 8
    for name, facts in found.items():
        assert (facts["device"], facts["processes"], facts["backend"]) == ("cpu", 1, "gloo"), name
        assert facts["steps"] == 3, name
        assert facts["follows_data"] is False, name
    reduced = {name for name, facts in found.items() if facts["sync_each_batch"]}
    assert reduced == {"zero1", "zero2", "zero3", "fsdp2", "fsdp2 offloaded"}


def test_ddp(found: dict[str, Any]) -> None:
    # Buckets of 6 elements of 4 bytes, in MiB; torch's own default is 25. No search for unused parameters, as torch's.
    buckets = {"bucket_cap_mb": 24 / 2**20, "gradient_as_bucket_view": True}
    for name, casts in (("ddp", False), ("ddp bf16", True)):
        assert found[name]["type"] == "MULTI_CPU"
        assert found[name]["ddp"] == {**buckets, "broadcast_buffers": False}
        assert found[name]["autocast"] is casts


@pytest.mark.parametrize("name", ["zero1", "zero2", "zero3"])
def test_zero(found: dict[str, Any], name: str) -> None:
    facts = found[name]
    assert facts["type"] == "DEEPSPEED"
    assert facts["same_config"] is True
    assert facts["silent"] == float("inf")
    assert facts["init_cut"] is (name == "zero3")
    assert facts["autocast"] is False


def test_fsdp2(found: dict[str, Any]) -> None:
    for name in ("fsdp2", "fsdp2 kept", "fsdp2 offloaded"):
        assert found[name]["type"] == "FSDP"
        assert found[name]["is_fsdp2"] is True
        assert found[name]["wraps"] == "transformer_auto_wrap_policy"
        assert found[name]["offloads_activations"] is False
    facts, kept, offloaded = found["fsdp2"], found["fsdp2 kept"], found["fsdp2 offloaded"]
    assert (facts["reshards"], facts["checkpoints"], facts["offload"]) == (True, True, "OffloadPolicy")
    assert facts["formats"] == ["torch.bfloat16", "torch.float32"]
    assert (kept["reshards"], kept["checkpoints"], kept["formats"]) == (False, False, None)
    assert offloaded["offload"] == "CPUOffloadPolicy"
