"""What CUDA's kernels keep for backward, against what their authors say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from scaling.storage_log import EventKind, StorageLog
from scaling.trace.emulation import emulated_device
from scaling.trace.kernels import CUDA_SCRATCH

BATCH, HEADS, LENGTH, HEAD_DIM = 2, 4, 256, 64


def _inputs(*, dtype: torch.dtype = torch.bfloat16, key_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    query = torch.empty(BATCH, HEADS, LENGTH, HEAD_DIM, dtype=dtype, device="meta", requires_grad=True)
    key, value = (
        torch.empty(BATCH, key_heads, LENGTH, HEAD_DIM, dtype=dtype, device="meta", requires_grad=True)
        for _ in range(2)
    )
    return query, key, value


def _kept(out: Tensor, log: StorageLog) -> int:
    """Return bytes that live because of ``out``: itself and what its graph saved."""
    assert out.requires_grad
    return log.live_bytes


def _attention(*inputs: Tensor, **settings: object) -> tuple[StorageLog, int]:
    log = StorageLog()
    log.adopt(inputs)
    log.adopt(setting for setting in settings.values() if isinstance(setting, Tensor))
    before = log.live_bytes
    with emulated_device("cuda"), log:
        out = F.scaled_dot_product_attention(*inputs, **settings)
    return log, _kept(out, log) - before


def _ops(log: StorageLog) -> set[str]:
    return {event.op for event in log.events if event.kind is EventKind.ALLOCATE}


def test_flash_attention_keeps_output_and_row_sums() -> None:
    """FlashAttention (arXiv:2205.14135, section 3.1): O and the softmax statistics, linear in the length."""
    log, kept = _attention(*_inputs(), is_causal=True)
    rows = BATCH * HEADS * LENGTH
    random_state = 24
    assert kept == 2 * rows * HEAD_DIM + 4 * rows + random_state
    assert "aten._scaled_dot_product_flash_attention.default" in _ops(log)


def test_grouped_queries_share_keys_without_copies() -> None:
    _, kept = _attention(*_inputs(key_heads=1), is_causal=True, enable_gqa=True)
    _, kept_by_all = _attention(*_inputs(), is_causal=True)
    assert kept == kept_by_all


@pytest.mark.parametrize("reason", ["mask", "fp32"])
def test_mask_or_fp32_takes_the_memory_efficient_kernel(reason: str) -> None:
    """torch's documentation of sdpa: flash attention supports neither masks nor fp32."""
    inputs = _inputs(dtype=torch.float32 if reason == "fp32" else torch.bfloat16)
    mask = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool, device="meta") if reason == "mask" else None
    log, kept = _attention(*inputs, attn_mask=mask)
    assert "aten._scaled_dot_product_efficient_attention.default" in _ops(log)
    bias = 2 * BATCH * LENGTH * LENGTH if reason == "mask" else 0
    rows = BATCH * HEADS * LENGTH
    assert kept == pytest.approx(inputs[0].element_size() * rows * HEAD_DIM + 4 * rows + bias, abs=64)


def test_masked_attention_with_shared_keys_falls_back_to_products() -> None:
    """The memory-efficient kernel has no grouped queries (sdp_utils.cpp): scores are kept."""
    mask = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool, device="meta")
    _, kept = _attention(*_inputs(key_heads=2), attn_mask=mask, enable_gqa=True)
    assert kept > 4 * BATCH * HEADS * LENGTH * LENGTH


def test_dropout_keeps_one_byte_an_element() -> None:
    """Korthikanti et al. 2022, arXiv:2205.05198, section 4.1: the mask takes one byte."""
    x = torch.empty(1000, dtype=torch.bfloat16, device="meta", requires_grad=True)
    log = StorageLog()
    with emulated_device("cuda"), log:
        out = F.dropout(x, 0.1, training=True)
    assert _kept(out, log) == 2000 + 2000 + 1000, "input, output, mask"


def test_dropout_outside_training_keeps_nothing() -> None:
    x = torch.empty(1000, device="meta", requires_grad=True)
    log = StorageLog()
    log.adopt([x])
    with emulated_device("cuda"), log:
        F.dropout(x, 0.1, training=False)
    assert log.live_bytes == 4000


def test_native_rms_norm_keeps_one_number_a_row() -> None:
    x = torch.empty(10, 64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    weight = torch.empty(64, dtype=torch.bfloat16, device="meta", requires_grad=True)
    log = StorageLog()
    log.adopt([x, weight])
    before = log.live_bytes
    with emulated_device("cuda"), log:
        out = F.rms_norm(x, (64,), weight)
        kept = _kept(out, log) - before
        out.sum().backward()
    assert kept == 2 * 10 * 64 + 4 * 10
    assert (x.grad is not None, weight.grad is not None) == (True, True)


def test_flash_backward_expands_shared_keys_in_its_own_memory() -> None:
    """FlashAttention-2, mha_bwd: fp32 query gradients, row sums, and key gradients for all query heads."""
    rule = CUDA_SCRATCH[torch.ops.aten._scaled_dot_product_flash_attention_backward.default]
    query, key, _ = _inputs(key_heads=2)
    accumulator = 4 * BATCH * HEADS * LENGTH * HEAD_DIM
    row_sums = 4 * BATCH * HEADS * LENGTH
    expanded = 2 * BATCH * HEADS * LENGTH * HEAD_DIM
    assert rule((query, query, key)) == [accumulator, row_sums, expanded, expanded]
    assert rule((query, query, query)) == [accumulator, row_sums]
