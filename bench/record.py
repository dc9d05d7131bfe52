"""One measured figure, and the file that figures are kept in."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path

from bench.atomic_file import write_atomically


@dataclass(frozen=True, slots=True)
class Record:
    bench: str
    case: str
    system: str
    """Whose figure: "octet", the name of a peer, or "limit" for a bound that nothing can beat."""
    metric: str
    unit: str
    value: float
    """The median of the runs."""
    low: float
    """Their 10th percentile."""
    high: float
    """Their 90th percentile."""
    runs: int

    def __post_init__(self) -> None:
        if not all(isfinite(figure) for figure in (self.value, self.low, self.high)):
            raise ValueError(f"{self.case}, {self.metric}: figures must be finite")
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.case}, {self.metric}: {self.value} is not between {self.low} and {self.high}")
        if self.runs < 1:
            raise ValueError(f"{self.case}, {self.metric}: runs must be at least 1, got {self.runs}")


def lines_of(records: Iterable[Record]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(asdict(record), ensure_ascii=False, allow_nan=False) + "\n" for record in records)


def write_records(path: Path, records: Iterable[Record]) -> None:
    write_atomically(path, lines_of(records).encode())
