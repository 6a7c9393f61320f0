"""PYTORCH_ALLOC_CONF as torch 2.13 parses it: a slip in it stops the first allocation on a GPU, or is passed over.

Source: torch 2.13, include/c10/core/AllocatorConfig.h and include/c10/cuda/CUDAAllocatorConfig.h.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from scaling.doctor.findings import Finding, error_if, warning

NAMES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""The first that is set is read; the second is the name that it had before."""
BOOLEANS = (
    *("expandable_segments", "pinned_use_background_threads", "release_lock_on_cudamalloc"),
    *("pinned_use_cuda_host_register", "graph_capture_record_stream_reuse", "pinned_free_catch_all"),
    "throw_on_cudamalloc_oom",
)
NUMBERS = (
    *("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb", "pinned_max_round_threshold_mb"),
    *("pinned_max_cached_size_mb", "pinned_reserve_segment_size_mb", "pinned_num_register_threads"),
)
FRACTIONS = ("garbage_collection_threshold", "per_process_memory_fraction")
OTHERS = ("backend", "roundup_power2_divisions")
KEYS = (*BOOLEANS, *NUMBERS, *FRACTIONS, *OTHERS)
SMALLEST = {"max_split_size_mb": 20, "max_non_split_rounding_mb": 20, "large_segment_size_mb": 11}
"""In MiB; torch refuses less."""


def findings(environ: Mapping[str, str], *, on_gpus: bool) -> Iterator[Finding]:
    """Yield what is wrong with the variable; an error for a plan on GPUs."""
    given = [name for name in NAMES if environ.get(name)]
    for name in given[:1]:
        for problem, right in problems(environ[name]):
            fix = f"export {name}={right}" if right else f"unset {name}"
            yield error_if(on_gpus, f"{name}={environ[name]}: {problem}", fix)
    if len(given) > 1 and environ[given[0]] != environ[given[1]]:
        yield warning(
            f"{given[0]}={environ[given[0]]} and {given[1]}={environ[given[1]]} are both set: only the first is read",
            f"unset {given[1]}",
        )


def problems(text: str) -> Iterator[tuple[str, str]]:
    """Yield what torch refuses in ``text``, each with the whole text put right, or empty where that is not known."""
    for key, value in settings(text):
        if key not in KEYS:
            near = difflib.get_close_matches(key, KEYS, n=1, cutoff=0.6)
            yield (
                f"{key!r} is no setting" + (f"; the nearest is {near[0]}" if near else ""),
                _replaced(text, key, near[0]) if near else "",
            )
        elif key in BOOLEANS and value not in ("True", "False"):
            is_word = value.capitalize() in ("True", "False")
            yield f"{key} takes True or False, not {value!r}", _replaced(text, value, value.capitalize()) * is_word
        elif key in NUMBERS and not value.isdecimal():
            yield f"{key} takes a whole number of MiB, not {value!r}", ""
        elif key in NUMBERS and int(value) < SMALLEST.get(key, 0):
            yield f"{key} takes {SMALLEST[key]} at least, not {value}", ""
        elif key in FRACTIONS and not _is_fraction(value):
            yield f"{key} takes a number between 0 and 1, not {value!r}", ""


def settings(text: str) -> Iterator[tuple[str, str]]:
    """Yield (key, value) as they stand; the value is empty where none is given."""
    for part in re.split(r",(?![^\[]*\])", re.sub(r"\s", "", text)):
        if part:
            key, _, value = part.partition(":")
            yield key, value


def _replaced(text: str, old: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(old)}\b", new, text, count=1) if old else ""


def _is_fraction(text: str) -> bool:
    try:
        return 0 < float(text) < 1
    except ValueError:
        return False
