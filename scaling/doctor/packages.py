"""Installed packages beside each other: what each says it requires, against what there is. Nothing is imported."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error, error_if, examined, warning
from scaling.doctor.torch_build import package_folder, read_build

OURS = "memory-scaling"
CORE = (OURS, "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy")
OPTIONAL = (
    *("deepspeed", "bitsandbytes", "tensorflow", "keras", "tensorboard", "wandb", "peft", "triton"),
    *("torchvision", "torchaudio", "torchao", "xformers", "flash-attn", "liger-kernel"),
)
"""What is looked at where it is there: packages that are tied to some versions of the core."""
EXTRAS: Mapping[str, tuple[str, ...]] = {
    OURS: ("deepspeed", "optimizers", "tensorflow", "loggers"),
    "transformers": ("torch", "accelerate", "deepspeed"),
    "accelerate": ("deepspeed",),
}
"""Extras whose versions count where the package is installed: what a program uses beside it, it must be able to use."""
REFUSES = {
    "transformers": (
        *("tqdm", "regex", "packaging", "filelock", "numpy", "tokenizers", "huggingface-hub", "safetensors"),
        *("accelerate", "pyyaml"),
    )
}
"""What a package refuses to be imported with (transformers 5.24, dependency_versions_check.py); else it tries."""
SHOWN = ("torch", "deepspeed", "accelerate", "transformers", "tokenizers", "numpy", "tensorflow", "bitsandbytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What an installed package says of itself."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    requires_python: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A requirement that is not met."""

    package: Package
    requirement: str
    """As pip takes it: ``tokenizers<0.24.0,>=0.23.1``."""
    name: str
    """Of what is required."""
    found: str | None
    """Its version; None where it is not installed."""


Find = Callable[[str], Package | None]


def examine(asked: Asked) -> Examined:
    packages = read_packages(find_installed)
    shown = {name: packages[name].version if name in packages else None for name in SHOWN}
    return examined(Area.PACKAGES, findings(packages, asked.plan), python=platform.python_version(), **shown)


def find_installed(name: str) -> Package | None:
    """Return an installed package, None where there is none of that name or its description is broken."""
    try:
        found = importlib.metadata.distribution(name)
        return Package(
            name=canonicalize_name(name),
            version=found.version,
            requires=tuple(found.requires or ()),
            requires_python=str(found.metadata.json.get("requires_python", "")),
        )
    except (importlib.metadata.PackageNotFoundError, OSError, KeyError, TypeError, ValueError):
        return None


def read_packages(find: Find) -> dict[str, Package]:
    """Return what is installed of the packages that training imports, and of all they require, by name."""
    found: dict[str, Package] = {}
    waiting, seen = [*CORE, *OPTIONAL], set[str]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        if package := find(name):
            found[name] = package
            waiting += [each.name for each, _ in _requirements(package)]
    return found


def findings(packages: Mapping[str, Package], plan: Needs | None) -> Iterator[Finding]:
    """Yield what does not go together, and what the plan needs and is not there."""
    for conflict in conflicts(packages):
        yield _told(conflict, plan)
    for package in packages.values():
        if not _takes_python(package.requires_python, platform.python_version()):
            yield error(
                f"{package.name} {package.version} requires Python {package.requires_python}, and this is "
                f"{platform.python_version()}",
                f"make an environment with such a Python, or pip install -U {package.name}",
            )
    if plan is not None:
        yield from _missing(packages, plan)


def conflicts(packages: Mapping[str, Package]) -> Iterator[Conflict]:
    """Yield every requirement that is not met, as ``pip check`` does, and versions that an extra would not take."""
    for package in packages.values():
        for requirement, extra in _requirements(package):
            found = packages.get(canonicalize_name(requirement.name))
            if found is None and extra:
                continue  # nobody asked for the extra
            if found is None or not requirement.specifier.contains(found.version, prereleases=True):
                yield Conflict(
                    package=package,
                    requirement=f"{requirement.name}{requirement.specifier}",
                    name=canonicalize_name(requirement.name),
                    found=found.version if found else None,
                )


def _requirements(package: Package) -> Iterator[tuple[Requirement, str]]:
    """Yield what a package requires here, with the extra that asks for it, empty where it is always required."""
    extras = ("", *EXTRAS.get(package.name, ()))
    for text in package.requires:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        for extra in extras:
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield requirement, extra
                break


def _told(conflict: Conflict, plan: Needs | None) -> Finding:
    package = conflict.package
    stops = package.name == OURS or conflict.found is None or conflict.name in REFUSES.get(package.name, ())
    there = f"{conflict.name} {conflict.found} is installed" if conflict.found else "it is not installed"
    return error_if(
        stops and _is_needed(package.name, plan),
        f"{package.name} {package.version} requires {conflict.requirement}, and {there}",
        f"pip install '{conflict.requirement}'",
    )


def _is_needed(package: str, plan: Needs | None) -> bool:
    """Return whether every run imports the package, or the plan's does."""
    match package:
        case "deepspeed":
            return plan is not None and plan.runs_deepspeed
        case "tensorflow" | "keras":
            return plan is not None and plan.runs_tensorflow
        case "bitsandbytes":
            return plan is not None and plan.needs_bitsandbytes
    return package in CORE


def _takes_python(specifier: str, version: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True


def _missing(packages: Mapping[str, Package], plan: Needs) -> Iterator[Finding]:
    strategy, optimizer = plan.decision.plan.strategy, plan.decision.job.optimizer
    if plan.runs_deepspeed and "deepspeed" not in packages:
        yield error(f"strategy={strategy} needs DeepSpeed, which is not installed", _extra("deepspeed"))
    if plan.runs_tensorflow and "tensorflow" not in packages:
        yield error(f"strategy={strategy} needs TensorFlow, which is not installed", _extra("tensorflow"))
    if plan.needs_bitsandbytes:
        if "bitsandbytes" not in packages:
            yield error(f"optimizer={optimizer} needs bitsandbytes, which is not installed", _extra("optimizers"))
        elif plan.on_gpus:
            yield from _bitsandbytes(packages["bitsandbytes"])


def _extra(name: str) -> str:
    return f"pip install '{OURS}[{name}]'"


def _bitsandbytes(package: Package) -> Iterator[Finding]:
    """Yield where it has no library for torch's CUDA: it takes any of the same major version (cextension.py, 0.50)."""
    cuda, folder = read_build(package_folder("torch")).cuda, package_folder("bitsandbytes")
    if cuda is None or folder is None:
        return
    made_for = sorted(path.stem.rpartition("cuda")[2] for path in folder.glob("libbitsandbytes_cuda*.so"))
    if not any(each.startswith(cuda.split(".")[0]) for each in made_for):
        yield warning(
            f"bitsandbytes {package.version} has libraries for CUDA {', '.join(made_for) or 'none'}, and torch is for "
            f"CUDA {cuda}",
            "pip install -U bitsandbytes",
        )
