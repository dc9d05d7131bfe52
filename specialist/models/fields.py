"""Checked values from untrusted files."""

from collections.abc import Mapping
from math import isfinite


class ModelRefused(ValueError):
    """The files are not a model that can be served. The message states the problem and what to do."""


LARGEST = 2**31 - 1


class ModelFields:
    """Checked access to values read from `source`. The error for a wrong type or range names the value."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self.source = source
        self.values = values

    def has(self, name: str) -> bool:
        return self.values.get(name) is not None

    def integer(self, name: str, default: int | None = None, *, low: int = 1, high: int = LARGEST) -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, f"must be an integer, got {value!r:.80}")
        if not low <= value <= high:
            raise self.wrong(name, f"must be between {low:,} and {high:,}, got {str(value)[:40]}")
        return value

    def number(self, name: str, default: float | None = None, *, low: float = 0.0, high: float = 1e12) -> float:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, f"must be a number, got {value!r:.80}")
        if not (low < value <= high and isfinite(value)):
            raise self.wrong(name, f"must be above {low:g} and at most {high:g}, got {str(value)[:40]}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        return self.number(name) if self.has(name) else None

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, f"must be true or false, got {value!r:.80}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, f"must be text, got {value!r:.80}")
        return value

    def optional_text(self, name: str) -> str | None:
        return self.text(name) if self.has(name) else None

    def table(self, name: str) -> "ModelFields":
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, f"must be an object, got {value!r:.80}")
        return ModelFields(f"{self.source}: {name}", value)

    def listed(self, name: str) -> list[object]:
        value = self._value(name, None)
        if not isinstance(value, list):
            raise self.wrong(name, f"must be a list, got {value!r:.80}")
        return value

    def texts(self, name: str) -> list[str]:
        words = [word for word in self.listed(name) if isinstance(word, str)]
        if len(words) != len(self.listed(name)):
            raise self.wrong(name, "must be a list of strings")
        return words

    def wrong(self, name: str, why: str) -> ModelRefused:
        return ModelRefused(f"{self.source}: {name} {why}")

    def _value(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is None and default is None:
            raise self.wrong(name, "is missing: the file is incomplete; fetch or convert the model again")
        return default if value is None else value
