"""From the plan's model to an `nn.Module` with its first weights, equal on every rank and under every strategy."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

from scaling.adapters import choose_trained
from scaling.auto_classes import AUTO_CLASSES, TRAINED
from scaling.check_plan import check_num_params
from scaling.errors import ModelError, kind_and_line, one_line
from scaling.fused_loss import compute_loss_fused
from scaling.recompute import checkpoint_library_blocks
from scaling.scalars import widen_scalars
from scaling.train_config import Init
from strategies.architectures import ARCHITECTURES
from strategies.decision import Decision
from strategies.job import LossImplementation, Precision
from strategies.load_model import ResolvedModel
from strategies.model_spec import TaskKind
from strategies.plan import ActivationCheckpointing

_TRAINED = ", ".join(TRAINED)
logger = logging.getLogger(__name__)
DTYPES = {
    Precision.FP32: torch.float32,
    Precision.FP16: torch.float16,
    Precision.BF16: torch.bfloat16,
    Precision.FP16_AUTOCAST: torch.float32,
    Precision.BF16_AUTOCAST: torch.float32,
    Precision.BF16_PURE: torch.bfloat16,
}
"""Of the weights as they are built."""
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialWeights:
    """Where the first weights come from, settled."""

    folder: Path | None
    """Holds pretrained weights; None for random ones."""

    def __str__(self) -> str:
        return f"pretrained weights from {self.folder}" if self.folder else "random weights"


def choose_weights(resolved: ResolvedModel, *, init: Init) -> InitialWeights:
    """Return where the weights of ``resolved`` come from under ``init``.

    Raises:
        ModelError: pretrained weights are asked for and there are none.
    """
    folder = resolved.folder
    has_weights = folder is not None and any((folder / name).is_file() for name in WEIGHT_FILES)
    if init is Init.PRETRAINED and not has_weights:
        place = f"folder {folder}" if folder else resolved.origin
        raise ModelError(
            f"init=pretrained, but model {resolved.name} ({place}) comes without weights "
            f"({', '.join(WEIGHT_FILES)}); give a folder that holds them, or init=random"
        )
    return InitialWeights(folder=folder if has_weights and init is not Init.RANDOM else None)


def build_config(resolved: ResolvedModel) -> Any:
    """Return the transformers configuration object.

    Raises:
        ModelError: it is made for no task that is trained here, or training it would mean another loss.
    """
    model_type = str(resolved.config.get("model_type"))
    if model_type not in ARCHITECTURES and model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ModelError(
            f"model {resolved.name} has model_type={model_type!r}, which transformers {transformers.__version__} does "
            f"not build as a causal language model, nor as any other that is trained here ({_TRAINED})"
        )
    try:
        config = transformers.AutoConfig.for_model(**_without_code(resolved.config))
    except (TypeError, ValueError, LookupError, AttributeError, StrictDataclassError) as error:
        raise ModelError(
            f"model {resolved.name}: transformers refuses its config: {_reason(error)}; correct it"
        ) from error
    text_config, kind = config.get_text_config(), kind_of(config)
    if kind not in TRAINED:
        raise ModelError(f"model {resolved.name} is made for task={kind}; only these are trained here: {_TRAINED}")
    is_causal = kind is TaskKind.CAUSAL_LM
    if is_causal and model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(text_config, "is_decoder", True):
        raise ModelError(
            f"model {resolved.name} ({model_type}) sees the tokens it is to predict (is_decoder=False), so it is no "
            f"causal language model; set is_decoder=true in its config.json to train it as one, or name a class for "
            f"masked language modelling in its architectures"
        )
    if getattr(text_config, "output_router_logits", False):
        raise ModelError(
            f"model {resolved.name} has output_router_logits=True: its router loss is a mean over one micro batch, so "
            f"training would depend on how batches are cut; set output_router_logits=false in its config.json"
        )
    return config


def kind_of(config: Any) -> TaskKind:
    """Return what a model of this transformers configuration is made for, by the class that its config.json names."""
    architecture = ARCHITECTURES.get(config.model_type)
    if architecture is None:
        return TaskKind.CAUSAL_LM
    kinds = architecture.classes
    return kinds.get((config.architectures or [""])[0], next(iter(kinds.values())))


def name_labels(config: Any, names: Sequence[str]) -> None:
    """Give the classes of a classifier the names that the data have for them, where the config has none of its own."""
    has_own = set(config.id2label.values()) != {f"LABEL_{number}" for number in range(config.num_labels)}
    if len(names) == config.num_labels and not has_own:
        config.id2label = dict(enumerate(names))
        config.label2id = {name: number for number, name in enumerate(names)}


def build_model(config: Any, weights: InitialWeights, *, decision: Decision, seed: int) -> torch.nn.Module:
    """Return the model on the CPU in the plan's weight format, ready for an engine.

    The same seed gives the same random weights in every process, whatever the strategy and the number of ranks.

    Raises:
        ModelError: transformers cannot build it, or it has another number of parameters than was planned for.
    """
    options = {"dtype": DTYPES[decision.job.precision], "attn_implementation": "sdpa"}
    torch.manual_seed(seed)
    try:
        if weights.folder:
            model = _load(weights.folder, config, options)
        else:
            model = auto_class(config).from_config(config, **options)
    except (ModelError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a value that the model's code does not know: KeyError, AttributeError, anything
        raise ModelError(f"model {decision.model} cannot be built: {_reason(error)}; correct its config") from error
    check_num_params(decision, sum(parameter.numel() for parameter in model.parameters()))
    widen_scalars(model)
    choose_trained(model, decision.job)
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = False  # keys and values of earlier tokens serve generation only
    if decision.plan.activation_checkpointing is not ActivationCheckpointing.NONE:
        _checkpoint_activations(model, decision)
    if decision.job.loss is LossImplementation.FUSED:
        compute_loss_fused(model, precision=decision.job.precision)
    in_training: torch.nn.Module = model.train()
    return in_training


def _load(folder: Path, config: Any, options: dict[str, Any]) -> Any:
    """Return the model with the weights in ``folder``; a tensor that is missing there would start random, unsaid."""
    model, report = auto_class(config).from_pretrained(folder, config=config, output_loading_info=True, **options)
    new = {name for name in report["missing_keys"] if _is_new_head(name, model, config)}
    if new:
        logger.warning("the weights in %s lack %s, which start random: a new head", folder, ", ".join(sorted(new)))
    if absent := sorted(report["missing_keys"] - new) + sorted(str(key) for key in report["mismatched_keys"]):
        raise ModelError(
            f"the weights in {folder} lack {', '.join(absent[:3])} ({len(absent)} tensors in all); "
            f"give a folder with the whole model, or init=random"
        )
    return model


def auto_class(config: Any) -> Any:
    """Return the class of transformers that builds and opens models of this configuration."""
    return getattr(transformers, AUTO_CLASSES[kind_of(config)])


def _is_new_head(name: str, model: Any, config: Any) -> bool:
    """Whether a missing tensor is the head of a classifier, which is trained anew for the classes of the data."""
    if kind_of(config) not in (TaskKind.SEQUENCE_CLASSIFICATION, TaskKind.IMAGE_CLASSIFICATION):
        return False
    return not name.startswith(f"{model.base_model_prefix}.") or ".pooler." in name


def _checkpoint_activations(model: Any, decision: Decision) -> None:
    plan = decision.plan
    selective = plan.activation_checkpointing is ActivationCheckpointing.SELECTIVE
    try:
        checkpoint_library_blocks(model, selective=selective, every=plan.checkpoint_every)
    except ValueError as error:
        raise ModelError(
            f"activation_checkpointing={plan.activation_checkpointing}, but model {decision.model} does not support "
            f"it: {_reason(error)}; plan with --activation-checkpointing none"
        ) from error


def _without_code(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without the entries that name Python files to run: only the library's own code is used."""
    return {name: value for name, value in config.items() if name not in ("auto_map", "trust_remote_code")}


def _reason(error: Exception) -> str:
    """Return the message; of a failed look-up, whose message is the key alone, its kind too."""
    return kind_and_line(error) if isinstance(error, LookupError | AttributeError) else one_line(error)
