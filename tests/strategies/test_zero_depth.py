"""Stage 3 followed over a few blocks tells what following it over all of them does."""

from dataclasses import replace

import pytest

from strategies.backward_states import that_may_peak
from strategies.base import BlockState
from strategies.estimate import CauseBytes
from strategies.job import Job
from strategies.load_model import load_model_spec
from strategies.zero import Zero
from strategies.zero_depth import gathered_elements, shallow_twin
from strategies.zero_gathered import GatheredElements, Stage3Offload
from strategies.zero_gathers import walk

BOTH = Stage3Offload(optimizer=True, parameters=True, norm_elements=4)


def highest_in_blocks(elements: GatheredElements) -> set[BlockState]:
    return set(
        that_may_peak(
            BlockState(
                num_done=each.num_done,
                new_gradient=each.new_gradient,
                causes=CauseBytes(
                    gathered_parameters=each.moment.gathered,
                    gradients=each.moment.gradients,
                    communication_buckets=each.moment.buckets,
                ),
            )
            for each in elements.in_blocks
        )
    )


@pytest.mark.parametrize("model", ["llama-3.1-70b", "gpt2-xl", "qwen2.5-32b", "gemma-2-27b", "bloom-3b", "vit-large"])
@pytest.mark.parametrize("data_parallel_size", [1, 48])
@pytest.mark.parametrize("checkpoint_every", [0, 1])
@pytest.mark.parametrize("offload", [Stage3Offload(norm_elements=4), BOTH], ids=["on the device", "offloaded"])
def test_gathers_are_those_of_the_walk_over_all_blocks(
    model: str, data_parallel_size: int, checkpoint_every: int, offload: Stage3Offload
) -> None:
    spec = load_model_spec(model)
    buckets = Zero(stage=3).buckets(spec, Job(seq_len=8, global_batch_size=1))
    walked = walk(spec, data_parallel_size, buckets, checkpoint_every=checkpoint_every, offload=offload)
    found = gathered_elements(spec, data_parallel_size, buckets, checkpoint_every=checkpoint_every, offload=offload)
    assert replace(found, in_blocks=()) == replace(walked, in_blocks=())
    assert highest_in_blocks(found) == highest_in_blocks(walked)


def test_a_model_whose_blocks_differ_has_no_twin() -> None:
    assert shallow_twin(load_model_spec("llama-3.1-70b"), 12) is not None
    assert shallow_twin(load_model_spec("llama-3.1-70b"), 80) is None
    assert shallow_twin(load_model_spec("t5-large"), 12) is None
