"""The plan's model: whether its files are here, and whether the hub may be asked for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from scaling.doctor.asked import Asked, Needs
from scaling.doctor.findings import Area, Examined, Finding, error, examined, note
from strategies.hub_config import cached_folder, is_hub_id, is_offline
from strategies.load_model import preset_path


def examine(asked: Asked) -> Examined:
    plan = asked.plan
    return examined(
        Area.MODEL,
        findings(plan, asked.environ),
        hub="offline" if is_offline(asked.environ) else "may be asked",
        model=plan.decision.model if plan else None,
    )


def findings(plan: Needs | None, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield where the model's config cannot be had: training reads it again by the name in the plan."""
    if plan is None:
        return
    model = plan.decision.model
    if _exists(model) or preset_path(model) or cached_folder(model, environ):
        return
    if not is_hub_id(model) or model.startswith((".", "~")):
        yield error(
            f"the plan's model {model} is not here", "run where the plan was made, or plan again with the path here"
        )
    elif is_offline(environ):
        yield error(
            f"the plan's model {model} is not in the cache of the hub, and the hub may not be asked (HF_HUB_OFFLINE or "
            f"TRANSFORMERS_OFFLINE)",
            f"on a machine with a network: hf download {model}; or unset HF_HUB_OFFLINE TRANSFORMERS_OFFLINE",
        )
    else:
        yield note(f"the plan's model {model} is not in the cache of the hub: training downloads it")


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError):  # a name that is too long; the home folder of a user that does not exist
        return False
