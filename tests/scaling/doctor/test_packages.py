"""Installed packages beside each other: as ``pip check`` says, and what the plan needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from scaling.doctor import packages
from scaling.doctor.packages import Package, conflicts, find_installed, findings, read_packages
from scaling.doctor.torch_build import TorchBuild
from scaling.severity import Severity
from strategies.job import OptimizerName
from tests.scaling.doctor.plans import cpu_plan, gpu_plan, told


def installed(*found: Package) -> dict[str, Package]:
    return {each.name: each for each in found}


TRANSFORMERS = Package(
    name="transformers",
    version="5.24.0",
    requires=("tokenizers<0.24.0,>=0.23.1", "accelerate>=1.1.0; extra == 'accelerate'", "ruff==0.1; extra == 'dev'"),
)
TOKENIZERS = Package(name="tokenizers", version="0.23.3")
DEEPSPEED = Package(name="deepspeed", version="0.19.8", requires=("torch>=2.0.0", "hjson", "docutils<1; extra=='x'"))


def test_conflicts_match_pip_check() -> None:
    answer = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    here = read_packages(find_installed)
    said = {
        line.split()[0].casefold() for line in answer.stdout.splitlines() if " requires " in line or " has " in line
    }
    assert {each.package.name for each in conflicts(here) if each.found is None} <= said
    assert said & set(here) <= {each.package.name for each in conflicts(here)}
    assert {"torch", "transformers", "numpy", "huggingface-hub"} <= set(here)


def test_a_version_that_transformers_refuses_is_an_error() -> None:
    old = Package(name="tokenizers", version="0.21.0")
    finding = told(findings(installed(TRANSFORMERS, old), None), "transformers 5.24.0 requires tokenizers")
    assert finding.severity is Severity.ERROR
    assert finding.message.endswith("and tokenizers 0.21.0 is installed")
    assert finding.fix == "pip install 'tokenizers<0.24.0,>=0.23.1'"
    # Extras that nobody uses pin what they like.
    assert list(findings(installed(TRANSFORMERS, TOKENIZERS, Package(name="ruff", version="9")), None)) == []
    refused = installed(TRANSFORMERS, TOKENIZERS, Package(name="accelerate", version="0.20"))
    assert told(findings(refused, None), "requires accelerate>=1.1.0").severity is Severity.ERROR


def test_transformers_refuses_what_is_said_to_be_refused() -> None:
    from pathlib import Path

    import transformers

    text = (Path(transformers.__file__).parent / "dependency_versions_check.py").read_text()
    for name in packages.REFUSES["transformers"]:
        assert f'"{name}",' in text


def test_what_a_package_lacks_counts_where_the_plan_imports_it() -> None:
    here = installed(DEEPSPEED, Package(name="torch", version="2.13.0+cpu"))
    assert told(findings(here, None), "deepspeed 0.19.8 requires hjson").severity is Severity.WARNING
    assert told(findings(here, cpu_plan("zero1", ranks=2)), "requires hjson").severity is Severity.ERROR
    assert told(findings(here, cpu_plan("ddp")), "requires hjson").severity is Severity.WARNING


def test_python_that_a_package_does_not_take() -> None:
    newer = Package(name="torch", version="9.0", requires_python=">=4.1")
    assert told(findings(installed(newer), None), "torch 9.0 requires Python >=4.1").severity is Severity.ERROR


def test_packages_that_the_plan_needs_and_are_not_there() -> None:
    fix = told(findings({}, cpu_plan("zero1", ranks=2)), "strategy=zero1 needs DeepSpeed").fix
    assert fix == "pip install 'memory-scaling[deepspeed]'"
    assert list(findings({}, cpu_plan("ddp"))) == []
    eight_bit = gpu_plan("zero2", optimizer=OptimizerName.ADAMW_8BIT)
    here = installed(DEEPSPEED, Package(name="torch", version="2"), Package(name="hjson", version="1"))
    assert "[optimizers]" in told(findings(here, eight_bit), "needs bitsandbytes").fix


def test_libraries_of_bitsandbytes_are_for_the_same_major_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    eight_bit = gpu_plan("zero2", optimizer=OptimizerName.ADAMW_8BIT)
    here = installed(
        DEEPSPEED,
        Package(name="torch", version="2"),
        Package(name="hjson", version="1"),
        Package(name="bitsandbytes", version="0.50.2"),
    )
    for cuda, is_told in (("13.1", False), ("12.9", False), ("19.0", True)):  # the installed one has 12 and 13
        monkeypatch.setattr(packages, "read_build", lambda _, cuda=cuda: TorchBuild(version="2.13.0", cuda=cuda))
        assert any("has libraries for CUDA" in each.message for each in findings(here, eight_bit)) is is_told
