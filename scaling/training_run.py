"""One training run: everything checked, then the processes meet, train, and leave a model behind."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from scaling.check_plan import check_estimate, check_num_params, check_plan
from scaling.device import choose_device
from scaling.disk import writing
from scaling.engines.base import Engine
from scaling.engines.build import build_engine
from scaling.engines.optimizer import OptimizerSettings
from scaling.export import export_engine, shell_of
from scaling.interrupt import RunStatus
from scaling.launch_env import LaunchEnvironment, join_process_group, leave_process_group
from scaling.lr_scales import parse_lr_scales
from scaling.memory_watch import MemoryWatch
from scaling.models import DTYPES, InitialWeights, build_config, build_model, choose_weights, name_labels
from scaling.plan_file import read_plan
from scaling.ranks import together
from scaling.recovery.dry_run import beside_prediction, dry_run, is_rehearsed
from scaling.recovery.guard import GROUP_PATIENCE_S, RunGuard
from scaling.recovery.stopped import Stopped
from scaling.run_folder import (
    CONFIG_FILE,
    FINAL_FOLDER,
    METRICS_FILE,
    PROFILE_FOLDER,
    SUMMARY_FILE,
    check_run_folder,
    open_run_folder,
)
from scaling.saving import Saving, check_resume, check_savable, continues, moves_aside, resumes
from scaling.tasks.example import vocabulary
from scaling.train_config import TrainConfig
from scaling.trainer import train
from scaling.training_data import TrainingData, open_training_data
from scaling.watching.earlier import keep_until, require_steps
from scaling.watching.loggers import check_loggers, open_loggers
from scaling.watching.profiler import ProfilerWindow
from scaling.watching.records import Record
from scaling.watching.reporter import Reporter
from scaling.watching.run_records import record_training
from scaling.watching.run_watch import RunWatch
from scaling.watching.step_range import parse_step_range
from scaling.watching.summary import Summary, summarise
from scaling.watching.utilisation import Utilisation, utilisation_of
from strategies.decision import Decision
from strategies.errors import ScalingError
from strategies.estimate import Phase
from strategies.learning.run_record import RunRecord, record_of
from strategies.load_model import model_spec, resolve_model
from strategies.serialize import to_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a rank has settled by itself: from here on only other ranks and the hardware can fail it."""

    decision: Decision
    device: torch.device
    model_config: Any
    weights: InitialWeights
    data: TrainingData
    utilisation: Utilisation | None
    record: RunRecord
    """What was predicted, before anything runs."""


def prepare(config: TrainConfig, launch: LaunchEnvironment, *, environ: Mapping[str, str]) -> Prepared:
    """Return everything that a run needs and that can be found without the other ranks.

    Raises:
        ScalingError: plan, launch, model, data or out folder are wrong; nothing has been written yet.
    """
    decision = read_plan(config.plan)
    check_plan(decision, plan_path=config.plan, launch=launch, environ=environ)
    device = choose_device(decision, launch)
    resolved = resolve_model(decision.model)
    spec = model_spec(resolved)
    check_num_params(decision, spec.num_params)
    check_estimate(decision, spec)
    model_config = build_config(resolved)
    weights = choose_weights(resolved, init=config.init)
    check_loggers(config.loggers)
    check_resume(config)
    check_savable(config, decision)
    check_run_folder(config.out, plan=config.plan, overwrite=moves_aside(config), continues=continues(config))
    data = open_training_data(
        config, decision, model_config=model_config, show_progress=launch.is_main, pins=device.type == "cuda"
    )
    name_labels(model_config, data.label_names)
    return Prepared(
        decision=decision,
        device=device,
        model_config=model_config,
        weights=weights,
        data=data,
        utilisation=utilisation_of(decision, spec),
        record=record_of(decision, spec, source="scaling.train", resumed=resumes(config)),
    )


