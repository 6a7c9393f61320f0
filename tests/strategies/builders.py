"""Small hand-made nouns for tests."""

from strategies.cluster import Cluster, Gpu
from strategies.job import Job, Precision
from strategies.model_spec import GroupRole, ModelSpec, ParameterGroup, ParameterTensor, TaskKind
from strategies.units import GIB


def tiny_spec(*, num_layers: int = 4, hidden_size: int = 64, vocab_size: int = 512) -> ModelSpec:
    """A llama-like model whose counts can be checked by hand: 12 hidden**2 a block, two vocabulary matrices."""
    block = ParameterGroup(
        name="block",
        role=GroupRole.BLOCK,
        layers=tuple(range(num_layers)),
        tensors=(ParameterTensor(name="layers.{layer}.weight", shape=(12 * hidden_size, hidden_size)),),
    )
    embedding = ParameterGroup(
        name="embedding",
        role=GroupRole.EMBEDDING,
        tensors=(ParameterTensor(name="embed.weight", shape=(vocab_size, hidden_size)),),
    )
    head = ParameterGroup(
        name="head",
        role=GroupRole.HEAD,
        tensors=(ParameterTensor(name="lm_head.weight", shape=(vocab_size, hidden_size)),),
    )
    return ModelSpec(
        name="tiny",
        family="llama",
        task=TaskKind.CAUSAL_LM,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=hidden_size // 4,
        intermediate_size=2 * hidden_size,
        vocab_size=vocab_size,
        max_seq_len=1024,
        tied_embeddings=False,
        gated_mlp=True,
        rotary_dim=hidden_size // 4,
        variant="silu",
        groups=(embedding, block, head),
    )


def small_cluster(*, gpus: int = 4, memory_bytes: int = 8 * GIB, name: str = "test-gpu") -> Cluster:
    return Cluster(gpu=Gpu(name=name, memory_bytes=memory_bytes), gpus=gpus, gpus_per_node=gpus)


def small_job(*, global_batch_size: int = 16, seq_len: int = 128, precision: Precision = Precision.BF16) -> Job:
    return Job(seq_len=seq_len, global_batch_size=global_batch_size, precision=precision)
