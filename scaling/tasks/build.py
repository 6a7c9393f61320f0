"""A task by its name, or by what a model is made for."""

from __future__ import annotations

from scaling.errors import ConfigError
from scaling.tasks.base import Task
from scaling.tasks.classification import Classification
from scaling.tasks.contrastive import Contrastive
from scaling.tasks.language import CausalLm, MaskedLm
from scaling.tasks.model_loss import MeanOver, ModelLoss
from scaling.train_config import TaskName
from strategies.job import LossImplementation
from strategies.model_spec import TaskKind

_MEANS = {
    TaskKind.CAUSAL_LM: MeanOver.NEXT_TOKENS,
    TaskKind.MASKED_LM: MeanOver.LABELS,
    TaskKind.SEQUENCE_CLASSIFICATION: MeanOver.SAMPLES,
    TaskKind.IMAGE_CLASSIFICATION: MeanOver.SAMPLES,
}
"""Of the losses in transformers 5.24's forward, loss/loss_utils.py."""


def build_task(
    name: TaskName,
    kind: TaskKind,
    *,
    loss: LossImplementation = LossImplementation.STANDARD,
    label_smoothing: float = 0.0,
) -> Task:
    """Return the task ``name`` for a model that is made for ``kind``.

    Raises:
        ConfigError: the model is made for something else, or a setting has no effect on the task's loss.
    """
    if name is TaskName.HF_LOSS:
        return _model_loss(kind, loss=loss, label_smoothing=label_smoothing)
    if name is not TaskName.AUTO and name != kind.value:
        raise ConfigError(
            f"task={name}, but the plan's model is made for {kind}; name a class for {name} in the config.json's "
            f"architectures and plan again"
        )
    if loss is LossImplementation.FUSED and label_smoothing:
        raise ConfigError(f"label_smoothing={label_smoothing} has no effect with loss=fused; plan with --loss standard")
    match kind:
        case TaskKind.CAUSAL_LM:
            return CausalLm(loss=loss, label_smoothing=label_smoothing)
        case TaskKind.MASKED_LM:
            return MaskedLm(loss=loss, label_smoothing=label_smoothing)
        case TaskKind.CONTRASTIVE:
            return Contrastive(label_smoothing=label_smoothing)
        case TaskKind.SEQUENCE_CLASSIFICATION | TaskKind.IMAGE_CLASSIFICATION:
            return Classification(label_smoothing=label_smoothing)
    raise ConfigError(f"task={kind} is not trained here; known are {', '.join(TaskName)}")


def _model_loss(kind: TaskKind, *, loss: LossImplementation, label_smoothing: float) -> Task:
    """Return the model's own loss; it can be neither smoothed nor computed otherwise."""
    if label_smoothing or loss is not LossImplementation.STANDARD:
        raise ConfigError(
            f"task=hf-loss takes the model's loss as it is: label_smoothing={label_smoothing} and loss={loss} have no "
            f"effect on it; leave them out"
        )
    if kind not in _MEANS:
        raise ConfigError(f"task=hf-loss is not known for models made for {kind}; use task=auto")
    return ModelLoss(mean_over=_MEANS[kind])
