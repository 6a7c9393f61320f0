"""What TensorFlow's allocators have held."""

from __future__ import annotations

import tensorflow as tf


def peak_bytes(strategy: tf.distribute.Strategy) -> int | None:
    """Return the most live bytes of the fullest replica so far: of its GPU, or an even share of what all have on a CPU.

    None on CPUs whose memory is not counted, see `scaling.tensorflow_extra.count_cpu_memory`.
    """
    devices = [device for device in strategy.extended.worker_devices if "GPU:" in device]
    peaks = [_peak(device.partition("/device:")[2]) for device in devices]
    return max(peaks) if peaks else _peak("CPU:0") // strategy.num_replicas_in_sync or None


def _peak(device: str) -> int:
    return int(tf.config.experimental.get_memory_info(device)["peak"])
