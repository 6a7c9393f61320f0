"""`TrainConfig`: what one training run does. A flag wins over ``--set``, that over the run file, that over defaults."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from scaling.errors import ConfigError, one_line
from scaling.lr_scales import lr_scale_problems
from scaling.schedule import ScheduleName
from scaling.watching.step_range import parse_step_range
from strategies.serialize import expected_value

NOT_NEGATIVE = (
    "warmup_steps",
    "weight_decay",
    "seed",
    "eval_every",
    "save_every",
    "keep_last",
    "keep_best",
    "measure_steps",
    "layer_stats_every",
    "num_workers",
    "decay_every",
    "patience",
)
AUTO, NONE = "auto", "none"
"""What ``resume`` may be besides a path."""
MAX_SEED = 2**63 - 1
"""torch.manual_seed takes numbers below 2**64 (torch 2.13), and every rank adds its own to the seed."""


class TaskName(StrEnum):
    """What the loss is."""

    AUTO = "auto"
    """What the plan's model is made for."""
    CAUSAL_LM = "causal-lm"
    MASKED_LM = "masked-lm"
    SEQUENCE_CLASSIFICATION = "sequence-classification"
    IMAGE_CLASSIFICATION = "image-classification"
    CONTRASTIVE = "contrastive"
    HF_LOSS = "hf-loss"
    """The loss that the model's own forward returns."""


class Packing(StrEnum):
    """How documents become rows."""

    PACKED = "packed"
    PADDED = "padded"


class DryRun(StrEnum):
    """When a run is rehearsed before it begins."""

    AUTO = "auto"
    """On a GPU, whose memory ends with an error that a rehearsal meets at once."""
    ALWAYS = "always"
    NEVER = "never"


class LoggerName(StrEnum):
    """A program that draws metrics while they come."""

    TENSORBOARD = "tensorboard"
    WANDB = "wandb"
    """Offline where no key of Weights & Biases is known here."""


class Init(StrEnum):
    """Where the first weights come from."""

    AUTO = "auto"
    """Pretrained where the model's folder holds weights, else random."""
    RANDOM = "random"
    PRETRAINED = "pretrained"


class NonFinite(StrEnum):
    """What a step whose loss or gradient is not finite leads to."""

    STOP = "stop"
    SKIP = "skip"
    """Leave out the update and go on."""
    NAME = "name"
    """Stop, and say which tensor was the first."""


