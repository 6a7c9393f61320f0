"""What the launchers set, read back."""

from __future__ import annotations

import pytest

from scaling.errors import LaunchError
from scaling.launch_env import read_launch_environment

RENDEZVOUS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
# Names as torch 2.13 (run.py, elastic), accelerate 1.15.0 and deepspeed 0.19.8 (launcher/launch.py) set them.
TORCH_ELASTIC = {**RENDEZVOUS, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
DEEPSPEED = {**RENDEZVOUS, "RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "LOCAL_SIZE": "4"}


@pytest.mark.parametrize("environ", [TORCH_ELASTIC, DEEPSPEED], ids=["torchrun and accelerate", "deepspeed"])
def test_launcher_variables_are_read(environ: dict[str, str]) -> None:
    launch = read_launch_environment(environ)
    assert (launch.rank, launch.local_rank, launch.world_size, launch.local_world_size) == (5, 1, 8, 4)
    assert launch.is_launched
    assert not launch.is_main


@pytest.mark.parametrize("environ", [{}, {"MASTER_PORT": "29500", "LOCAL_RANK": "0"}])
def test_plain_python_is_one_process(environ: dict[str, str]) -> None:
    launch = read_launch_environment(environ)
    assert (launch.rank, launch.world_size, launch.is_launched) == (0, 1, False)


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, "not LOCAL_RANK, MASTER_ADDR, MASTER_PORT"),
        ({**DEEPSPEED, "MASTER_PORT": "0"}, "MASTER_PORT=0 is a different port for every process"),
        ({**DEEPSPEED, "RANK": "8"}, "RANK=8, LOCAL_RANK=1, WORLD_SIZE=8, LOCAL_SIZE=4 contradict each other"),
        ({**TORCH_ELASTIC, "WORLD_SIZE": "two"}, "WORLD_SIZE='two' is not a whole number"),
    ],
)
def test_a_broken_environment_is_told(environ: dict[str, str], message: str) -> None:
    with pytest.raises(LaunchError) as caught:
        read_launch_environment(environ)
    assert message in str(caught.value)
