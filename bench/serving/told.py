"""What an endpoint is told of a request's class, in words that it knows."""

from collections.abc import Callable
from typing import Any

from bench.serving.classes import CallerClass

FieldsForClass = Callable[[CallerClass], dict[str, Any]]
"""More fields of a request, for whoever asks."""
_HIGHEST = 9


def is_octet(model: str) -> bool:
    return model == "octet" or model.startswith("octet/")


def told_to(model: str) -> FieldsForClass:
    return to_octet if is_octet(model) else to_others


def to_octet(caller: CallerClass) -> dict[str, Any]:
    times = {"timeout_ms": caller.total, "first_token_timeout_ms": caller.ttft}
    own = {name: max(1, round(1000 * seconds)) for name, seconds in times.items()}
    return {"octet": {"priority": caller.priority, **own}}


def to_vllm(caller: CallerClass) -> dict[str, Any]:
    """With it the lower number comes first; of deadlines it knows nothing."""
    return {"priority": _HIGHEST - caller.priority}


def to_others(_: CallerClass) -> dict[str, Any]:
    return {}
