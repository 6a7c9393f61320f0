"""A floor under the bytes of a plan, found without laying out its states: most plans that cannot fit fail here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from strategies.adapt import as_trained
from strategies.cluster import Cluster
from strategies.estimate import CauseBytes, Phase, PhaseBytes
from strategies.fsdp2_groups import formats_of
from strategies.job import LossImplementation
from strategies.memory.activations import activation_levels
from strategies.memory.model_states import FP32_BYTES
from strategies.memory.moments import setting_of
from strategies.memory.stretches import Stretch
from strategies.model_spec import ModelSpec
from strategies.plan import OffloadDevice, StrategyName
from strategies.search import Variant


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a rank holds at least at the end of a forward: its weights, and what blocks keep."""

    parameters: int
    gathered_parameters: int
    kept: int
    """With one sample."""
    kept_per_sample: int

    def num_bytes(self, micro_batch_size: int) -> int:
        """Return the floor under what torch allocates with so many samples."""
        kept = self.kept + (micro_batch_size - 1) * self.kept_per_sample
        return self.parameters + self.gathered_parameters + kept

    def moment(self, micro_batch_size: int) -> PhaseBytes:
        """Return the floor by cause."""
        causes = CauseBytes(
            parameters=self.parameters,
            gathered_parameters=self.gathered_parameters,
            activations=self.kept + (micro_batch_size - 1) * self.kept_per_sample,
        )
        return PhaseBytes(phase=Phase.FORWARD, causes=causes)


def lower_bound(spec: ModelSpec, variant: Variant, *, cluster: Cluster) -> Bound:
    """Return the floor under every plan of a variant.

    Raises:
        SpecError: there are no forms for the model's activations.
    """
    spec = as_trained(spec, variant.job)
    parameters, gathered = _weights(spec, variant, cluster.gpus)
    # What blocks keep does not depend on the loss, and is affine in the samples where that is not the fused one.
    job = replace(variant.job, loss=LossImplementation.STANDARD)
    setting = setting_of(job, variant.plan(1, gpus=cluster.gpus), on_cpu=cluster.gpu.is_cpu)
    (kept,) = activation_levels(spec, setting, micro_batch_size=1)[Stretch.KEPT]
    return Bound(
        parameters=parameters, gathered_parameters=gathered, kept=kept.total, kept_per_sample=kept.total_per_sample
    )


def _weights(spec: ModelSpec, variant: Variant, gpus: int) -> tuple[int, int]:
    """Return the bytes of the weights that rest on a rank, and of those that are gathered when forward ends."""
    params, precision = spec.num_params, variant.job.precision
    if variant.strategy is StrategyName.MIRRORED:
        return FP32_BYTES * params, 0
    if variant.strategy in (StrategyName.DDP, StrategyName.ZERO1, StrategyName.ZERO2):
        return precision.weight_bytes * params, 0
    is_away = variant.offload_param is not OffloadDevice.NONE
    if variant.strategy is StrategyName.ZERO3:
        return 0 if is_away else precision.weight_bytes * params // gpus, 0
    formats = formats_of(precision)
    gathered = 0 if variant.reshard_after_forward else formats.compute * params
    trained = spec.num_trained_params
    resting = formats.shard * trained + formats.frozen * (params - trained)
    return 0 if is_away else resting // gpus, gathered
