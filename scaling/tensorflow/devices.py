"""The devices that replicas run on: GPUs where there are any, else parts of the CPU."""

from __future__ import annotations

import tensorflow as tf

from scaling.engines.quiet import without_line
from scaling.errors import EngineError

_made: dict[int, tf.distribute.MirroredStrategy] = {}


def mirrored_strategy(num_replicas: int) -> tf.distribute.MirroredStrategy:
    """Return the strategy over the first ``num_replicas`` GPUs, or over as many logical CPUs where there is no GPU.

    TensorFlow settles its devices at its first operation: make the strategy with the most replicas before that. The
    same one comes back when asked for again: TensorFlow 2.21 numbers the collectives of each from the same start, and
    takes those of a second for those of the first.

    Raises:
        EngineError: there are fewer GPUs, TensorFlow already runs with fewer logical CPUs, or with another strategy of
            several replicas.
    """
    if num_replicas not in _made:
        if earlier := [each for each in _made if min(each, num_replicas) > 1]:
            raise EngineError(
                f"num_replicas={num_replicas}, but this process has a strategy of {earlier[0]}; start a new process"
            )
        # fp32 is to be fp32, as it is to torch 2.13: TensorFlow 2.21 else computes products on GPUs with 10 bits of it.
        tf.config.experimental.enable_tensor_float_32_execution(False)
        _made[num_replicas] = tf.distribute.MirroredStrategy(_devices(num_replicas))
    return _made[num_replicas]


def _devices(num_replicas: int) -> list[str]:
    with without_line("failed call to cuInit"):  # an error to TensorFlow 2.21, on every machine without a GPU
        gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        _split_cpu(num_replicas)
        return [f"CPU:{index}" for index in range(num_replicas)]
    if len(gpus) < num_replicas:
        raise EngineError(f"the plan is for gpus={num_replicas}, but TensorFlow sees {len(gpus)}; plan with --gpus")
    _allocate_as_needed(gpus)
    return [f"GPU:{index}" for index in range(num_replicas)]


def _split_cpu(num_devices: int) -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    configured = tf.config.get_logical_device_configuration(cpu) or [tf.config.LogicalDeviceConfiguration()]
    if len(configured) >= num_devices:
        return
    try:
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    except RuntimeError as error:
        raise EngineError(
            f"num_replicas={num_devices}, but TensorFlow already runs with {len(configured)} logical CPUs in this "
            f"process; start a new one"
        ) from error


def _allocate_as_needed(gpus: list[tf.config.PhysicalDevice]) -> None:
    """Let TensorFlow take GPU memory when it needs it: by default it takes nearly all at its start."""
    for gpu in gpus:
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except RuntimeError:  # its devices run already: what was settled then stays
            return
