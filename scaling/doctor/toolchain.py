"""What compiles DeepSpeed's operators: a compiler, ninja, CUDA's, libaio; and which operators there are already.

Sources: deepspeed 0.19.8, ops/op_builder; torch 2.13, utils/cpp_extension.py and utils/file_baton.py. Read from files:
importing DeepSpeed takes 5 to 10 s and prints.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from scaling.doctor.commands import Ask
from scaling.doctor.torch_build import TorchBuild

CPU_ADAM, ASYNC_IO, PIN_MEMORY = "cpu_adam", "async_io", "pin_memory"
OPERATORS = (CPU_ADAM, ASYNC_IO, PIN_MEMORY)
INSTALLED = "git_version_info_installed.py"
"""In DeepSpeed's folder: what was built when it was installed, for which torch."""
LOCK = "lock"
"""In an operator's folder while it is compiled. A build that is killed leaves it, and the next one waits for ever."""
INCLUDES = ("/usr/include", "/usr/local/include", f"/usr/include/{os.uname().machine}-linux-gnu")


FLAGS = ("-std=c++20", "-fopenmp", "-fPIC", "-shared")
"""What torch 2.13 and DeepSpeed compile and link with; older compilers know no C++20, some come without OpenMP."""
TRIAL = """#include <omp.h>
#include <vector>
std::vector<int> threads() { return {omp_get_max_threads()}; }
"""


class State(StrEnum):
    """Whether an operator is there."""

    PREBUILT = "prebuilt"
    """With DeepSpeed."""
    CACHED = "cached"
    """Compiled by an earlier run."""
    TO_COMPILE = "to be compiled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One of DeepSpeed's extensions."""

    name: str
    state: State
    folder: Path
    """Where it is compiled and kept."""
    lock_age_s: float | None
    """Since somebody began to compile it; None where nobody is at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """What compiling takes."""

    compiler: str
    """The command that torch calls: CXX, else c++."""
    compiler_path: str | None
    ninja_path: str | None
    nvcc_version: str | None
    """CUDA's compiler; None where there is none."""
    has_libaio: bool
    has_python_headers: bool
    failure: str = ""
    """Of a trial of the compiler; empty where it compiles and links."""

    @property
    def problem(self) -> str:
        """Why no operator can be compiled; empty where nothing is known against it."""
        if missing := self._missing:
            return f"there is no {' and no '.join(missing)}"
        return f"{self.compiler_path} compiles nothing that torch's headers need: {self.failure}" * bool(self.failure)

    @property
    def _missing(self) -> tuple[str, ...]:
        there = {
            f"C++ compiler ({self.compiler} is not on PATH)": self.compiler_path,
            "ninja (not on PATH)": self.ninja_path,
            "Python.h": self.has_python_headers,
        }
        return tuple(name for name, found in there.items() if not found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prebuilt:
    """What DeepSpeed was installed with."""

    names: tuple[str, ...] = ()
    torch: str = ""
    """Major and minor version that they were built for."""
    accelerator: str = ""


def read_toolchain(environ: Mapping[str, str], ask: Ask) -> Toolchain:
    """Return what is there, by ``PATH`` and the variables that torch looks at."""
    path = environ.get("PATH", os.defpath)
    compiler = environ.get("CXX") or "c++"
    compiler_path = shutil.which(compiler, path=path)
    nvcc = _nvcc(environ, path)
    answer = ask((nvcc, "--version")) if nvcc else None
    release = re.search(r"release (\d+\.\d+)", answer.out) if answer else None
    return Toolchain(
        compiler=compiler,
        compiler_path=compiler_path,
        ninja_path=shutil.which("ninja", path=path),
        nvcc_version=release[1] if release else None,
        has_libaio=_has_header("libaio.h", environ),
        has_python_headers=_python_include().joinpath("Python.h").is_file(),
        failure=_failure(compiler_path, ask) if compiler_path else "",
    )


def _failure(compiler: str, ask: Ask) -> str:
    """Return what a compiler says to a small shared library as DeepSpeed has them, empty where it makes one."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "trial.cpp")
            source.write_text(TRIAL)
            answer = ask((compiler, *FLAGS, str(source), "-o", f"{folder}/trial.so"))
    except OSError:  # nothing can be written, which is told elsewhere
        return ""
    if answer is None or answer.status == 0:
        return "" if answer else "it cannot be started"
    errors = [line for line in answer.err.splitlines() if "error" in line]
    return errors[0].strip()[:200] if errors else answer.last_line


def _nvcc(environ: Mapping[str, str], path: str) -> str | None:
    """Return CUDA's compiler where torch looks for it: CUDA_HOME, PATH, /usr/local/cuda."""
    home = environ.get("CUDA_HOME") or environ.get("CUDA_PATH")
    if home:
        return shutil.which(f"{home}/bin/nvcc")
    return shutil.which("nvcc", path=path) or shutil.which("/usr/local/cuda/bin/nvcc")


def _has_header(name: str, environ: Mapping[str, str]) -> bool:
    flags = re.findall(r"-I\s*(\S+)", environ.get("CFLAGS", ""))
    paths = environ.get("CPATH", "").split(os.pathsep)
    return any(Path(folder, name).is_file() for folder in (*flags, *paths, *INCLUDES) if folder)


def _python_include() -> Path:
    import sysconfig

    return Path(sysconfig.get_paths()["include"])


def read_prebuilt(deepspeed: Path | None) -> Prebuilt:
    """Return what is built in DeepSpeed's folder."""
    try:
        text = (deepspeed / INSTALLED).read_text() if deepspeed else ""
    except OSError:
        text = ""
    operators = re.search(r"^installed_ops\s*=\s*(\{.*\})$", text, re.MULTILINE)
    version = re.search(r"^torch_info\s*=.*'version': '([^']+)'", text, re.MULTILINE)
    accelerator = re.search(r"^accelerator_name\s*=\s*'([^']*)'", text, re.MULTILINE)
    return Prebuilt(
        names=tuple(re.findall(r"'(\w+)': True", operators[1])) if operators else (),
        torch=version[1] if version else "",
        accelerator=accelerator[1] if accelerator else "",
    )


def extensions_folder(environ: Mapping[str, str], build: TorchBuild) -> Path:
    """Return where torch compiles operators to and looks for them."""
    if explicit := environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(explicit)
    root = Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "torch_extensions"
    made_for = f"rocm{build.hip}" if build.hip else f"cu{build.cuda}" if build.cuda else "cpu"
    return root / f"py{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}_{made_for.replace('.', '')}"


def read_operators(folder: Path, prebuilt: Prebuilt, *, now_s: float) -> tuple[Operator, ...]:
    """Return the state of the operators that offload can use."""
    return tuple(_operator(name, folder / name, prebuilt, now_s=now_s) for name in OPERATORS)


def _operator(name: str, folder: Path, prebuilt: Prebuilt, *, now_s: float) -> Operator:
    cached = (folder / f"{name}.so").is_file()
    state = State.PREBUILT if name in prebuilt.names else State.CACHED if cached else State.TO_COMPILE
    try:
        lock_age_s = now_s - (folder / LOCK).stat().st_mtime
    except OSError:
        lock_age_s = None
    return Operator(name=name, state=state, folder=folder, lock_age_s=lock_age_s)
