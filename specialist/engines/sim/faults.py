"""What can go wrong in a step, on purpose."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from specialist.step import Step

FaultKind = Literal["fail_before", "fail_after", "fail_row", "slow", "late", "duplicate"]
"""Raise before anything is written; raise after everything is; lose one row; take `factor` times as long;
complete only with the next step; complete again with the next step."""


@dataclass(frozen=True, slots=True)
class Fault:
    kind: FaultKind
    row: int = 0
    """Which row is to blame, where one is."""
    named: bool = False
    """Whether a failure names its culprit."""
    factor: float = 10.0


FaultSource = Callable[[Step], Fault | None]
