"""The port of the launchers, with real sockets."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from scaling.doctor import port
from scaling.ports import free_port
from scaling.severity import Severity
from tests.scaling.doctor.plans import asked, cpu_plan, gpu_plan, told


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield int(listener.getsockname()[1])


def test_a_taken_port_is_named_with_its_holder(taken: int) -> None:
    facts = port.read(taken, "--master-port")
    assert not facts.is_free
    assert facts.holder.endswith(f"(process {os.getpid()})")
    finding = told(port.findings(facts, cpu_plan("ddp", ranks=2)), f"port {taken} (--master-port) is in use")
    assert finding.severity is Severity.WARNING  # torchrun and accelerate take another
    assert finding.message.endswith(": deepspeed stops there")
    assert f"deepspeed --master_port {facts.another}" in finding.fix
    assert f"kill {os.getpid()}" in finding.fix
    apart = told(port.findings(facts, gpu_plan(gpus=16)), "if this is the first node")
    assert apart.severity is Severity.ERROR
    assert f"--master-port {facts.another} on every node" in apart.fix
    assert told(port.findings(facts, cpu_plan("ddp", ranks=1)), "is in use").severity is Severity.WARNING
    assert told(port.findings(facts, None), "is in use").severity is Severity.WARNING


def test_a_free_port_is_nothing_to_tell() -> None:
    facts = port.read(free_port(), "--master-port")
    assert facts.is_free
    assert list(port.findings(facts, gpu_plan())) == []
    assert port.holder_of(facts.number) == ""


def test_the_port_is_that_of_the_next_launch() -> None:
    assert port.wanted(asked()) == (29500, "the launchers' default")
    assert port.wanted(asked(MASTER_PORT="1234")) == (1234, "MASTER_PORT=1234")
    assert port.wanted(asked(port=77, MASTER_PORT="1234")) == (77, "--master-port")
    for text in ("0", "http", "99999"):
        for plan in (None, cpu_plan("ddp", ranks=2)):
            found = port.examine(asked(plan, MASTER_PORT=text)).findings
            assert told(found, f"MASTER_PORT={text} is no port").severity is Severity.WARNING
