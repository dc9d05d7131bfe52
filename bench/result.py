"""What a bench found: its figures, and where and how they came about. Kept in bench/results, shown in docs."""

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Self

from bench.atomic_file import write_atomically
from bench.record import Record
from bench.stolen import CpuTicks, share_stolen


class ResultUnreadable(ValueError):
    """A file is not a result, or a result of another version."""


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    commit: str
    """Of this project; with a plus where files differed from it."""
    load: float
    """How many processes wanted to run, on average of the minute before the bench began."""
    stolen: float | None = None
    """Share of the processors' time that other machines of the same host had while the bench ran; None: not known."""


@dataclass(frozen=True, slots=True)
class Result:
    bench: str
    command: str
    date: str
    """In UTC, as 2026-01-31."""
    seconds: float
    machine: Machine
    records: tuple[Record, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Meter:
    """Begun before the bench: what is true of the machine only then."""

    began: float
    date: str
    load: float
    commit: str
    """Whatever is committed while it runs is not what runs."""
    ticks: CpuTicks | None

    @classmethod
    def start(cls) -> Self:
        date, load = datetime.now(UTC).date().isoformat(), round(os.getloadavg()[0], 2)
        return cls(monotonic(), date, load, _commit(), CpuTicks.now())

    def result(self, bench: str, command: str, records: Sequence[Record], notes: Sequence[str] = ()) -> Result:
        seconds = round(monotonic() - self.began, 1)
        machine = _machine(self.load, self.commit, share_stolen(self.ticks, CpuTicks.now()))
        return Result(bench, command, self.date, seconds, machine, tuple(records), tuple(notes))


def write_result(path: Path, result: Result) -> None:
    write_atomically(path, (json.dumps(asdict(result), ensure_ascii=False, allow_nan=False, indent=1) + "\n").encode())


def read_result(path: Path) -> Result:
    try:
        return result_of(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ResultUnreadable(f"{path}: not a result of a bench ({error})") from error


def result_of(fields: dict[str, Any]) -> Result:
    """As `asdict` wrote it. Raises TypeError, KeyError and AttributeError for anything else."""
    parts = {
        "machine": Machine(**fields["machine"]),
        "records": tuple(Record(**record) for record in fields["records"]),
        "notes": tuple(fields["notes"]),
    }
    return Result(**{**fields, **parts})


def _machine(load: float, commit: str, stolen: float | None) -> Machine:
    memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    kernel, python = platform.release(), platform.python_version()
    return Machine(_cpu(), os.cpu_count() or 1, memory, kernel, python, commit, load, stolen)


def _cpu() -> str:
    """As the kernel names it: "Intel(R) Xeon(R) ..."; where it names none, the architecture."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _commit() -> str:
    """Of the folder this file is in, or "unknown" where that is no checkout."""
    git = ("git", "-C", str(Path(__file__).parent))
    try:
        name, changed = (
            subprocess.run((*git, *words), check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
            for words in (("rev-parse", "--short=10", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if changed else "")