def run(prepared: Prepared, config: TrainConfig, launch: LaunchEnvironment, *, status: RunStatus) -> Summary | Stopped:
    """Train, export, and return the summary, which every rank has; or, where asked to stop, what was saved.

    Raises:
        ScalingError: some rank cannot go on; every rank raises then or is ended.
    """
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # ours is the one bar
    join_process_group(launch, device=prepared.device, timeout_s=config.timeout_s + GROUP_PATIENCE_S)
    try:
        guard = RunGuard(prepared.decision, launch, status, device=prepared.device, config=config)
        with guard.explaining(), ExitStack() as folder_lock:
            return _run(prepared, config, launch, guard=guard, status=status, folder_lock=folder_lock)
    finally:
        leave_process_group(launch)


def _run(
    prepared: Prepared,
    config: TrainConfig,
    launch: LaunchEnvironment,
    *,
    guard: RunGuard,
    status: RunStatus,
    folder_lock: ExitStack,
) -> Summary | Stopped:
    memory = MemoryWatch(
        device=prepared.device,
        launch=launch,
        num_steps=min(config.measure_steps, config.steps),
        vocab_size=vocabulary(prepared.model_config),
    )
    watch = RunWatch(
        memory,
        device=prepared.device,
        max_norm=prepared.decision.job.gradient_clipping,
        utilisation=prepared.utilisation,
    )
    guard.memory = memory
    folder_lock.callback(watch.close)  # also where the run fails: what follows in this process is not to be metered
    final = config.out / FINAL_FOLDER
    with guard.watching():
        is_built = prepared.weights.folder is None or prepared.device.type == "cpu"
        together(partial(guard.host.before_load, is_built=is_built))
        engine = _start_engine(prepared, config, watch)
        together(partial(_open_folder, config, launch, folder_lock=folder_lock))
        start = time.perf_counter()
        outcome = _train(engine, prepared, config, watch=watch, guard=guard, status=status)
        train_time_s = time.perf_counter() - start
        memory.stop()
        if not isinstance(outcome, Stopped):
            _export(engine, prepared, folder=final)
    if isinstance(outcome, Stopped):
        return guard.agreement.together(lambda: outcome)
    status.reached = f"after the last step; the model is in {final}, but {SUMMARY_FILE} was not written"
    summary = summarise(
        outcome,
        decision=prepared.decision,
        initial_weights=str(prepared.weights),
        measurement=memory.highest_of_all_ranks(),
        train_time_s=train_time_s,
        final=final,
        data_hash=prepared.data.content_hash,
        utilisation=prepared.utilisation,
    )
    engine.close()
    together(partial(_write_if_main, config.out / SUMMARY_FILE, to_json(summary), launch))
    if launch.is_main and guard.ladder.micro_batch_size == prepared.decision.plan.micro_batch_size:
        record_training(prepared.record, summary)
    return summary


def _start_engine(prepared: Prepared, config: TrainConfig, watch: RunWatch) -> Engine:
    decision, meter = prepared.decision, watch.memory.meter
    model = together(partial(build_model, prepared.model_config, prepared.weights, decision=decision, seed=config.seed))
    logger.info("%s: %s, %s parameters", decision.model, prepared.weights, f"{decision.num_params:,}")
    meter.start()
    with meter.phase(Phase.INITIALISE):
        engine = build_engine(
            model,
            decision=decision,
            settings=OptimizerSettings(weight_decay=config.weight_decay, lr_scales=parse_lr_scales(config.lr_scale)),
            device=prepared.device,
            meter=watch.clock,
            task=prepared.data.task,
        )
    meter.attach(engine.owners)
    watch.look_at_layers(engine, every=config.layer_stats_every)
    watch.profile(_profiler(config, rank=engine.rank))
    torch.manual_seed(config.seed + 1 + engine.rank)  # dropout: another one on every rank
    return engine


def _profiler(config: TrainConfig, *, rank: int) -> ProfilerWindow | None:
    if config.profile_steps is None:
        return None
    return ProfilerWindow(parse_step_range(config.profile_steps), folder=config.out / PROFILE_FOLDER, rank=rank)


