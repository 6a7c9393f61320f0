"""A calibration as text."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from strategies.plan import ActivationCheckpointing, StrategyName
from strategies.time.calibration import Calibration, EngineCost


def print_calibration(calibration: Calibration, *, path: Path, is_used: bool, console: Console) -> None:
    """Print what was measured, and what it is used for."""
    for line in lines(calibration):
        console.print(line, soft_wrap=True, highlight=False)
    use = (
        f"plan and estimate use it for device {calibration.device}"
        if is_used
        else "it is used where it lies in your data folder: run scaling calibrate without --out"
    )
    console.print(f"Wrote {path} in {calibration.seconds:.0f} s; {use}", soft_wrap=True, highlight=False)


def lines(calibration: Calibration) -> list[str]:
    """Return one line a kind of measurement."""
    machine = f" ({calibration.machine})" if calibration.device == "cpu" else ""
    found = [f"{calibration.device}{machine}, {calibration.ranks} ranks at work, torch {calibration.torch}"]
    for precision in dict.fromkeys(each.precision for each in calibration.products):
        rates = [each.flops_per_s / 1e9 for each in calibration.products if each.precision is precision]
        found.append(f"  products {precision}: {' / '.join(f'{rate:.0f}' for rate in rates)} GFLOP/s, small to large")
    copy, operator = calibration.copy_bytes_per_s / 1e9, calibration.operator_s * 1e6
    found.append(f"  memory: {copy:.1f} GB/s a rank; an operator: {operator:.1f} us")
    for kind in dict.fromkeys(each.kind for each in calibration.collectives):
        times = [(each.num_bytes, each.seconds) for each in calibration.collectives if each.kind is kind]
        size, seconds = times[-1]
        found.append(f"  {kind}: {times[0][1] * 1e6:.0f} us, {size / seconds / 1e9:.2f} GB/s")
    found.append(
        f"  AdamW: {calibration.adam_elements_per_s / 1e6:.0f} million parameters/s a rank, "
        f"{calibration.host_adam_elements_per_s / 1e6:.0f} on the host's CPUs"
    )
    found.append(
        f"  disk: write {calibration.disk_write_bytes_per_s / 1e9:.2f} GB/s, "
        f"read {calibration.disk_read_bytes_per_s / 1e9:.2f} GB/s"
    )
    return found + [_engine_line(each) for each in calibration.engines if _is_plain(each)]


def _is_plain(cost: EngineCost) -> bool:
    return cost.activation_checkpointing is ActivationCheckpointing.NONE


def _engine_line(cost: EngineCost) -> str:
    name = str(cost.strategy)
    name += "" if cost.reshard_after_forward else ", weights kept"
    name += "" if cost.sync_each_batch else ", reduced once"
    hooks = f"{cost.micro_batch_s_per_unit * 1e6:.0f} us a {_unit(cost.strategy)}"
    micro = f"{cost.micro_batch_s * 1e3:.1f} ms, {hooks}"
    step = f"{cost.step_s * 1e3:.1f} ms, {cost.step_s_per_tensor * 1e6:.0f} us a tensor"
    return (
        f"  {name}: a micro batch {micro} and {cost.micro_batch_s_per_param * 1e9:.1f} ns a parameter, "
        f"a step {step} and {cost.step_s_per_param * 1e9:.1f} ns a parameter"
    )


def _unit(strategy: StrategyName) -> str:
    """Return the name of what `strategies.time.calibrated.num_units` counts."""
    return {StrategyName.FSDP2: "block", StrategyName.ZERO3: "module"}.get(strategy, "tensor")
