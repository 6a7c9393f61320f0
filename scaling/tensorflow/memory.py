"""What TensorFlow's allocators have held."""

from __future__ import annotations

import tensorflow as tf


def peak_bytes(strategy: tf.distribute.Strategy) -> int | None:
    """Return the most live bytes of the fullest replica's GPU so far; None on CPUs, where nothing counts them."""
    devices = [device for device in strategy.extended.worker_devices if "GPU:" in device]
    peaks = [tf.config.experimental.get_memory_info(device.partition("/device:")[2])["peak"] for device in devices]
    return max(peaks) if peaks else None
