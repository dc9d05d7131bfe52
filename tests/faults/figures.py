"""Figures with bounds that the system must meet under a fault, written to the file that OCTET_FAULTS names."""

import json
import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.forbidden import FORM

VARIABLE = "OCTET_FAULTS"
"""Names a file that gets one JSON line per figure. `python -m tests.faults` adds a line per test and per run."""
COMMAND = "OCTET_FAULTS_COMMAND"
"""The command that started the run."""
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


class Figure(Protocol):
    def __call__(self, row: int, what: str, value: float, unit: str, bound: str, *, short: str = "") -> None:
        """Record a figure and check it against `bound`, such as "< 2 s". In the short form of the tests, `short` (if
        given) replaces the bound, because other tests slow the machine down."""


def is_long() -> bool:
    return os.environ.get(FORM) == "long"


def holds(value: float, bound: str) -> bool:
    """Return whether the value meets the bound. Raises ValueError for an invalid bound."""
    found = re.match(r"(<=|>=|==|<|>) (-?[0-9][0-9,]*(?:\.[0-9]+)?)(?: |$)", bound)
    if found is None:
        raise ValueError(f"a bound is like '< 2 s', got {bound!r}")
    return _COMPARE[found[1]](value, float(found[2].replace(",", "")))


def put_figure(row: int, what: str, value: float, unit: str, bound: str, *, short: str = "") -> None:
    held = holds(value, bound)
    counts = bound if is_long() or not short else short
    _write({"row": row, "what": what, "figure": value, "unit": unit, "bound": bound, "held": held})
    assert holds(value, counts), f"row {row}, {what}: {value:g} {unit}, required is {counts}"


def put_seed(row: int, seed: int) -> None:
    """Record the seed of a row, so that its run can be repeated."""
    _write({"row": row, "seed": seed})


def put_test(node: str, *, passed: bool) -> None:
    """Record whether a test passed. `node` is its pytest node id."""
    _write({"test": node, "passed": passed})


def put_run(result: dict[str, object]) -> None:
    """Record the machine, the date and the command of a run."""
    _write({"run": result})


def _write(line: dict[str, object]) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
