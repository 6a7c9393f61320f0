"""Questions for tests: small models on GPUs of any memory, drawn at random."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from strategies.cluster import Cluster, gpu_preset
from strategies.job import Job, LossImplementation, Precision
from strategies.load_model import load_model_spec
from strategies.plan import ActivationCheckpointing, OffloadDevice, StrategyName
from strategies.planner.sweep import Question
from strategies.search import FixedParts
from strategies.trained import Lora
from strategies.units import GIB

MODELS = ("llama-3.2-1b", "gpt2-xl", "qwen2.5-0.5b", "gemma-2b", "pythia-1.4b")


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Draw a model, a cluster, a job and some fixed parts that go together."""
    model = draw(st.sampled_from(MODELS))
    precision = draw(st.sampled_from([Precision.BF16, Precision.FP32, Precision.BF16_AUTOCAST]))
    has_lora = model.startswith("llama") and precision is Precision.BF16  # others have no closed form
    gpus = draw(st.sampled_from([1, 2, 4, 16]))
    gpu = replace(gpu_preset("A100-80GB-SXM"), memory_bytes=round(draw(st.floats(min_value=4, max_value=80)) * GIB))
    host = draw(st.sampled_from([None, 32 * GIB, 2000 * GIB]))
    fixed = FixedParts(
        strategy=draw(st.sampled_from([None, None, StrategyName.DDP, StrategyName.ZERO2, StrategyName.ZERO3])),
        activation_checkpointing=draw(st.sampled_from([None, None, ActivationCheckpointing.NONE])),
        micro_batch_size=draw(st.sampled_from([None, None, 1, 4])),
        offload_optimizer=draw(st.sampled_from([None, OffloadDevice.NONE])),
        searches_loss=draw(st.booleans()),
    )
    return Question(
        spec=load_model_spec(model),
        cluster=Cluster(gpu=gpu, gpus=gpus, gpus_per_node=min(gpus, 8), host_memory_bytes=host),
        job=Job(
            seq_len=draw(st.sampled_from([128, 512, 1024])),
            global_batch_size=gpus * draw(st.sampled_from([4, 8, 12])),
            precision=precision,
            loss=LossImplementation.STANDARD,
            lora=draw(st.sampled_from([None, Lora(rank=8)])) if has_lora else None,
        ),
        fixed=fixed,
        safety=draw(st.sampled_from([0.0, 0.5, 0.9])),
    )


def question(
    model: str = "llama-3.1-8b",
    gpu: str = "H100-80GB-SXM",
    *,
    gpus: int = 8,
    seq_len: int = 4096,
    global_batch_size: int = 64,
    fixed: FixedParts | None = None,
    safety: float = 0.9,
    host_memory_bytes: int | None = None,
) -> Question:
    return Question(
        spec=load_model_spec(model),
        cluster=Cluster(
            gpu=gpu_preset(gpu), gpus=gpus, gpus_per_node=min(gpus, 8), host_memory_bytes=host_memory_bytes
        ),
        job=Job(seq_len=seq_len, global_batch_size=global_batch_size),
        fixed=fixed or FixedParts(searches_loss=True),
        safety=safety,
    )
