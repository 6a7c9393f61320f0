"""``scaling doctor`` as a user runs it: machines with something missing, each named with its fix, and healthy ones."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from scaling.doctor import diagnose
from scaling.doctor.asked import Asked
from scaling.doctor.diagnose import CHECKS, Diagnosis
from scaling.doctor.findings import Area, Examined, error, examined, warning
from scaling.doctor.report import as_json, lines
from scaling.ports import free_port
from scaling.severity import Severity, exit_code
from strategies.emit.files import write_plan
from strategies.serialize import to_json
from tests.scaling.doctor.plans import NVME, asked, cpu_decision, gpu_plan
from tests.scaling.launching import REPOSITORY, run_cli


def doctor(
    *words: str, before: str = "", path: str = "/usr/bin:/bin", environ: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the JSON of ``scaling doctor``, run by a shell after ``before``."""
    program = f"{sys.executable} -m scaling doctor --json {' '.join(words)}"
    done = subprocess.run(
        ["/bin/bash", "-c", f"{before}\nexec {program}"],
        cwd=REPOSITORY,
        env={"PATH": path, "HOME": str(Path.home()), "OMP_NUM_THREADS": "1", **(environ or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def told(answer: Mapping[str, Any], text: str) -> dict[str, str]:
    (found,) = [each for each in answer["findings"] if text in each["message"]]
    assert found["fix"]
    return dict(found)


@pytest.fixture(scope="module")
def cpu_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for two CPU ranks under ZeRO-2."""
    folder = tmp_path_factory.mktemp("cpu")
    write_plan(cpu_decision("zero2", ranks=2), folder=folder)
    return folder / "plan.json"


@pytest.fixture(scope="module")
def nvme_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan whose states rest on NVMe."""
    path = tmp_path_factory.mktemp("nvme") / "plan.json"
    path.write_text(to_json(gpu_plan("zero3", offload_optimizer=NVME, offload_param=NVME).decision))
    return path


def test_a_healthy_machine_and_a_plan_that_runs_on_it(cpu_file: Path, tmp_path: Path) -> None:
    code, answer = doctor("--plan", str(cpu_file), "--out", str(tmp_path), "--master-port", str(free_port()))
    assert (code, answer["exit_code"]) == (0, 0)
    assert [each for each in answer["findings"] if each["severity"] == "error"] == []
    assert set(answer["facts"]) == set(Area)
    assert answer["facts"]["devices"]["cpu_cores"] > 0


@pytest.mark.deepspeed
def test_a_machine_without_a_compiler(nvme_file: Path, tmp_path: Path) -> None:
    bare = str(tmp_path)  # nothing is on PATH
    extensions = {"TORCH_EXTENSIONS_DIR": str(tmp_path / "extensions")}
    program = f"exec {sys.executable} -m scaling doctor --json"
    done = subprocess.run(
        ["/bin/bash", "-c", program], cwd=REPOSITORY, env={"PATH": bare, **extensions}, capture_output=True, text=True
    )
    finding = told(json.loads(done.stdout), "there is no C++ compiler (c++ is not on PATH)")
    assert (finding["severity"], finding["area"]) == ("warning", "operators")
    assert "apt-get install g++" in finding["fix"]
    code, answer = doctor("--plan", str(nvme_file), path=bare, environ=extensions)
    assert code == 2
    needed = told(answer, "the plan needs DeepSpeed's async_io and pin_memory")
    assert (needed["severity"], needed["area"]) == ("error", "operators")


def test_64_kib_of_locked_memory(nvme_file: Path, tmp_path: Path) -> None:
    status = tmp_path / "status"  # a user without CAP_IPC_LOCK, whom the limit binds
    status.write_text("Name:\tpython\nCapEff:\t0000000000000000\n")
    program = (
        "import sys; from pathlib import Path; from strategies import detect; "
        f"detect.PROCESS_STATUS = Path({str(status)!r}); from scaling.cli import main; main()"
    )

    def limited(*words: str) -> tuple[int, dict[str, Any]]:
        command = f'ulimit -l 64; exec {sys.executable} -c "{program}" doctor --json {" ".join(words)}'
        done = subprocess.run(["bash", "-c", command], cwd=REPOSITORY, capture_output=True, text=True)
        return done.returncode, json.loads(done.stdout)

    _, general = limited()
    finding = told(general, "ulimit -l is 64.00 KiB")
    assert (finding["severity"], finding["area"]) == ("warning", "limits")
    assert "ulimit -l unlimited" in finding["fix"]
    code, answer = limited("--plan", str(nvme_file))
    assert code == 2
    assert told(answer, "a rank of the plan locks")["severity"] == "error"


def test_a_disk_that_takes_nothing_more(cpu_file: Path, tmp_path: Path) -> None:
    code, answer = doctor("--plan", str(cpu_file), "--out", str(tmp_path / "run"), before="ulimit -f 4")
    assert code == 2
    finding = told(answer, f"run folder, {tmp_path}/run: cannot be written")
    assert (finding["severity"], finding["area"]) == ("error", "disk")
    assert "File too large" in finding["message"]
    assert "--out" in finding["fix"]
    assert told(answer, "ulimit -f is 4.00 KiB")


def test_a_port_that_is_taken(cpu_file: Path, tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        code, answer = doctor("--plan", str(cpu_file), "--out", str(tmp_path), environ={"MASTER_PORT": str(port)})
    assert code == 0
    finding = told(answer, f"port {port} (MASTER_PORT={port}) is in use by")
    assert (finding["severity"], finding["area"]) == ("warning", "port")
    assert "deepspeed --master_port" in finding["fix"]


def test_nothing_heavy_is_imported_without_a_plan() -> None:
    program = (
        "import os, sys; from pathlib import Path; from scaling.doctor.asked import Asked; "
        "from scaling.doctor.diagnose import diagnose; "
        "diagnose(Asked(plan=None, environ=os.environ, out=Path('.'))); "
        "print([each for each in ('torch', 'deepspeed', 'transformers', 'tensorflow') if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_no_plan_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(monkeypatch, ["doctor", "--plan", "/no/such/plan.json"]) == 2
    assert capsys.readouterr().err.startswith("error: cannot read the plan /no/such/plan.json")


def test_a_check_that_fails_is_a_note_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def strange(asked: Asked) -> Examined:
        raise PermissionError("/proc/meminfo may not be read")

    found = diagnose.diagnose(asked(), {**CHECKS, Area.HOST_MEMORY: strange})
    (note,) = [each for each in found.findings if "could not be looked at" in each.message]
    assert note.severity is Severity.NOTE
    assert note.message == "host memory could not be looked at: PermissionError: /proc/meminfo may not be read"
    assert [each.area for each in found.examined] == list(CHECKS)


def test_every_check_bears_a_machine_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from scaling.doctor import nvme, port, processes, shared_memory, toolchain
    from strategies import detect

    for module, names in (
        (processes, ("PROCESSES",)),
        (port, ()),
        (shared_memory, ("FOLDER",)),
        (nvme, ("MOUNTS",)),
        (detect, ("CGROUPS", "OWN_CGROUPS", "MEMORY_INFO", "PROCESS_STATUS")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, tmp_path / "absent")
    monkeypatch.setattr(port, "TCP_TABLES", (tmp_path / "absent",))
    monkeypatch.setattr(toolchain, "INCLUDES", ())
    found = diagnose.diagnose(Asked(plan=None, environ={}, out=tmp_path, nvme_path=tmp_path))
    assert [each.message for each in found.findings if "could not be looked at" in each.message] == []


def test_report_tells_the_gravest_first_and_sizes_in_units() -> None:
    found = Diagnosis(
        asked=asked(),
        examined=(
            examined(Area.DEVICES, [warning("slow", "faster")], gpus="none", gpu_memory_bytes=3 * 2**30),
            examined(Area.DISK, [error("full", "empty it")], free_bytes=2**20, rate_bytes_per_s=2**30),
        ),
    )
    assert list(lines(found)) == [
        "This machine: 1 error, 1 warning",
        "",
        "error    full",
        "         -> empty it",
        "warning  slow",
        "         -> faster",
        "",
        "Here:",
        "  devices        gpus none; gpu memory 3.00 GiB",
        "  disk           free 1.00 MiB; rate 1.00 GiB/s",
    ]
    assert exit_code(found.findings) == as_json(found, plan=None)["exit_code"] == 2
