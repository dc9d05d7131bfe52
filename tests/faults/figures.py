"""A figure that a fault demands: written down where OCTET_FAULTS says, and held to its bound."""

import json
import operator
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from tests.forbidden import FORM

VARIABLE = "OCTET_FAULTS"
"""Names a file. A line of JSON is added for every figure; by `python -m tests.faults` for every test and run, too."""
COMMAND = "OCTET_FAULTS_COMMAND"
"""What the run was asked for by."""
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}


class Figure(Protocol):
    def __call__(self, row: int, what: str, value: float, unit: str, bound: str, *, short: str = "") -> None:
        """`bound` is like "< 2 s", and must hold. Where `short` is given, that one must hold instead in the short form,
        which shares its machine with other tests."""


def is_long() -> bool:
    return os.environ.get(FORM) == "long"


def holds(value: float, bound: str) -> bool:
    """Raises ValueError for a bound that cannot be read."""
    found = re.match(r"(<=|>=|==|<|>) (-?[0-9][0-9,]*(?:\.[0-9]+)?)(?: |$)", bound)
    if found is None:
        raise ValueError(f"a bound is like '< 2 s', got {bound!r}")
    return _COMPARE[found[1]](value, float(found[2].replace(",", "")))


def put_figure(row: int, what: str, value: float, unit: str, bound: str, *, short: str = "") -> None:
    held = holds(value, bound)
    counts = bound if is_long() or not short else short
    _write({"row": row, "what": what, "figure": value, "unit": unit, "bound": bound, "held": held})
    assert holds(value, counts), f"row {row}, {what}: {value:g} {unit}, demanded is {counts}"


def put_seed(row: int, seed: int) -> None:
    """What the row's trouble was drawn from: whoever wants the same has it from here."""
    _write({"row": row, "seed": seed})


def put_test(node: str, *, passed: bool) -> None:
    """`node` as pytest names it."""
    _write({"test": node, "passed": passed})


def put_run(result: dict[str, object]) -> None:
    """All of a result of a bench but its records."""
    _write({"run": result})


def _write(line: dict[str, object]) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("a") as file:
            file.write(json.dumps(line) + "\n")
