"""The form that an answer must have."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octet.v1 import inference_pb2 as wire


@dataclass(frozen=True, slots=True)
class Json:
    """JSON that a schema describes; without one, any JSON object."""

    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Regex:
    """Text that the expression matches as a whole."""

    pattern: str


class Choice:
    """One of these texts."""

    __slots__ = ("choices",)

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __repr__(self) -> str:
        return f"Choice{self.choices!r}"


Structure = Mapping[str, Any] | Json | Regex | Choice
"""A mapping is a JSON Schema."""


def structure_of(asked: Structure) -> wire.Structure:
    """Raises TypeError for what is none, ValueError for a schema that is not JSON."""
    match asked:
        case Json(None):
            return wire.Structure(json_object=True)
        case Json(schema):
            return wire.Structure(json_schema=json.dumps(schema, allow_nan=False))
        case Regex(pattern):
            return wire.Structure(regex=pattern)
        case Choice():
            return wire.Structure(choice=wire.Choices(choices=asked.choices))
        case Mapping():
            return wire.Structure(json_schema=json.dumps(asked, allow_nan=False))
        case _:
            raise TypeError(f"{type(asked).__name__} is none")
