"""DeepSpeed's operators: what the plan needs of them, and what compiling them takes."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from scaling.doctor import operators, toolchain
from scaling.doctor.asked import PIN_BACKEND, Needs
from scaling.doctor.commands import Answer, ask
from scaling.doctor.findings import Finding
from scaling.doctor.toolchain import ASYNC_IO, CPU_ADAM, PIN_MEMORY, State
from scaling.doctor.torch_build import TorchBuild, package_folder, read_build
from scaling.severity import Severity
from tests.scaling.doctor.plans import CPU, NVME, cpu_plan, gpu_plan, told

pytestmark = pytest.mark.deepspeed
NVCC = "Cuda compilation tools, release 13.0, V13.0.88\n"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment with a compiler, ninja and libaio, and no operator yet."""
    for name in ("c++", "ninja", "nvcc"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "libaio.h").touch()
    include = str(tmp_path / "include")
    return {"PATH": str(tmp_path / "bin"), "CPATH": include, "TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}


@pytest.fixture(autouse=True)
def nowhere_else(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of this machine only DeepSpeed and torch count."""
    monkeypatch.setattr(toolchain, "INCLUDES", ())
    headers = tmp_path / "python"
    headers.mkdir()
    (headers / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(headers)})


def found(environ: Mapping[str, str], plan: Needs | None = None) -> list[Finding]:
    facts = operators.read(environ, lambda _: Answer(status=0, out=NVCC))
    return list(operators.findings(facts, plan, environ))


def without(environ: Mapping[str, str], name: str) -> dict[str, str]:
    Path(environ["PATH"], name).unlink()
    return dict(environ)


def test_with_everything_nothing_is_missing(environ: dict[str, str]) -> None:
    facts = operators.read(environ, lambda _: Answer(status=0, out=NVCC))
    assert {each.state for each in facts.operators} == {State.TO_COMPILE}
    assert facts.toolchain.nvcc_version == "13.0"
    for plan in (None, cpu_plan("zero2", ranks=2), gpu_plan("zero3", offload_optimizer=NVME, offload_param=NVME)):
        assert found(environ, plan) == []


def test_no_compiler_is_as_grave_as_the_plan_makes_it(environ: dict[str, str]) -> None:
    environ = without(environ, "c++")
    general = told(found(environ), "there is no C++ compiler (c++ is not on PATH)")
    assert general.severity is Severity.WARNING
    assert "apt-get install g++" in general.fix
    nvme = told(
        found(environ, gpu_plan("zero3", offload_optimizer=NVME, offload_param=NVME)), "async_io and pin_memory"
    )
    assert nvme.severity is Severity.ERROR
    # Our update on the host is torch's: CPU Adam is not needed, which is said.
    offloaded = told(found(environ, gpu_plan("zero2", offload_optimizer=CPU)), "DeepSpeedCPUAdam cannot be compiled")
    assert offloaded.severity is Severity.NOTE
    assert told(found(environ, cpu_plan("ddp")), "the plan uses none").severity is Severity.NOTE
    assert found({**environ, "CXX": "/bin/sh"}) == []  # whatever CXX names is called


def test_a_compiler_that_is_too_old_or_broken_is_tried_and_told(environ: dict[str, str]) -> None:
    compiler = Path(environ["PATH"], "c++")

    def tried(script: str) -> list[Finding]:
        compiler.write_text(f"#!/bin/sh\n{script}\n")
        return list(operators.findings(operators.read(environ, ask), None, environ))

    old = "c++: error: unrecognized command line option '-std=c++20'"
    assert told(tried(f'echo "{old}" >&2; exit 1'), f"{compiler} compiles nothing").message.endswith(
        f"{old}: DeepSpeed's operators (CPU Adam, async I/O) cannot be compiled"
    )
    assert tried("exit 0") == []


def test_plans_tell_deepspeed_not_to_use_its_cpu_adam() -> None:
    config = gpu_plan("zero2", offload_optimizer=CPU).decision.deepspeed_config()
    assert config["zero_force_ds_cpu_optimizer"] is False
    assert operators.needed(gpu_plan("zero2", offload_optimizer=CPU), {}) == ()


def test_no_ninja_and_no_libaio(environ: dict[str, str]) -> None:
    nvme = gpu_plan("zero3", offload_optimizer=NVME, offload_param=NVME)
    Path(environ["CPATH"], "libaio.h").unlink()
    assert "libaio-dev" in told(found(environ, nvme), "libaio.h is not found").fix
    assert "pip install ninja" in told(found(without(environ, "ninja"), nvme), "no ninja").fix


def test_operators_that_are_there_need_no_compiler_but_async_io(environ: dict[str, str]) -> None:
    for name in (CPU_ADAM, ASYNC_IO, PIN_MEMORY):
        library = Path(environ["TORCH_EXTENSIONS_DIR"], name, f"{name}.so")
        library.parent.mkdir(parents=True)
        library.touch()
    environ = without(environ, "c++")
    assert found(environ) == []
    native = {**environ, PIN_BACKEND: "native"}
    assert found(native, gpu_plan("zero2", offload_optimizer=CPU)) == []
    # It compiles and links a test program whenever it is loaded.
    nvme = gpu_plan("zero3", offload_optimizer=NVME, offload_param=NVME)
    assert told(found(environ, nvme), "the plan needs DeepSpeed's async_io, to be compiled")


def test_pinning_by_deepspeed_itself_needs_its_operator(environ: dict[str, str]) -> None:
    native = {**without(environ, "c++"), PIN_BACKEND: "native"}
    assert told(found(native, gpu_plan("zero2", offload_optimizer=CPU)), "pin_memory").severity is Severity.ERROR


def test_a_build_that_was_killed_keeps_the_next_waiting(environ: dict[str, str]) -> None:
    lock = Path(environ["TORCH_EXTENSIONS_DIR"], CPU_ADAM, "lock")
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert found(environ) == []  # somebody builds it now
    os.utime(lock, (lock.stat().st_mtime - 3600,) * 2)
    assert told(found(environ), "60 minutes old").fix == f"rm -r {lock.parent}"


def test_operators_built_for_another_torch_are_told(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / toolchain.INSTALLED).write_text(
        "version='0.19.8'\ninstalled_ops={'async_io': False, 'cpu_adam': True, 'pin_memory': True}\n"
        "accelerator_name='cuda'\ntorch_info={'version': '2.4', 'bf16_support': True, 'cuda_version': '12.1'}\n"
    )
    prebuilt = toolchain.read_prebuilt(tmp_path)
    assert prebuilt == toolchain.Prebuilt(names=("cpu_adam", "pin_memory"), torch="2.4", accelerator="cuda")
    facts = operators.read(environ, lambda _: None)
    build = TorchBuild(version="2.13.0", cuda="13.0")
    finding = told(
        operators.findings(replace(facts, prebuilt=prebuilt, build=build), None, environ), "were built for torch 2.4"
    )
    assert "--no-cache-dir deepspeed" in finding.fix


def test_cuda_of_another_major_version_is_told(environ: dict[str, str]) -> None:
    facts = operators.read(environ, lambda _: Answer(status=0, out=NVCC))
    older = replace(facts, build=TorchBuild(version="2.8.0", cuda="12.8"))
    assert told(operators.findings(older, None, environ), "nvcc is of CUDA 13.0").severity is Severity.NOTE


def test_extensions_lie_where_torch_puts_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch.utils import cpp_extension

    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    ours = toolchain.extensions_folder({"XDG_CACHE_HOME": str(tmp_path / "cache")}, read_build(package_folder("torch")))
    assert str(ours / "cpu_adam") == cpp_extension._get_build_directory("cpu_adam", verbose=False)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "named"))
    named = toolchain.extensions_folder({"TORCH_EXTENSIONS_DIR": str(tmp_path / "named")}, TorchBuild(version="2"))
    assert str(named / "cpu_adam") == cpp_extension._get_build_directory("cpu_adam", verbose=False)


def test_what_deepspeed_installed_is_read_as_deepspeed_reads_it() -> None:
    scope: dict[str, object] = {}
    folder = package_folder("deepspeed")
    assert folder is not None
    exec((folder / toolchain.INSTALLED).read_text(), scope)
    prebuilt = toolchain.read_prebuilt(folder)
    built = {name for name, there in scope["installed_ops"].items() if there}  # type: ignore[attr-defined]
    assert set(prebuilt.names) == built
    assert prebuilt.accelerator == scope["accelerator_name"]
    assert prebuilt.torch == scope["torch_info"]["version"]  # type: ignore[index]
