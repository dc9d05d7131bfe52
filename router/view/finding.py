"""One thing that is wrong, before anybody has decided whether it has been so for long enough to be told."""

from dataclasses import dataclass, replace
from typing import Literal

from octet.v1 import overview_pb2 as wire

NOTE, WARNING, CRITICAL = wire.Trouble.NOTE, wire.Trouble.WARNING, wire.Trouble.CRITICAL
Runbook = Literal["", "capacity", "bad-refresh", "both", "cache-drift", "wrong-specialist"]
Key = tuple[str, str]
"""Kind and subject: there is one of each."""


@dataclass(frozen=True, slots=True)
class Finding:
    severity: wire.Trouble.Severity
    kind: str
    subject: str
    what: str
    """How much of what, in words, without since when."""
    runbook: Runbook = ""
    specialist: str = ""
    """That it is about; empty where it is about none."""
    since_ms: int = 0
    """Where somebody knows; 0: from when on it was seen."""

    @property
    def key(self) -> Key:
        return self.kind, self.subject

    def under(self, runbook: Runbook) -> "Finding":
        return replace(self, runbook=runbook)


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds."""

    before: float = 0.0
    """It must have been so before it is told."""
    after: float = 0.0
    """It must not have been so any more before it is told no more."""


_AT_ONCE = Patience()
_PATIENCE = {
    "no_replica": Patience(2.0, 5.0),
    "replica_hung": Patience(0.0, 5.0),
    "replica_lost": Patience(5.0, 5.0),
    "refusing": Patience(5.0, 30.0),
    "unserved": Patience(5.0, 30.0),
    "failing": Patience(5.0, 30.0),
    "burning": Patience(10.0, 60.0),
    "correctness": Patience(5.0, 60.0),
    "cache_drift": Patience(30.0, 120.0),
    "misrouting": Patience(30.0, 120.0),
    "estimator": Patience(30.0, 120.0),
}
"""What is measured moves; what somebody or something has decided is told as it is."""


def patience_with(kind: str) -> Patience:
    return _PATIENCE.get(kind, _AT_ONCE)


def percent(share: float) -> str:
    """For people: as many digits as say something."""
    shown = 100 * share
    return f"{shown:.0f} %" if shown >= 1 or shown == 0 else f"{shown:.1g} %"


def beside(share: float, limit: float) -> tuple[str, str]:
    """Both for people, with as many digits as tell them apart; those that differ by less than a ten-thousandth look the
    same."""
    apart = abs(share - limit)
    is_whole = abs(100 * limit - round(100 * limit)) < 1e-9
    digits = 0 if apart >= 0.01 and is_whole else 1 if apart >= 0.001 else 2
    return f"{100 * share:.{digits}f} %", f"{100 * limit:.{digits}f} %"


def short(text: str, most: int = 80) -> str:
    """Of what somebody wrote: a part of a line."""
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"
