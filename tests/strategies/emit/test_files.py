"""What a plan writes, judged by the readers of accelerate and DeepSpeed as installed."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from strategies.decision import Decision
from strategies.emit.commands import launch_commands
from strategies.emit.deepspeed import deepspeed_config
from strategies.emit.files import write_plan
from strategies.errors import PlanError, ScalingError
from strategies.job import Precision
from strategies.plan import OffloadDevice, StrategyName
from strategies.search import FixedParts
from strategies.select import decide
from strategies.serialize import read_json
from tests.strategies.builders import small_cluster, small_job, tiny_spec

ZERO = [StrategyName.ZERO1, StrategyName.ZERO2, StrategyName.ZERO3]


def decision_for(
    strategy: StrategyName, *, gpus: int = 4, precision: Precision = Precision.BF16, name: str = "test-gpu"
) -> Decision:
    return decide(
        tiny_spec(),
        cluster=small_cluster(gpus=gpus, name=name),
        job=small_job(global_batch_size=4 * gpus, precision=precision),
        fixed=FixedParts(strategy=strategy, micro_batch_size=2),
    )


@pytest.mark.deepspeed
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16, Precision.BF16])
@pytest.mark.parametrize("strategy", ZERO)
@pytest.mark.parametrize("gpus", [1, 8, 4096])
def test_deepspeed_accepts_the_config(
    strategy: StrategyName, gpus: int, precision: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deepspeed.runtime import config as reader

    # Without a process group DeepSpeed takes the world size as 1: tell it the one the plan is for.
    monkeypatch.setattr(reader.dist, "get_rank", lambda: 0)
    monkeypatch.setattr(reader.dist, "get_world_size", lambda: gpus)

    config = deepspeed_config(decision_for(strategy, gpus=gpus, precision=precision))
    read = reader.DeepSpeedConfig(config)
    assert read.train_batch_size == 4 * gpus
    assert read.train_micro_batch_size_per_gpu == 2
    assert read.gradient_accumulation_steps == 2
    assert read.gradient_clipping == 1.0
    assert read.zero_config.stage == ZERO.index(strategy) + 1
    assert read.zero_config.overlap_comm is True
    assert '"auto"' not in json.dumps(config)
    if precision is Precision.FP16:  # the defaults of torch.amp.GradScaler; DeepSpeed's own wait for a second overflow
        scaling = read.float16_config
        assert (scaling.initial_dynamic_scale(), scaling.loss_scale_window, scaling.hysteresis) == (65536, 2000, 1)


@pytest.mark.deepspeed
@pytest.mark.parametrize(("name", "pinned"), [("a", True), ("cpu", False)])
def test_deepspeed_reads_what_is_offloaded(name: str, pinned: bool) -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    planned = decision_for(StrategyName.ZERO3, name=name)
    plan = replace(planned.plan, offload_optimizer=OffloadDevice.CPU, offload_param=OffloadDevice.CPU)
    config = deepspeed_config(replace(planned, plan=plan))
    assert config is not None
    read = DeepSpeedZeroConfig(**config["zero_optimization"])
    assert read.offload_optimizer is not None
    assert read.offload_param is not None
    assert (read.offload_optimizer.device, read.offload_optimizer.pin_memory) == ("cpu", pinned)
    assert (read.offload_param.device, read.offload_param.pin_memory) == ("cpu", pinned)


def test_nvme_is_not_written_without_a_path() -> None:
    planned = decision_for(StrategyName.ZERO3)
    decision = replace(planned, plan=replace(planned.plan, offload_param=OffloadDevice.NVME))
    with pytest.raises(PlanError, match="offload_param=nvme can be estimated but not run"):
        deepspeed_config(decision)


def test_deepspeed_config_is_absent_for_ddp() -> None:
    assert deepspeed_config(decision_for(StrategyName.DDP)) is None


@pytest.mark.parametrize("strategy", [StrategyName.DDP, StrategyName.ZERO3])
@pytest.mark.parametrize(("name", "gpus", "ddp_type"), [("a", 4, "MULTI_GPU"), ("cpu", 4, "MULTI_GPU"), ("a", 1, "NO")])
def test_accelerate_reads_the_yaml(tmp_path: Path, strategy: StrategyName, name: str, gpus: int, ddp_type: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    write_plan(decision_for(strategy, gpus=gpus, name=name), folder=tmp_path / "it's a plan")
    path = tmp_path / "it's a plan" / "accelerate.yaml"
    config = load_config_from_file(str(path))
    expected = "DEEPSPEED" if strategy in ZERO else ddp_type
    assert config.distributed_type == expected
    assert config.num_processes == gpus
    if strategy in ZERO:
        named = yaml.safe_load(path.read_text())["deepspeed_config"]["deepspeed_config_file"]
        assert json.loads(Path(named).read_text())["zero_optimization"]["stage"] == 3


def test_fsdp2_is_launched_as_plain_processes(tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    planned = decision_for(StrategyName.DDP)
    decision = replace(planned, plan=replace(planned.plan, strategy=StrategyName.FSDP2))
    written = {path.name for path in write_plan(decision, folder=tmp_path)}
    config = load_config_from_file(str(tmp_path / "accelerate.yaml"))
    # The engine shards by itself: accelerate's own FSDP would do it a second time.
    assert config.distributed_type == "MULTI_GPU"
    assert not config.fsdp_config
    assert "deepspeed.json" not in written
    assert {command.launcher for command in launch_commands(decision, folder=tmp_path)} >= {"accelerate", "torchrun"}


def test_launch_commands_name_the_module_and_split_back_into_words(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    lines = {c.launcher: shlex.split(c.line) for c in launch_commands(decision_for(StrategyName.ZERO2), folder=folder)}
    assert lines["accelerate"][:4] == ["accelerate", "launch", "--config_file", str(folder / "accelerate.yaml")]
    assert lines["deepspeed"][:5] == ["deepspeed", "--num_gpus", "4", "--module", "scaling.train"]
    assert lines["torchrun"][:4] == ["torchrun", "--nproc_per_node", "4", "--standalone"]
    assert all(words[words.index("--plan") + 1] == str(folder / "plan.json") for words in lines.values())


def test_launch_commands_for_several_nodes_take_rank_and_address(tmp_path: Path) -> None:
    decision = decision_for(StrategyName.ZERO2, gpus=16)
    decision = replace(decision, cluster=replace(decision.cluster, gpus_per_node=8))
    lines = {command.launcher: command.line for command in launch_commands(decision, folder=tmp_path)}
    assert '--nnodes 2 --node_rank "$NODE_RANK" --master_addr "$MASTER_ADDR"' in lines["torchrun"]
    assert '--machine_rank "$NODE_RANK" --main_process_ip "$MASTER_ADDR"' in lines["accelerate"]
    assert f"--num_nodes 2 --hostfile {tmp_path / 'hostfile'}" in lines["deepspeed"]


def test_write_plan_round_trips_and_repeats(tmp_path: Path) -> None:
    decision = decision_for(StrategyName.ZERO2)
    write_plan(decision, folder=tmp_path / "new" / "folder")
    write_plan(decision, folder=tmp_path / "new" / "folder")  # the same plan again changes nothing and is no error
    assert read_json(Decision, tmp_path / "new" / "folder" / "plan.json") == decision
    assert not list((tmp_path / "new" / "folder").glob(".*partial"))


def test_write_plan_keeps_another_plan_unless_told(tmp_path: Path) -> None:
    first, second = decision_for(StrategyName.ZERO2), decision_for(StrategyName.DDP)
    write_plan(first, folder=tmp_path)
    with pytest.raises(ScalingError, match=r"already holds another plan \(plan\.json.*--overwrite"):
        write_plan(second, folder=tmp_path)
    assert read_json(Decision, tmp_path / "plan.json") == first
    write_plan(second, folder=tmp_path, overwrite=True)
    assert read_json(Decision, tmp_path / "plan.json") == second
    assert not (tmp_path / "deepspeed.json").exists()  # a DDP plan leaves no stale DeepSpeed file behind


def test_write_plan_changes_nothing_when_one_file_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(decision_for(StrategyName.ZERO2), folder=tmp_path)
    before = {path.name: path.read_text() for path in tmp_path.iterdir()}
    write_text = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        if "plan.json" in path.name:
            raise OSError(28, "No space left on device")
        return write_text(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(ScalingError, match="No space left"):
        write_plan(decision_for(StrategyName.ZERO3), folder=tmp_path, overwrite=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_write_plan_says_when_the_folder_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ScalingError, match="cannot write the plan to"):
        write_plan(decision_for(StrategyName.DDP), folder=tmp_path / "file")
