"""A cost model that was measured: `octet bench engine --calibrate FILE` writes it, a simulation reads it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from math import isfinite
from typing import Any

from specialist.engines.sim.cost import CostModel


class CalibrationInvalid(ValueError):
    """Not what a calibration writes. Names the field."""


def cost_model_to_json(cost: CostModel, about: Mapping[str, Any]) -> str:
    """`about` says where the figures come from; nothing but people reads it."""
    return json.dumps({"cost": asdict(cost), "about": about}, indent=2, allow_nan=False) + "\n"


def cost_model_from_json(text: str) -> CostModel:
    """Raises CalibrationInvalid unless every cost is there, finite and not negative."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise CalibrationInvalid(f"not JSON: {error}") from error
    cost = document.get("cost") if isinstance(document, dict) else None
    if not isinstance(cost, dict):
        raise CalibrationInvalid("cost: must be an object")
    names = {field.name for field in fields(CostModel)}
    if set(cost) != names:
        raise CalibrationInvalid(f"cost: must have exactly {sorted(names)}, got {sorted(cost)}")
    return CostModel(**{name: _seconds(name, value) for name, value in cost.items()})


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool) or not isfinite(value) or value < 0:
        raise CalibrationInvalid(f"cost.{name}: must be a finite number of seconds, at least 0, got {value!r}")
    return float(value)
