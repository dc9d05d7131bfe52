"""Measured figures: summaries, tables and result files."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from math import ceil, isfinite
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Self

_STAT = Path("/proc/stat")
_STEAL, _NUM_KINDS = 7, 8  # ticks: user, nice, system, idle, iowait, irq, softirq, steal; they include later columns


def write_atomically(path: Path, content: bytes) -> None:
    """Write so that readers see the old file or the new one, never part of it. A failure leaves the old file."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Ticks of all processors together."""

    stolen: int
    whole: int

    @classmethod
    def now(cls, stat: Path = _STAT) -> Self | None:
        """Return the current ticks; None if the kernel does not report them."""
        try:
            words = stat.read_text(encoding="ascii").split("\n", 1)[0].split()[1 : 1 + _NUM_KINDS]
            kinds = [int(ticks) for ticks in words]
        except (OSError, ValueError):
            return None
        return cls(kinds[_STEAL], sum(kinds)) if len(kinds) == _NUM_KINDS else None


def share_stolen(before: CpuTicks | None, after: CpuTicks | None) -> float | None:
    """Return the share of CPU time taken by the hypervisor between two readings; None if unknown."""
    if before is None or after is None or after.whole <= before.whole:
        return None
    return round((after.stolen - before.stolen) / (after.whole - before.whole), 3)


@dataclass(frozen=True, slots=True)
class BenchRecord:
    """One measured figure. `system` is "octet", the name of a peer, or "limit" for a bound that no system can beat.
    `value` is the median of the runs; `low` and `high` are their 10th and 90th percentiles."""

    bench: str
    case: str
    system: str
    metric: str
    unit: str
    value: float
    low: float
    high: float
    runs: int

    def __post_init__(self) -> None:
        if not all(isfinite(figure) for figure in (self.value, self.low, self.high)):
            raise ValueError(f"{self.case}, {self.metric}: figures must be finite")
        if not self.low <= self.value <= self.high:
            raise ValueError(f"{self.case}, {self.metric}: {self.value} is not between {self.low} and {self.high}")
        if self.runs < 1:
            raise ValueError(f"{self.case}, {self.metric}: runs must be at least 1, got {self.runs}")


def summary(samples: Sequence[float], bench: str, case: str, metric: str, unit: str, system: str) -> BenchRecord:
    low, high = percentile(samples, 10), percentile(samples, 90)
    return BenchRecord(bench, case, system, metric, unit, median(samples), low, high, len(samples))


def percentile(samples: Sequence[float], percent: int) -> float:
    """Return the sample at the nearest rank, without interpolation."""
    return sorted(samples)[max(0, ceil(len(samples) * percent / 100) - 1)]


def format_table(headers: Sequence[Sequence[str]], rows: Sequence[Sequence[str]], aligns: str) -> str:
    """Format columns as wide as their widest cell, two spaces apart. `aligns` has a `<` or `>` per column."""
    widths = [max(map(len, column)) for column in zip(*headers, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = [
        "  ".join(f"{cell:{align}{width}}" for cell, align, width in zip(line, aligns, widths, strict=True)).rstrip()
        for line in (*headers, rule, *rows)
    ]
    return "\n".join(lines)


def format_figure(value: float) -> str:
    """Format without decimals if the value is whole or at least 100, with one if it is at least 10, else with two."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class MachineInfo:
    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    commit: str  # commit of this project, with a plus sign if files differed from it
    load: float  # load average over the minute before the bench began
    stolen: float | None = None  # share of CPU time taken by the hypervisor for other guests; None if unknown


@dataclass(frozen=True, slots=True)
class Result:
    bench: str
    command: str
    date: str  # UTC date, such as 2026-01-31
    seconds: float
    machine: MachineInfo
    records: tuple[BenchRecord, ...]
    notes: tuple[str, ...] = ()


class RunMeter:
    """Records the commit and the load of the machine. Create it before a benchmark."""

    def __init__(self) -> None:
        self._began = monotonic()
        self._date = datetime.now(UTC).date().isoformat()
        self._load = round(os.getloadavg()[0], 2)
        self.commit = _commit()
        self._ticks = CpuTicks.now()

    def result(self, bench: str, command: str, records: Sequence[BenchRecord], notes: Sequence[str] = ()) -> Result:
        machine = MachineInfo(
            cpu=_cpu(),
            cores=os.cpu_count() or 1,
            memory_gib=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            kernel=platform.release(),
            python=platform.python_version(),
            commit=self.commit,
            load=self._load,
            stolen=share_stolen(self._ticks, CpuTicks.now()),
        )
        seconds = round(monotonic() - self._began, 1)
        return Result(bench, command, self._date, seconds, machine, tuple(records), tuple(notes))


def write_result(path: Path, result: Result) -> None:
    write_atomically(path, (json.dumps(asdict(result), ensure_ascii=False, allow_nan=False, indent=1) + "\n").encode())


def _cpu() -> str:
    """Return the kernel's name for the CPU; if there is none, the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """Return the commit of the folder that holds this file; "unknown" if it is not a checkout."""
    git = ("git", "-C", str(Path(__file__).parent))
    try:
        name, changed = (
            subprocess.run((*git, *words), check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
            for words in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")
