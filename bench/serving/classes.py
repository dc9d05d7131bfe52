"""Classes of callers: how many there are of each, and how long they are ready to wait."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from bench.serving.usage import ServeMistake

_FIELDS = ("share", "priority", "ttft_ms", "total_ms")
_SHAPE = "NAME:SHARE:PRIORITY:TTFT_MS:TOTAL_MS"


@dataclass(frozen=True, slots=True)
class CallerClass:
    name: str
    share: float
    """Of all requests, in relation to the other classes' shares."""
    priority: int
    ttft: float
    """Seconds until the first token."""
    total: float
    """Seconds until the last."""

    def __post_init__(self) -> None:
        if not self.name:
            raise ServeMistake("a class needs a name")
        if not (isfinite(self.share) and self.share > 0):
            raise ServeMistake(f"class {self.name}: the share must be above 0, got {self.share}")
        if not 0 <= self.priority <= 9:
            raise ServeMistake(f"class {self.name}: the priority must be from 0 to 9, got {self.priority}")
        if not (isfinite(self.total) and 0 < self.ttft <= self.total):
            raise ServeMistake(f"class {self.name}: 0 < ttft_ms <= total_ms must hold")


USUAL = (CallerClass("interactive", 0.7, 6, 1.0, 10.0), CallerClass("batch", 0.3, 2, 5.0, 30.0))


def parse_class(text: str) -> CallerClass:
    name, *numbers = text.split(":")
    if len(numbers) != len(_FIELDS):
        raise ServeMistake(f"a class is {_SHAPE}, got {text!r}")
    return _class_of(name, dict(zip(_FIELDS, numbers, strict=True)))


def read_classes(path: Path) -> tuple[CallerClass, ...]:
    """A YAML table: by name, the four figures."""
    import yaml

    try:
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ServeMistake(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(table, dict) or not table:
        raise ServeMistake(f"{path}: must be a table of classes by name")
    try:
        return checked([_entry(str(name), fields) for name, fields in table.items()])
    except ServeMistake as mistake:
        raise ServeMistake(f"{path}: {mistake}") from mistake


def checked(classes: Sequence[CallerClass]) -> tuple[CallerClass, ...]:
    names = [each.name for each in classes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ServeMistake(f"class {twice[0]}: named twice")
    return tuple(classes)


def _entry(name: str, fields: Any) -> CallerClass:
    if not isinstance(fields, dict) or set(fields) != set(_FIELDS):
        raise ServeMistake(f"class {name}: must have {', '.join(_FIELDS)}, and nothing else")
    return _class_of(name, fields)


def _class_of(name: str, fields: Mapping[str, Any]) -> CallerClass:
    try:
        share, ttft_ms, total_ms = (float(fields[field]) for field in ("share", "ttft_ms", "total_ms"))
        priority = int(fields["priority"])
    except (TypeError, ValueError) as error:
        raise ServeMistake(f"class {name}: {error}") from error
    return CallerClass(name, share, priority, ttft_ms / 1000, total_ms / 1000)
