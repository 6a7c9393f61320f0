"""Storages come and go in the log exactly when PyTorch makes and frees them; byte counts are worked out by hand."""

from __future__ import annotations

import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from scaling.storage_log import EventKind, StorageLog


def changes(log: StorageLog, kind: EventKind) -> list[int]:
    return [event.change_bytes for event in log.events if event.kind is kind]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_storage_is_logged_when_made_and_when_freed(device: str) -> None:
    with StorageLog() as log:
        first = torch.zeros(256, device=device)
        view = first[3:]
        second = first + 1
        del first
        assert log.live_bytes == 2 * 1024  # the view keeps the first storage
        del view
        assert log.live_bytes == 1024
    del second
    assert log.live_bytes == 0
    assert changes(log, EventKind.ALLOCATE) == [1024, 1024]
    assert changes(log, EventKind.FREE) == [-1024, -1024]


def test_fake_tensors_are_logged() -> None:
    with FakeTensorMode(), StorageLog() as log:
        tensor = torch.zeros(64, dtype=torch.bfloat16)
        assert log.live_bytes == 128
        del tensor
    assert log.live_bytes == 0


def test_backward_and_optimizer_are_seen() -> None:
    linear = torch.nn.Linear(128, 64, bias=False)
    optimizer = torch.optim.AdamW(linear.parameters(), fused=True)
    weight_bytes = 4 * 128 * 64
    with StorageLog() as log:
        log.adopt(linear.parameters())
        log.phase = "forward"
        loss = linear(torch.ones(2, 128)).sum()
        log.phase = "backward"
        loss.backward()
        log.phase = "step"
        optimizer.step()
    assert linear.weight.grad is not None
    gradient = log.number(linear.weight.grad)
    assert gradient is not None
    birth = log.events[log.storages[gradient].event]
    assert (birth.phase, birth.change_bytes) == ("backward", weight_bytes)
    states = [
        event.change_bytes for event in log.events if event.phase == "step" and event.change_bytes == weight_bytes
    ]
    assert len(states) == 2  # momentum and variance; the fused kernel makes no copies


def test_foreach_adamw_makes_a_temporary_copy_of_the_parameters() -> None:
    linear = torch.nn.Linear(128, 64, bias=False)
    optimizer = torch.optim.AdamW(linear.parameters(), foreach=True)
    linear(torch.ones(2, 128)).sum().backward()
    optimizer.step()
    with StorageLog() as log:
        log.adopt([linear.weight])
        optimizer.step()
    made = [event.change_bytes for event in log.events if event.kind is EventKind.ALLOCATE and event.op != "adopt"]
    assert made.count(4 * 128 * 64) >= 1


def test_resize_without_an_operator_is_logged() -> None:
    with StorageLog() as log:
        tensor = torch.zeros(256)
        tensor.untyped_storage().resize_(0)
        assert log.live_bytes == 0
        tensor.untyped_storage().resize_(512)
        assert log.live_bytes == 512
        tensor.resize_(1024)
        assert log.live_bytes == 4096
    assert changes(log, EventKind.RESIZE) == [-1024, 512, 3584]
    assert "resize_" not in vars(torch.UntypedStorage)


def test_resize_is_seen_by_every_log_that_is_entered() -> None:
    tensor = torch.zeros(256)
    with StorageLog() as outer, StorageLog() as inner:
        outer.adopt([tensor])
        inner.adopt([tensor])
        tensor.untyped_storage().resize_(0)
    assert (outer.live_bytes, inner.live_bytes) == (0, 0)


def test_storage_from_before_is_logged_once_an_operator_reads_it() -> None:
    before = torch.zeros(256)
    with StorageLog() as log:
        total = before.sum()
    assert next(event.op for event in log.events) == "adopt"
    assert log.live_bytes == 1024 + total.element_size()


def test_tied_weights_count_once() -> None:
    embedding, head = torch.nn.Embedding(32, 16), torch.nn.Linear(16, 32, bias=False)
    head.weight = embedding.weight
    log = StorageLog()
    assert len(log.adopt([*embedding.parameters(), *head.parameters()])) == 1
    assert log.live_bytes == 4 * 32 * 16


def test_storage_freed_by_the_garbage_collector_is_logged() -> None:
    with StorageLog() as log:
        cycle: list[object] = [torch.zeros(256)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert log.live_bytes == 0


def test_close_keeps_the_log_as_it_is() -> None:
    with StorageLog() as log:
        tensor = torch.zeros(256)
    log.close()
    del tensor
    assert log.live_bytes == 1024
    assert changes(log, EventKind.FREE) == []


def test_scratch_of_a_kernel_is_allocated_after_its_result_and_freed_at_once() -> None:
    log = StorageLog(scratch={torch.ops.aten.mm.default: lambda args: [args[0].numel() * 4]})
    left, right = torch.zeros(8, 4, device="meta"), torch.zeros(4, 2, device="meta")
    with log:
        result = left @ right
    assert [event.change_bytes for event in log.events[2:]] == [result.numel() * 4, 8 * 4 * 4, -8 * 4 * 4]


def test_item_without_data_answers_what_was_asked_for() -> None:
    with StorageLog(scalar_answers={torch.bool: True}):
        assert torch.zeros(1, dtype=torch.bool, device="meta").all().item() is True
        assert torch.zeros(1, dtype=torch.float32, device="meta").item() == 0


def test_wrapper_subclass_counts_its_inner_tensor_only() -> None:
    class Wrapper(torch.Tensor):
        """Shows 1000 numbers and holds 10, as a sharded tensor on 100 ranks does."""

        inner: torch.Tensor

        @staticmethod
        def __new__(cls, inner: torch.Tensor) -> Wrapper:
            wrapper: Wrapper = torch.Tensor._make_wrapper_subclass(cls, (1000,), dtype=inner.dtype)
            wrapper.inner = inner
            return wrapper

        def __tensor_flatten__(self) -> tuple[list[str], None]:
            return ["inner"], None

        @staticmethod
        def __tensor_unflatten__(inner, meta, size, stride):  # type: ignore[no-untyped-def]
            return Wrapper(inner["inner"])

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            inner = [arg.inner if isinstance(arg, Wrapper) else arg for arg in args]
            return Wrapper(func(*inner, **(kwargs or {})))

    wrapped = Wrapper(torch.zeros(10))
    with StorageLog() as log:
        log.adopt([wrapped])
        assert log.live_bytes == 40
        doubled = wrapped * 2
    assert log.live_bytes == 80
    assert type(doubled) is Wrapper
