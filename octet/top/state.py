"""What is known now, and how old it is."""

from dataclasses import dataclass
from datetime import datetime

from octet.sdk.overview import Overview

FRESH_S = 8.0
"""A router says something at least every five seconds: who has heard nothing for longer shows the past."""


@dataclass(frozen=True, slots=True)
class Known:
    overview: Overview
    age: float
    """Seconds since it came, by the clock here."""
    trouble: str = ""
    """Why nothing newer comes; empty while the stream stands."""

    @property
    def is_stale(self) -> bool:
        return bool(self.trouble) or self.age > FRESH_S

    @property
    def as_of(self) -> str:
        """By the router's clock."""
        try:
            at = f"{datetime.fromtimestamp(self.overview.at_unix_ms / 1000):%H:%M:%S}"
        except (OverflowError, OSError, ValueError):
            at = f"{self.overview.at_unix_ms} ms"
        return f"as of {at}, {self.age:.0f} s old" if self.is_stale else f"as of {at}"
