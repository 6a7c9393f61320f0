"""ZeRO stage 3 as DeepSpeed lays it out: partitions of every tensor, gathers by module, gradients reduced at once.

Source: deepspeed 0.19.8, runtime/zero/stage3.py and partition_parameters.py; a name in parentheses is the function
followed.
"""

from __future__ import annotations

from functools import cache

from strategies.backward_states import that_may_peak
from strategies.base import BlockState, StateLayout, largest_trained_params
from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.memory.optimizer_states import flat_state_bytes, master_element_bytes, step_copy_bytes
from strategies.model_spec import ModelSpec
from strategies.parameter_order import parameter_order, tensor_sizes, tied_weight_elements
from strategies.plan import ActivationCheckpointing, Buckets, OffloadDevice, Plan
from strategies.units import ceil_div, round_up
from strategies.zero_depth import gathered_elements
from strategies.zero_gathered import Moment, Stage3Offload

NORM_BYTES = 8
"""Gradient norms are taken of a double-precision copy, tensor by tensor (get_grad_norm_direct)."""
SUB_GROUP_ELEMENTS = 1_000_000_000
"""Partitions are updated in parts of about this many elements (sub_group_size, its default)."""


def stage3_layout(spec: ModelSpec, *, job: Job, plan: Plan, data_parallel_size: int, on_cpu: bool) -> StateLayout:
    """Return the layout of stage 3."""
    is_checkpointed = plan.activation_checkpointing is not ActivationCheckpointing.NONE
    every = plan.checkpoint_every if is_checkpointed else 0
    offload = Stage3Offload(
        optimizer=plan.offload_optimizer is not OffloadDevice.NONE,
        parameters=plan.offload_param is not OffloadDevice.NONE,
        norm_elements=NORM_BYTES // job.precision.weight_bytes,
    )
    return _layout(spec, job, plan.buckets, every, data_parallel_size, offload, on_cpu)


@cache
def _layout(
    spec: ModelSpec,
    job: Job,
    buckets: Buckets,
    checkpoint_every: int,
    data_parallel_size: int,
    offload: Stage3Offload,
    on_cpu: bool,
) -> StateLayout:
    weight, master = job.precision.weight_bytes, master_element_bytes(job.precision)
    parts = sub_groups(spec, data_parallel_size)
    trained = sum(parts)
    # Frozen weights are sharded like all others.
    share = trained + sum(ceil_div(size, data_parallel_size) for size in frozen_sizes(spec))
    elements = gathered_elements(spec, data_parallel_size, buckets, checkpoint_every=checkpoint_every, offload=offload)
    bucket = weight * buckets.reduce_bucket_size
    # The gradient partition and the reduce bucket are made at initialisation and stay.
    made = CauseBytes(
        parameters=0 if offload.parameters else weight * share,
        gradients=0 if offload.optimizer else weight * trained,
        master_weights=0 if offload.optimizer else master * trained,
        communication_buckets=bucket,
    )
    state_bytes = sum(flat_state_bytes(job, part) for part in parts)
    states = CauseBytes(optimizer_states=0 if offload.optimizer else state_bytes)
    persistent = CauseBytes(gathered_parameters=weight * elements.persistent)
    largest = round_up(max(tensor_sizes(spec)), data_parallel_size)
    # A partition that rests on the host is copied to the device for its gather.
    one_tensor = CauseBytes(
        gathered_parameters=weight * largest,
        communication_buckets=weight * largest // data_parallel_size if offload.parameters else 0,
    )

    def at(moment: Moment) -> CauseBytes:
        return persistent + CauseBytes(
            gathered_parameters=weight * moment.gathered,
            gradients=weight * moment.gradients,
            communication_buckets=weight * moment.buckets,
        )

    return StateLayout(
        resident=made + states,
        initialise=_initialise(
            spec,
            made + one_tensor,
            parts=() if offload.optimizer else parts,
            widened=max(parts, default=0) if offload.optimizer and on_cpu and weight < master else 0,
            share=0 if offload.parameters else share,
            weight=weight,
            master=master,
            size=data_parallel_size,
            on_cpu=on_cpu,
        ),
        forward=at(elements.forward),
        forward_start=at(elements.forward_start),
        backward_start=at(elements.backward_start),
        first_gradient=at(elements.first_gradient),
        in_blocks=that_may_peak(
            BlockState(num_done=each.num_done, new_gradient=weight * each.new_gradient, causes=at(each.moment))
            for each in elements.in_blocks
        ),
        embedding_backward=at(elements.after_blocks),
        optimizer_step=persistent
        if offload.optimizer
        else _step(spec, job, parts=parts, persistent=persistent, size=data_parallel_size),
        evaluation=at(elements.evaluation),
        evaluation_start=at(elements.evaluation_start),
        save=max(
            at(elements.after_forward),
            persistent + one_tensor,
            key=lambda causes: causes.total_bytes,
        ),
    )


