"""CUDA_VISIBLE_DEVICES: devices that it hides, and who passes it over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from scaling.doctor.asked import Needs
from scaling.doctor.findings import Finding, error_if, note, warning
from scaling.doctor.nvidia import Driver

VARIABLE = "CUDA_VISIBLE_DEVICES"


def findings(environ: Mapping[str, str], driver: Driver | None, plan: Needs | None) -> Iterator[Finding]:
    """Yield what the variable does that was hardly meant."""
    gpus = driver.gpus if driver else ()
    text = environ.get(VARIABLE)
    if text is None or (not gpus and plan is None):
        return
    on_gpus = plan is not None and plan.on_gpus
    named = [each.strip() for each in text.split(",") if each.strip()]
    numbers = [int(each) for each in named if each.isdecimal()]
    if not named or named[0].startswith("-"):
        if gpus or on_gpus:
            yield error_if(on_gpus, f"{VARIABLE}={text!r} hides every GPU", f"unset {VARIABLE}")
        return
    if gpus and (beyond := [each for each in numbers if each >= len(gpus)]):
        yield error_if(
            on_gpus,
            f"{VARIABLE}={text} names device {beyond[0]}, and the driver has {len(gpus)}, from 0: CUDA takes those "
            f"before it only",
            f"export {VARIABLE}={','.join(map(str, range(len(gpus))))}",
        )
    if len(set(named)) < len(named):
        yield error_if(on_gpus, f"{VARIABLE}={text} names a device twice", f"unset {VARIABLE}, or name each once")
    if on_gpus and numbers != list(range(len(numbers))):
        # Its runner deletes the variable where --num_gpus is given (deepspeed 0.19.8, launcher/runner.py).
        yield note(
            f"{VARIABLE}={text}: deepspeed --num_gpus passes it over and takes the first devices",
            f"scaling launch, accelerate launch or torchrun; or deepspeed --include localhost:{text}",
        )
    if len({each.name for each in gpus}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        yield warning(
            f"the GPUs differ, and {VARIABLE}={text} counts the fastest first, unlike nvidia-smi",
            "export CUDA_DEVICE_ORDER=PCI_BUS_ID",
        )