class OnSaveFailure(StrEnum):
    """What a checkpoint that cannot be written leads to."""

    STOP = "stop"
    CONTINUE = "continue"
    """Train on without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig:
    """What to train on, for how long and how; the plan alone says under which strategy and in which batches."""

    plan: Path
    """plan.json as `scaling plan --out` writes it."""
    out: Path
    """Folder for metrics.jsonl, summary.json and the trained model in final/."""
    task: TaskName = TaskName.AUTO
    """What the loss is: auto takes what the model is made for; hf-loss the loss that its forward returns."""
    label_smoothing: float = 0.0
    """Share of each label that is spread evenly over all classes while training."""
    data: str = "auto"
    """Text, JSONL, CSV or Parquet file, folder (of images too), glob or dataset; builtin:python is the standard
    library's source, builtin:modules parts of it by package, builtin:shapes drawn pictures; auto takes the built-in
    data of the task."""
    tokenizer: str = "bytes"
    """Tokenizer folder or hub id; bytes needs no download."""
    text_column: str | None = None
    """Column that holds the text, for JSONL, CSV, Parquet and datasets."""
    label_column: str | None = None
    """Column that holds the class: whole numbers from 0 on, or names."""
    image_column: str | None = None
    """Column that holds the picture."""
    packing: Packing = Packing.PACKED
    """Rows of a causal language model: packed (documents run on across rows of one length) or padded (one document a
    row, padded to the longest of its micro batch)."""
    mask_probability: float = 0.15
    """Share of tokens that a masked language model is to predict."""
    streaming: bool = False
    """Read text as it is trained on, instead of tokenising all of it first; shuffled in a window of 1000 rows."""
    num_workers: int = 0
    """Processes on each rank that make batches ahead of time; 0 makes each when it is needed."""
    cache_dir: Path | None = None
    """Folder of token stores, made once for each text and tokenizer; None: ~/.cache/memory-scaling."""
    steps: int
    """Optimizer steps."""
    learning_rate: float = 3e-4
    """Highest learning rate, reached after the warm-up."""
    schedule: ScheduleName = ScheduleName.COSINE
    """How the learning rate falls after the warm-up."""
    decay_factor: float = 0.1
    """What the schedules step and plateau multiply the learning rate by."""
    decay_every: int = 0
    """Updates between two reductions of the schedule step."""
    patience: int = 3
    """Evaluations without a lower loss after which the schedule plateau reduces the learning rate."""
    lr_scale: tuple[str, ...] = ()
    """Parameters with a learning rate of their own, as PATTERN=FACTOR with * and ? in it and commas between: the first
    pattern that fits a parameter's name counts."""
    warmup_steps: int = 0
    """Optimizer steps in which the learning rate rises linearly from zero."""
    weight_decay: float = 0.01
    """Decoupled decay of matrices; norms, biases and other 1-d tensors never decay."""
    seed: int = 0
    """Of initial weights, sample order and dropout."""
    eval_every: int = 0
    """Evaluate after every so many steps and at the end; 0 never."""
    eval_batches: int = 8
    """Global batches of held-out samples per evaluation."""
    eval_fraction: float = 0.01
    """Share of the data that is held out when eval_every is above zero."""
    nonfinite: NonFinite = NonFinite.STOP
    """On an infinite or undefined loss or gradient, after fp16 has lowered its loss scale: stop, skip the update, or
    stop and name the first such tensor."""
    save_every: int = 0
    """Save a checkpoint after every so many steps and at the end; 0 only when a signal ends the run."""
    keep_last: int = 2
    """Checkpoints that stay, the latest ones; 0 keeps all."""
    keep_best: int = 0
    """Checkpoints of the lowest evaluation loss that stay besides."""
    save_async: bool = False
    """Write checkpoints while training goes on, from a copy in host memory where that has room for it."""
    on_save_failure: OnSaveFailure = OnSaveFailure.STOP
    """When a checkpoint cannot be written, for want of disk space for instance: stop, or continue without it; earlier
    ones stay in both cases."""
    resume: str = "none"
    """Go on from a checkpoint: auto (the latest whole one in the out folder, or anew where there is none), none, or
    its path."""
    init: Init = Init.AUTO
    """First weights: auto, random or pretrained."""
    overwrite: bool = False
    """Move an earlier run in the out folder aside instead of refusing."""
    measure_steps: int = 3
    """On a CPU, optimizer steps whose memory is metered (metering slows them); CUDA counts always."""
    dry_run: DryRun = DryRun.AUTO
    """Before training, two steps on the longest batch, an evaluation and the gathering of a save, then all set back:
    auto (on a GPU), always or never."""
    loggers: tuple[LoggerName, ...] = ()
    """Where metrics go besides metrics.jsonl: tensorboard, wandb, or both with a comma between them."""
    layer_stats_every: int = 0
    """Write the gradient's norm and largest element of every layer in every so many steps; 0 never."""
    profile_steps: str | None = None
    """Steps that torch's profiler follows, as FIRST:LAST, both included; one trace a rank in profile/."""
    timeout_s: int = 1800
    """Seconds without progress after which a run is taken for hanging and ends, naming the rank and the line."""

    def __post_init__(self) -> None:
        if problems := _size_problems({field.name: getattr(self, field.name) for field in fields(self)}):
            raise ConfigError("; ".join(problems))


FIELD_NAMES = tuple(field.name for field in fields(TrainConfig))


