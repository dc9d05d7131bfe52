"""Processor time that other virtual machines of the same host had while somebody here wanted it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

_STAT = Path("/proc/stat")
_STEAL = 7
"""Behind user, nice, system, idle, iowait, irq and softirq: ticks of all processors together."""
_NUM_KINDS = 8
"""Those behind it, of guests, are counted in user and nice as well."""


@dataclass(frozen=True, slots=True)
class CpuTicks:
    stolen: int
    whole: int

    @classmethod
    def now(cls, stat: Path = _STAT) -> Self | None:
        """None where the kernel tells nothing of the kind."""
        try:
            kinds = [int(ticks) for ticks in stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1:]][
                :_NUM_KINDS
            ]
        except (OSError, ValueError):
            return None
        return cls(kinds[_STEAL], sum(kinds)) if len(kinds) == _NUM_KINDS else None


def share_stolen(before: CpuTicks | None, after: CpuTicks | None) -> float | None:
    """Of the time between; None where nobody knows."""
    if before is None or after is None or after.whole <= before.whole:
        return None
    return round((after.stolen - before.stolen) / (after.whole - before.whole), 3)