def _train(
    engine: Engine, prepared: Prepared, config: TrainConfig, *, watch: RunWatch, guard: RunGuard, status: RunStatus
) -> list[Record] | Stopped:
    if is_rehearsed(config.dry_run, engine.device):
        _rehearse(engine, prepared, watch=watch, guard=guard)
    saving = Saving(config, prepared.decision, prepared.data, before_write=guard.host.before_save)
    first_step = last_step = saving.start(engine)
    records = saving.meeting.on_main(partial(keep_until, config.out / METRICS_FILE, first_step))
    if first_step == config.steps:
        require_steps(records, config.out / METRICS_FILE)
    reporter = together(partial(_open_reporter, config, first_step=first_step, is_main=engine.rank == 0))
    with reporter or nullcontext(), guard.training():
        steps = train(engine, prepared.data, config, watch=watch, saving=saving, guard=guard, first_step=first_step)
        for record in steps:
            records.append(record)
            _report(reporter, record, watch)
            last_step = max(last_step, record.step)  # a save in the background fails steps later
            status.reached = f"after step {last_step} of {config.steps}; {_kept(saving)}"
        watch.end_if_failed()
    if last_step == config.steps:
        whole = saving.finish() if saving.last_step == last_step else None
        saving.meeting.on_main(partial(guard.host.before_export, checkpoint=whole))
        return records
    checkpoint = saving.finish()
    assert checkpoint is not None, "a run that is asked to stop saves"
    return Stopped(step=last_step, num_steps=config.steps, checkpoint=str(checkpoint), reason=status.asked_by)


def _rehearse(engine: Engine, prepared: Prepared, *, watch: RunWatch, guard: RunGuard) -> None:
    """Run a dry run and log its peaks beside the predicted ones; before a checkpoint is read, which it would spoil."""
    planned = prepared.data.micro_batches(0, rank=engine.rank, world_size=engine.data_parallel_size)
    dry_run(
        engine,
        list(guard.ladder.cut(planned, engine.task)),
        seq_len=prepared.decision.job.seq_len,
        gradients=guard.ladder.add_gradients,
        meter=watch.memory.meter,
    )
    measurement = watch.memory.highest_of_all_ranks()
    for line in beside_prediction(measurement.device() if measurement else None, prepared.decision):
        logger.info("%s", line)


def _kept(saving: Saving) -> str:
    if saving.last_step is None:
        return "no model was saved"
    return f"the last checkpoint is that of step {saving.last_step}"


def _open_reporter(config: TrainConfig, *, first_step: int, is_main: bool) -> Reporter | None:
    if not is_main:
        return None
    file = config.out / METRICS_FILE
    return Reporter(file, num_steps=config.steps, first_step=first_step, loggers=open_loggers(config))


def _report(reporter: Reporter | None, record: Record, watch: RunWatch) -> None:
    """Let the main rank write the record; where it cannot, all ranks end after the next step, or they would wait."""
    if reporter is not None:
        try:
            reporter.add(record)
        except ScalingError as error:
            watch.failed(error)


def _export(engine: Engine, prepared: Prepared, *, folder: Path) -> None:
    def make_shell() -> Any:
        if engine.rank != 0:
            return None
        job = prepared.decision.job
        generation = getattr(engine.model, "generation_config", None)
        return shell_of(prepared.model_config, dtype=DTYPES[job.precision], job=job, generation=generation)

    export_engine(engine, together(make_shell), prepared.data.tokenizer, folder=folder)


def _open_folder(config: TrainConfig, launch: LaunchEnvironment, *, folder_lock: ExitStack) -> None:
    if launch.is_main:
        folder = open_run_folder(
            config.out, plan=config.plan, overwrite=moves_aside(config), continues=continues(config)
        )
        folder_lock.enter_context(folder)
    _write_if_main(config.out / CONFIG_FILE, json.dumps(dataclasses.asdict(config), indent=2, default=str), launch)


def _write_if_main(path: Path, text: str, launch: LaunchEnvironment) -> None:
    if launch.is_main:
        with writing(path):
            path.write_text(text)