def resolve(*, flags: Mapping[str, Any], assignments: Sequence[str], file: Path | None) -> TrainConfig:
    """Return the one configuration that flags, ``name=value`` assignments and a YAML run file add up to.

    Raises:
        ConfigError: names every unknown key, missing value and value of the wrong type or size at once.
    """
    problems: list[str] = []
    values: dict[str, Any] = {}
    layers = [*([_read_run_file(file)] if file else []), _parse_assignments(assignments, problems), flags]
    for layer in layers:
        values |= {name.replace("-", "_"): value for name, value in layer.items()}
    problems += [_unknown(name) for name in values if name not in FIELD_NAMES]
    checked = _validate(values, problems)
    problems += _size_problems(checked)
    if problems:
        raise ConfigError("; ".join(problems))
    return TrainConfig(**checked)


def _read_run_file(path: Path) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read config={path}: {error}; give the path of a YAML file") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config={path} is not YAML: {one_line(error)}; correct it") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ConfigError(f"config={path} is not a list of `name: value` lines; write for instance `steps: 100`")
    return content


def _parse_assignments(assignments: Sequence[str], problems: list[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if equals:
            values[name.strip()] = value.strip()
        else:
            problems.append(f"--set {assignment} has no '='; write --set name=value")
    return values


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, FIELD_NAMES, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(FIELD_NAMES)}"
    return f"unknown setting {name!r}; {hint}"


def _size_problems(values: Mapping[str, Any]) -> list[str]:
    problems = []
    for name in ("steps", "learning_rate", "eval_batches", "timeout_s"):
        if name in values and not 0 < values[name] < math.inf:
            problems.append(f"{name}={values[name]} must be above zero")
    for name in NOT_NEGATIVE:
        if name in values and not 0 <= values[name] < math.inf:
            problems.append(f"{name}={values[name]} must not be negative or infinite")
    if "warmup_steps" in values and values["warmup_steps"] > values.get("steps", math.inf) > 0:
        problems.append(f"warmup_steps={values['warmup_steps']} is more than steps={values['steps']}; lower it")
    if values.get("seed", 0) > MAX_SEED:
        problems.append(f"seed={values['seed']} must be at most {MAX_SEED}")
    for name in ("eval_fraction", "mask_probability", "decay_factor"):
        if name in values and not 0 < values[name] < 1:
            problems.append(f"{name}={values[name]} must lie between 0 and 1")
    if not 0 <= (share := values.get("label_smoothing", 0.0)) < 1:
        problems.append(f"label_smoothing={share} must be at least 0 and below 1")
    if values.get("schedule") is ScheduleName.STEP and not values.get("decay_every"):
        problems.append("schedule=step needs decay_every: the updates between two reductions")
    if values.get("schedule") is ScheduleName.PLATEAU and not values.get("eval_every"):
        problems.append("schedule=plateau needs eval_every: it goes by the evaluation loss")
    problems += lr_scale_problems(values.get("lr_scale", ()))
    if values.get("profile_steps") is not None:
        problems += _window_problems(values["profile_steps"], num_steps=values.get("steps", math.inf))
    return problems


def _window_problems(text: str, *, num_steps: float) -> list[str]:
    try:
        window = parse_step_range(text)
    except ValueError as error:
        return [f"profile_steps={error}"]
    return [f"profile_steps={text} ends after steps={num_steps}; lower it"] if window.last > num_steps else []


def _validate(given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the values that have the right type, and add the others to ``problems``."""
    from pydantic import TypeAdapter, ValidationError

    types = get_type_hints(TrainConfig)
    values: dict[str, Any] = {}
    for field in fields(TrainConfig):
        if field.name not in given:
            if field.default is MISSING:
                problems.append(f"{field.name} is missing; give it with --{field.name.replace('_', '-')}")
            continue
        value = given[field.name]
        if value == "":  # as a path it would be the current folder
            problems.append(f"{field.name} is empty; give a value, or leave it out")
            continue
        if isinstance(value, bool) and types[field.name] is not bool:
            problems.append(f"{field.name}={value!r} must not be true or false")
            continue
        if isinstance(value, str) and get_origin(types[field.name]) is tuple:
            value = [part.strip() for part in value.split(",")]
        try:
            values[field.name] = TypeAdapter(types[field.name]).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            expected = expected_value(problem)
            problems.append(f"{field.name}={value!r}" + (f" must be {expected}" if expected else f": {problem['msg']}"))
    return values
