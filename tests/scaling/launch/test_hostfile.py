"""Host files: what is read is what the installed deepspeed reads, and what it would run into is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scaling.errors import LaunchError
from scaling.launch.hostfile import read_hosts
from strategies.cluster import CPU_NAME, Cluster, Gpu
from strategies.units import GIB


def cluster(*, nodes: int = 2, per_node: int = 8) -> Cluster:
    return Cluster(gpu=Gpu(name=CPU_NAME, memory_bytes=GIB), gpus=nodes * per_node, gpus_per_node=per_node)


def hosts(folder: Path, text: str, **shape: int) -> list[tuple[str, int]]:
    path = folder / "hostfile"
    path.write_text(text)
    return [(host.name, host.slots) for host in read_hosts(path, cluster=cluster(**shape))]


READ = [
    "node1 slots=8\nnode2 slots=8\n",
    "# two nodes\n\n  node1   slots=8  \n\tnode2\tslots=8\n",
    "node1 slots=8 # the first\nnode2 slots=8 max_slots=8",
    "10.0.0.1 slots=8\nfe80::1 slots=8\n",
    "gpu-01.cluster slots=8\r\ngpu-02.cluster slots=8\r\n",
]
REFUSED_BY_BOTH = [
    ("node1 slots=8\nnode1 slots=8\n", "line 2 names node1 again, after line 1"),
    ("node1\nnode2 slots=8\n", "line 1 is 'node1', not HOST slots=N"),
    ("node1 slots = 8\nnode2 slots=8\n", "line 1 is 'node1 slots = 8'"),
    ("node1:8\nnode2:8\n", "line 1 is 'node1:8'"),
    ("# nothing\n", "it names no node"),
    ("", "it names no node"),
]
REFUSED_BY_US = [
    ("node1 slots=8x\nnode2 slots=8\n", "line 1 is 'node1 slots=8x'"),
    ("node1 slots=16\nnode2 slots=0\n", "line 2 gives node2 no slots"),
    ("Node1 slots=8\nnode1 slots=8\n", "names node1 again"),
    ("node1 slots=8\n", "it has 8 slots on 1 node, but the plan is for 2 x 8 = 16 GPUs"),
    ("node1 slots=4\nnode2 slots=4\n", "plan again with --gpus 8 --gpus-per-node 4"),
    ("node1 slots=12\nnode2 slots=4\n", "from 4 to 12 slots"),
    ("a slots=4\nb slots=4\nc slots=4\nd slots=4\n", "its nodes have 4 slots, but the plan is for 2 x 8"),
    ("localhost slots=8\nnode2 slots=8\n", "localhost is another machine on every node"),
    ("node1,node2 slots=8\nnode3 slots=8\n", "line 1 has 'node1,node2' for a host, which is no name"),
    ("node[1-2] slots=8\nnode3 slots=8\n", "line 1 has 'node[1-2]'"),
    ("-oProxyCommand=sh slots=8\nnode2 slots=8\n", "line 1 has '-oProxyCommand=sh'"),
    ("\ufeffnode1 slots=8\nnode2 slots=8\n", "line 1 has '\\ufeffnode1'"),
    ("node1 slots=1000000000\n", "line 1 is 'node1 slots=1000000000', not HOST slots=N"),
    ("node1 slots=8\n127.0.0.1 slots=8\n", "127.0.0.1 is another machine on every node"),
]


@pytest.mark.deepspeed
@pytest.mark.parametrize("text", READ)
def test_a_host_file_is_read_as_deepspeed_reads_it(tmp_path: Path, text: str) -> None:
    from deepspeed.launcher.runner import _parse_hostfile

    assert hosts(tmp_path, text) == list(_parse_hostfile(text.splitlines()).items())


@pytest.mark.deepspeed
@pytest.mark.parametrize(("text", "why"), REFUSED_BY_BOTH)
def test_what_deepspeed_refuses_is_refused_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    from deepspeed.launcher.runner import _parse_hostfile

    with pytest.raises(ValueError, match="Hostfile"):
        _parse_hostfile(text.splitlines())
    with pytest.raises(LaunchError, match=re.escape(why)):
        hosts(tmp_path, text)


@pytest.mark.deepspeed
@pytest.mark.parametrize(("text", "why"), REFUSED_BY_US)
def test_what_deepspeed_would_run_into_is_refused(tmp_path: Path, text: str, why: str) -> None:
    from deepspeed.launcher.runner import _parse_hostfile

    assert _parse_hostfile(text.splitlines())  # it says nothing
    with pytest.raises(LaunchError, match=re.escape(why)):
        hosts(tmp_path, text)


def test_all_wrong_lines_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"line 1 is 'a'.*line 2 is 'b slots'.*line 4 names c again"):
        hosts(tmp_path, "a\nb slots\nc slots=8\nc slots=8\n")


def test_a_file_of_something_else_is_told_in_few_words(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=r"line 5 is 'x4 slots=9{71}', not HOST slots=N; and 295 more$"):
        hosts(tmp_path, "".join(f"x{number} slots={'9' * 5000}\n" for number in range(300)))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match=f"cannot read the host file {tmp_path / 'no'}"):
        read_hosts(tmp_path / "no", cluster=cluster())
