"""What processes write, as lines of JSON: each says which process it came from, and is an object whatever it was."""

import json
from collections.abc import Callable
from typing import Any

from octet.supervise.outlet import Outlet
from octet.telemetry.logs import rfc3339

OWN = "serve"
"""The supervisor's name among the others."""


class JsonScreen:
    def __init__(self, outlet: Outlet, wall: Callable[[], float]) -> None:
        """`wall` is seconds since 1970."""
        self._outlet = outlet
        self._wall = wall

    def log(self, name: str, line: str) -> None:
        self._write({**(_object(line) or self._plain(line)), "process": name})

    def say(self, text: str) -> None:
        for line in text.splitlines():
            self._write({**self._plain(line), "process": OWN})

    def progress(self, name: str, what: str, done: int, total: int) -> None:
        """For people who wait."""

    def ready(self, name: str, pid: int, seconds: float) -> None:
        self.log(name, f"ready after {seconds:.1f} s, pid {pid}")

    def settle(self) -> None:
        """There are only lines."""

    def _plain(self, line: str) -> dict[str, Any]:
        return {"time": rfc3339(self._wall()), "level": "INFO", "message": line}

    def _write(self, told: dict[str, Any]) -> None:
        self._outlet.write(json.dumps(told) + "\n")


def _object(line: str) -> dict[str, Any] | None:
    """None for what is none of ours."""
    if not line.startswith("{"):
        return None
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told if isinstance(told, dict) and "message" in told else None
