"""JSON: what is written is read back the same, and anything else is refused with the field's name."""

import json
from pathlib import Path

import pytest

from strategies.decision import Decision
from strategies.errors import ScalingError
from strategies.select import decide
from strategies.serialize import from_json, numbers, read_json, to_json
from strategies.trained import Lora
from tests.strategies.builders import small_cluster, small_job, tiny_spec


@pytest.fixture
def decision() -> Decision:
    return decide(tiny_spec(), cluster=small_cluster(), job=small_job())


def test_decision_round_trips(decision: Decision) -> None:
    assert from_json(Decision, to_json(decision), source="test") == decision


def test_whole_numbers_are_written_as_floats_where_floats_are_read() -> None:
    lora = Lora(rank=8, alpha=16)
    assert json.loads(to_json(lora))["alpha"].__class__ is float
    assert to_json(from_json(Lora, to_json(lora), source="test")) == to_json(lora)
    assert from_json(Lora, '{"alpha": 16}', source="test").alpha == lora.alpha


def test_numbers_are_found_with_their_names() -> None:
    job = small_job(global_batch_size=16, seq_len=128)
    assert dict(numbers(job)) == {"seq_len": 128, "global_batch_size": 16, "gradient_clipping": 1.0}
    assert dict(numbers((job,))).keys() == {"[0].seq_len", "[0].global_batch_size", "[0].gradient_clipping"}


def _edited(decision: Decision, path: str, value: object) -> str:
    data = json.loads(to_json(decision))
    *parents, last = path.split(".")
    target = data
    for key in parents:
        target = target[key]
    target[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("plan.strategy", "zero4", r"plan\.strategy=.zero4. must be 'ddp', 'zero1', "),
        ("plan.micro_batch_size", "two", r"plan\.micro_batch_size=.two. must be a whole number"),
        ("plan.micro_batch_size", 0, r"micro_batch_size=0 must be above zero"),
        ("plan", 7, r"plan=7 must be an object in braces"),
        ("rejected", {}, r"rejected=\.\.\. must be a list"),
        ("plan.stage", 2, r"unknown keys plan\.stage"),
        ("job.seq_len", None, r"job\.seq_len=null must be a whole number"),
        ("job.seq_len", "128", r"job\.seq_len=.128. must be a whole number"),
        ("job.seq_len", 128.5, r"job\.seq_len=128\.5 must be a whole number"),
        ("cluster.gpus", True, r"cluster\.gpus=true must be a whole number"),
        ("job.gradient_clipping", True, r"job\.gradient_clipping=true must be a number"),
        ("job.fused_optimizer", "no", r"job\.fused_optimizer=.no. must be true or false"),
        ("plan.reshard_after_forward", 1, r"plan\.reshard_after_forward=1 must be true or false"),
    ],
)
def test_from_json_names_the_field(decision: Decision, path: str, value: object, message: str) -> None:
    with pytest.raises(ScalingError, match=message):
        from_json(Decision, _edited(decision, path, value), source="plan.json")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", r"it is not JSON \("),
        ("not json", r"it is not JSON \("),
        ("[]", "the whole file=... must be an object in braces"),
        ("{}", "model is missing"),
        ('{"plan": 1}', "model is missing"),
        ("null", "the whole file=null must be an object in braces"),
    ],
)
def test_from_json_refuses_other_files(text: str, problem: str) -> None:
    with pytest.raises(ScalingError, match=rf"^plan\.json is not a valid Decision: {problem}"):
        from_json(Decision, text, source="plan.json")


def test_read_json_refuses_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ScalingError, match=r"cannot read .*absent\.json"):
        read_json(Decision, tmp_path / "absent.json")
