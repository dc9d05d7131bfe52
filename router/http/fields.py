"""A JSON object, read field by field. null is the same as nothing; every method raises Fault: field, limit, value."""

import json
from collections.abc import Mapping
from typing import Any

from octet.rpc.refusal import shorten
from router.http.fault import Fault, wrong

_INT64 = 2**63


class Fields:
    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = values
        self._where = where

    def name(self, key: str) -> str:
        """As an error calls it."""
        return f"{self._where}.{key}" if self._where else key

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def raw(self, key: str) -> Any:
        return self._values.get(key)

    def values(self) -> Mapping[str, Any]:
        return self._values

    def given(self) -> list[str]:
        return [key for key, value in self._values.items() if value is not None]

    def text(self, key: str) -> str | None:
        value = self._values.get(key)
        return None if value is None else text_of(value, self.name(key))

    def needed_text(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise Fault(400, f"{self.name(key)} is missing", param=self.name(key), code="missing_field")
        return value

    def flag(self, key: str) -> bool:
        value = self._values.get(key)
        if not isinstance(value, bool | None):
            raise self._wrong(key, "true or false")
        return bool(value)

    def integer(self, key: str) -> int | None:
        value = self._values.get(key)
        return None if value is None else integer_of(value, self.name(key))

    def number(self, key: str) -> float | None:
        value = self._values.get(key)
        return None if value is None else number_of(value, self.name(key))

    def needed_number(self, key: str) -> float:
        value = self.number(key)
        if value is None:
            raise Fault(400, f"{self.name(key)} is missing", param=self.name(key), code="missing_field")
        return value

    def table(self, key: str) -> "Fields":
        """Empty where there is none."""
        value = self._values.get(key)
        if not isinstance(value, dict | None):
            raise self._wrong(key, "an object")
        return Fields(value or {}, self.name(key))

    def items(self, key: str) -> list[Any]:
        value = self._values.get(key)
        if not isinstance(value, list | None):
            raise self._wrong(key, "a list")
        return value or []

    def texts(self, key: str) -> list[str]:
        return [text_of(item, f"{self.name(key)}[{index}]") for index, item in enumerate(self.items(key))]

    def _wrong(self, key: str, limit: str) -> Fault:
        return wrong(self.name(key), limit, shorten(self._values.get(key)))


def text_of(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise wrong(name, "text", shorten(value))
    try:
        value.encode()
    except UnicodeEncodeError:
        raise wrong(name, "text that can be written as UTF-8", "half of a surrogate pair") from None
    return value


def integer_of(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(name, "a whole number", shorten(value))
    if not -_INT64 <= value < _INT64:
        raise wrong(name, "a whole number of 64 bits", "a larger one")
    return value


def number_of(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(name, "a number", shorten(value))
    try:
        return float(value)
    except OverflowError:
        raise wrong(name, "a number of 64 bits", "a larger one") from None


def json_text(value: Any, where: str) -> str:
    """As a model would write it. Raises Fault."""
    try:
        return text_of(json.dumps(value, ensure_ascii=False, allow_nan=False), where)
    except (ValueError, RecursionError):
        raise wrong(where, "JSON with numbers of 64 bits", "a larger one") from None