@cache
def sub_groups(spec: ModelSpec, data_parallel_size: int) -> tuple[int, ...]:
    """Return the elements of one rank's partitions that are updated together (_create_fp16_sub_groups)."""
    found = []
    for group in parameter_order(spec).groups:
        elements = 0
        for size in group.sizes:
            elements += ceil_div(size, data_parallel_size)
            if elements >= SUB_GROUP_ELEMENTS:
                found.append(elements)
                elements = 0
        if elements:
            found.append(elements)
    return tuple(found)


@cache
def frozen_sizes(spec: ModelSpec) -> tuple[int, ...]:
    """Return the elements of every weight that is not trained."""
    return tuple(tensor.num_params for tensor in spec.tensors() if not tensor.is_trained)


def _initialise(
    spec: ModelSpec,
    all_and_one: CauseBytes,
    *,
    parts: tuple[int, ...],
    widened: int,
    share: int,
    weight: int,
    master: int,
    size: int,
    on_cpu: bool,
) -> CauseBytes:
    """Return the highest moment: partitioning, making the fp32 partitions, or gathering each tensor once at the end.

    ``widened``: elements of a partition whose fp32 copy is made in the same memory although its optimizer is on the
    host: on a CPU nothing tells the copy, which nobody holds, from one on the device (docs/measuring.md).
    """
    sizes = tensor_sizes(spec)
    largest, masters = max(sizes), 0
    whole = sum(sizes) if on_cpu else largest
    moments = [
        CauseBytes(parameters=weight * (sum(sizes) + tied_weight_elements(spec)) if on_cpu else 0),
        # Tensor by tensor; the CPU has the model already.
        CauseBytes(parameters=weight * (whole + (ceil_div(sizes[0], size) if on_cpu else share))),
        all_and_one,
        # A buffer for all partitions, on the host (defragment), or an offloaded optimizer's widened copy.
        CauseBytes(parameters=weight * share, other=max(weight * share if on_cpu else 0, master * widened)),
        # Gradients of zeros for the largest part, to make the optimizer's states.
        CauseBytes(
            parameters=weight * share,
            master_weights=master * sum(parts),
            step_temporaries=master * max(parts, default=0),
        ),
    ]
    for part in parts:
        # Widened, and cloned (_create_fp32_partitions).
        widened = master * part if weight < master else 0
        moments.append(
            CauseBytes(parameters=weight * share, master_weights=master * (masters + part), step_temporaries=widened)
        )
        masters += part
    return max(moments, key=lambda causes: causes.total_bytes)


def _step(spec: ModelSpec, job: Job, *, parts: tuple[int, ...], persistent: CauseBytes, size: int) -> CauseBytes:
    """Return the highest moment: a norm, a part's gradients flattened and widened, its update, the last gather."""
    weight, master = job.precision.weight_bytes, master_element_bytes(job.precision)
    temporaries = [NORM_BYTES * ceil_div(largest_trained_params(spec), size)]
    for part in parts:
        widened = master * part if weight < master else 0
        temporaries.append(weight * part + widened)
        temporaries.append((widened or weight * part) + step_copy_bytes(job, part))
    return max(CauseBytes(step_temporaries=max(temporaries)), persistent, key=lambda causes: causes.total_bytes)
