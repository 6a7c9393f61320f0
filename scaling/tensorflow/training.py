"""One run in TensorFlow: everything checked, then trained, saved and exported, with the files of a PyTorch run."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import transformers

from scaling.check_plan import check_batch, check_estimate, check_num_params
from scaling.disk import writing
from scaling.engines.optimizer import OptimizerSettings
from scaling.errors import ConfigError, LaunchError, TrainingError, one_line
from scaling.interrupt import RunStatus
from scaling.lr_scales import parse_lr_scales
from scaling.models import InitialWeights, build_config, build_model, choose_weights
from scaling.plan_file import read_plan
from scaling.recovery.stopped import Stopped
from scaling.run_folder import CONFIG_FILE, FINAL_FOLDER, SUMMARY_FILE, check_run_folder, open_run_folder
from scaling.tensorflow.mirrored import MirroredEngine, build_mirrored_engine
from scaling.tensorflow.saving import check_resume, continues
from scaling.tensorflow.trainer import Trainer
from scaling.tensorflow.weights import load_hugging_face, save_hugging_face
from scaling.train_config import AUTO, NONE, DryRun, NonFinite, OnSaveFailure, TaskName, TrainConfig
from scaling.training_data import TrainingData, open_training_data
from scaling.watching.loggers import check_loggers
from scaling.watching.run_records import record_training
from scaling.watching.summary import Summary, summarise
from scaling.watching.utilisation import Utilisation, utilisation_of
from strategies.cluster import Cluster
from strategies.decision import Decision
from strategies.emit.commands import TENSORFLOW_MODULE
from strategies.learning.run_record import RunRecord, record_of
from strategies.load_model import ResolvedModel, model_spec, resolve_model
from strategies.mirrored_limits import require_possible_plan
from strategies.plan import Framework
from strategies.serialize import to_json

logger = logging.getLogger(__name__)

WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "task": (TaskName.AUTO, TaskName.CAUSAL_LM),
    "label_smoothing": (0.0,),
    "streaming": (False,),
    "nonfinite": (NonFinite.STOP, NonFinite.SKIP),
    "keep_best": (0,),
    "save_async": (False,),
    "on_save_failure": (OnSaveFailure.STOP,),
    "dry_run": (DryRun.AUTO, DryRun.NEVER),
    "layer_stats_every": (0,),
    "profile_steps": (None,),
    "timeout_s": (next(field.default for field in dataclasses.fields(TrainConfig) if field.name == "timeout_s"),),
}
"""Settings of which a run in TensorFlow knows these values only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What is settled before the first tensor exists."""

    decision: Decision
    resolved: ResolvedModel
    model_config: Any
    weights: InitialWeights
    data: TrainingData
    utilisation: Utilisation | None
    record: RunRecord
    """What was predicted, before anything runs."""


def prepare(config: TrainConfig) -> Prepared:
    """Return everything that a run needs.

    Raises:
        ScalingError: plan, model, data, flags or out folder are wrong; nothing has been written yet.
    """
    decision = read_plan(config.plan)
    _require_tensorflow(decision)
    _refuse_without_effect(config)
    require_devices(decision.cluster)
    resolved = resolve_model(decision.model)
    spec = model_spec(resolved)
    require_possible_plan(spec, cluster=decision.cluster, job=decision.job, plan=decision.plan)
    check_batch(decision)
    check_num_params(decision, spec.num_params)
    check_estimate(decision, spec)
    check_loggers(config.loggers)
    check_resume(config)
    check_run_folder(
        config.out,
        plan=config.plan,
        overwrite=config.overwrite or config.resume == "auto",
        continues=continues(config),
    )
    model_config = build_config(resolved)
    resumed = continues(config) or config.resume not in (AUTO, NONE)
    return Prepared(
        decision=decision,
        resolved=resolved,
        model_config=model_config,
        weights=choose_weights(resolved, init=config.init),
        data=open_training_data(config, decision, model_config=model_config, show_progress=True),
        utilisation=utilisation_of(decision, spec),
        record=record_of(decision, spec, source="scaling.tensorflow.train", resumed=resumed),
    )


def _require_tensorflow(decision: Decision) -> None:
    strategy = decision.plan.strategy
    if strategy.framework is not Framework.TENSORFLOW:
        raise LaunchError(
            f"the plan's strategy is {strategy}, which is {strategy.framework}'s; start it as launch.txt beside the "
            f"plan says, or plan again with --framework tensorflow"
        )
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise LaunchError(
            f"WORLD_SIZE={ranks}: a launcher started this as one of several processes, but one drives all devices; "
            f"start it with python -m {TENSORFLOW_MODULE}"
        )


def require_devices(cluster: Cluster) -> None:
    """Let TensorFlow see the devices that the plan is for, and no others; call it before TensorFlow looks for any.

    Raises:
        LaunchError: the plan is for GPUs that TensorFlow does not see: it would train on the CPU without a word.
    """
    if cluster.gpu.is_cpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    num_seen = len(tf.config.list_physical_devices("GPU"))
    if num_seen < cluster.gpus:
        raise LaunchError(
            f"the plan is for {cluster.gpus} x gpu={cluster.gpu.name}, but TensorFlow sees {num_seen} GPUs here; where "
            f"there are more, pip install 'tensorflow[and-cuda]', else plan with --gpu cpu"
        )


def _refuse_without_effect(config: TrainConfig) -> None:
    wrong = [
        f"{name}={getattr(config, name)}"
        for name, known in WITHOUT_EFFECT.items()
        if getattr(config, name) not in known
    ]
    if wrong:
        raise ConfigError(f"{', '.join(wrong)} cannot be had in TensorFlow; leave it out, or train in PyTorch")


def run(prepared: Prepared, config: TrainConfig, *, status: RunStatus) -> Summary | Stopped:
    """Train, export, and return the summary; or, where a signal asked to stop, what was saved.

    Raises:
        ScalingError: the run cannot go on.
    """
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours is the one bar
    folder = open_run_folder(
        config.out,
        plan=config.plan,
        overwrite=config.overwrite or config.resume == "auto",
        continues=continues(config),
    )
    with folder, _telling_what_is_full(status):
        _write(config, CONFIG_FILE, json.dumps(dataclasses.asdict(config), indent=2, default=str))
        engine = _start_engine(prepared, config)
        trainer = Trainer(
            engine,
            prepared.data,
            config,
            decision=prepared.decision,
            utilisation=prepared.utilisation,
            status=status,
        )
        start = time.perf_counter()
        outcome = trainer.train()
        train_time_s = time.perf_counter() - start
        if isinstance(outcome, Stopped):
            return outcome
        final = config.out / FINAL_FOLDER
        save_hugging_face(engine.model, final, tokenizer=prepared.data.tokenizer)
        status.reached = f"after the last step; the model is in {final}, but {SUMMARY_FILE} was not written"
        summary = summarise(
            outcome,
            decision=prepared.decision,
            initial_weights=str(prepared.weights),
            measurement=None,
            train_time_s=train_time_s,
            final=final,
            data_hash=prepared.data.content_hash,
            utilisation=prepared.utilisation,
        )
        _write(config, SUMMARY_FILE, to_json(summary))
        record_training(prepared.record, summary)
    return summary


@contextmanager
def _telling_what_is_full(status: RunStatus) -> Iterator[None]:
    """Do what needs memory inside.

    Raises:
        TrainingError: a device has no memory left; steps are not repeated in smaller micro batches, as in PyTorch.
    """
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        raise TrainingError(
            f"out of memory {status.reached}: {one_line(error)}; plan again with a smaller --micro-batch-size or "
            f"--activation-checkpointing full"
        ) from error


def _write(config: TrainConfig, name: str, text: str) -> None:
    path = config.out / name
    with writing(path):
        path.write_text(text)


def _start_engine(prepared: Prepared, config: TrainConfig) -> MirroredEngine:
    """Return the engine with its first weights: random ones are those that PyTorch draws from the same seed."""
    decision, weights = prepared.decision, prepared.weights
    engine = build_mirrored_engine(
        prepared.resolved,
        decision=decision,
        settings=OptimizerSettings(weight_decay=config.weight_decay, lr_scales=parse_lr_scales(config.lr_scale)),
        seed=(config.seed + 1) % 2**63,  # of dropout
    )
    drawn = weights.folder or build_model(prepared.model_config, weights, decision=decision, seed=config.seed)
    load_hugging_face(engine.model, drawn)
    logger.info("%s: %s, %s parameters", decision.model, weights, f"{decision.num_params:,}")
    return engine
