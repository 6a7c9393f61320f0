"""The instant level: states, activations and logits summed per moment; a phase is its highest moment."""

from __future__ import annotations

from strategies.base import StateLayout
from strategies.cluster import Cluster
from strategies.errors import JobError, PlanError
from strategies.estimate import CauseBytes, Estimate, Level, MemoryProfile, Phase, PhaseBytes
from strategies.job import Attention, Job, LossImplementation, OptimizerName, Precision
from strategies.memory.activations import (
    backward_in_flight,
    kept_activations,
    outer_activations,
    recomputed_block,
    require_closed_form,
)
from strategies.memory.logits import standard_loss
from strategies.memory.reserved import context_bytes, reserved_bytes
from strategies.model_spec import GroupRole, ModelSpec
from strategies.plan import ActivationCheckpointing, OffloadDevice, Plan, StrategyName
from strategies.registry import STRATEGIES

WITHOUT_CLOSED_FORM = frozenset(
    {
        StrategyName.FSDP2,
        ActivationCheckpointing.SELECTIVE,
        OffloadDevice.CPU,
        OffloadDevice.NVME,
        Precision.FP16_AUTOCAST,
        Precision.BF16_AUTOCAST,
        Precision.BF16_PURE,
        OptimizerName.ADAMW_8BIT,
        OptimizerName.SGD,
        OptimizerName.LION,
        OptimizerName.ADAFACTOR,
        Attention.EAGER,
        LossImplementation.CHUNKED,
        LossImplementation.FUSED,
    }
)


def predict(spec: ModelSpec, *, cluster: Cluster, job: Job, plan: Plan) -> Estimate:
    """Return the estimate of one plan, for the rank that holds most, in the steady state.

    Raises:
        JobError: the sequence is longer than the model's positions.
        SpecError: the family's activations have no closed form.
    """
    _require_closed_form(job, plan)
    require_closed_form(spec)
    _check_seq_len(spec, job)
    layout = STRATEGIES[plan.strategy].layout(spec, job=job, plan=plan, data_parallel_size=cluster.gpus)
    memory = MemoryProfile(
        phases=(
            PhaseBytes(phase=Phase.INITIALISE, causes=layout.initialise),
            *_step_phases(spec, layout, cluster=cluster, job=job, plan=plan),
        )
    )
    return Estimate(
        level=Level.INSTANT,
        memory=memory,
        peak_reserved_bytes=reserved_bytes(memory.peak_bytes, cluster=cluster),
        context_bytes=context_bytes(cluster),
    )


def _require_closed_form(job: Job, plan: Plan) -> None:
    """Refuse settings whose bytes are not in the formulas yet."""
    settings = (
        plan.strategy,
        plan.activation_checkpointing,
        plan.offload_optimizer,
        plan.offload_param,
        job.precision,
        job.optimizer,
        job.attention,
        job.loss,
    )
    if unknown := [setting for setting in settings if setting in WITHOUT_CLOSED_FORM]:
        raise PlanError(f"{', '.join(unknown)} cannot be predicted yet; choose another setting")


def _check_seq_len(spec: ModelSpec, job: Job) -> None:
    if spec.max_seq_len is not None and job.seq_len > spec.max_seq_len:
        raise JobError(
            f"seq_len={job.seq_len} is longer than the {spec.max_seq_len} positions of model {spec.name}; "
            f"give seq_len={spec.max_seq_len} or less"
        )


def _step_phases(
    spec: ModelSpec, layout: StateLayout, *, cluster: Cluster, job: Job, plan: Plan
) -> tuple[PhaseBytes, ...]:
    on_cpu, precision = cluster.gpu.is_cpu, job.precision
    num_tokens = plan.micro_batch_size * job.seq_len
    kept = kept_activations(
        spec,
        num_tokens=num_tokens,
        precision=precision,
        activation_checkpointing=plan.activation_checkpointing,
        on_cpu=on_cpu,
    )
    logits = standard_loss(spec, num_tokens=num_tokens, precision=precision)
    outer = outer_activations(spec, num_tokens=num_tokens, seq_len=job.seq_len, precision=precision, on_cpu=on_cpu)
    forward = layout.forward + CauseBytes(activations=kept + outer, logits=logits.forward_peak)
    left = _left_at_first_reduction(spec, kept=kept, plan=plan)
    backward = max(
        layout.backward_start + CauseBytes(activations=kept + outer, logits=logits.backward_peak),
        layout.first_gradient + CauseBytes(activations=kept + outer, logits=logits.head_backward),
        layout.first_reduction + CauseBytes(activations=left),
        layout.backward_end + _first_block(spec, kept=kept, num_tokens=num_tokens, job=job, plan=plan, on_cpu=on_cpu),
        key=lambda causes: causes.total_bytes,
    )
    evaluation = layout.evaluation + CauseBytes(activations=outer, logits=logits.forward_peak)
    moments = {
        Phase.FORWARD: forward,
        Phase.BACKWARD: backward,
        Phase.OPTIMIZER_STEP: layout.optimizer_step,
        Phase.EVALUATION: evaluation,
    }
    return tuple(PhaseBytes(phase=phase, causes=layout.resident + extra) for phase, extra in moments.items())


def _left_at_first_reduction(spec: ModelSpec, *, kept: int, plan: Plan) -> int:
    """Return the activations still kept when the blocks done have filled one reduce bucket with gradients."""
    in_blocks = sum(group.num_params for group in spec.groups if group.role is GroupRole.BLOCK)
    done = min(1.0, plan.buckets.reduce_bucket_size / in_blocks) if in_blocks else 1.0
    return round(kept * (1 - done))


def _first_block(spec: ModelSpec, *, kept: int, num_tokens: int, job: Job, plan: Plan, on_cpu: bool) -> CauseBytes:
    """Return the activations when backward is at the first block: one block left, and its gradients in flight."""
    if plan.activation_checkpointing is ActivationCheckpointing.FULL:
        block = recomputed_block(spec, num_tokens=num_tokens, precision=job.precision, on_cpu=on_cpu)
        return CauseBytes(recomputed_block=block, activations=kept // spec.num_layers)
    in_flight = backward_in_flight(spec, num_tokens=num_tokens, precision=job.precision)
    return CauseBytes(activations=kept // spec.num_layers + in_flight)
