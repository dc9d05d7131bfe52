"""What a router and the supervisor of its replicas tell each other about weights, as two files in the runtime folder.

The router writes which weights each specialist should run; the supervisor, which ones it runs. Both files are replaced
as a whole, so that either side may be killed at any time and reads the other's last word when it starts again.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from octet.identity import file_stamp

WANTED_FILE, RUNNING_FILE = "weights-wanted.json", "weights-running.json"
WEIGHTS_FILES = tuple(f"{name}{end}" for name in (WANTED_FILE, RUNNING_FILE) for end in ("", ".new"))
WeightsState = Literal["starting", "ready", "failed"]
_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class WantedWeights:
    number: int  # 0 for those that the configuration names
    model: str
    revision: str = ""  # the content that they must have; empty for any
    like: str = ""  # a model whose architecture and tokenizer they must have; empty for any


@dataclass(frozen=True, slots=True)
class RunningWeights:
    state: WeightsState
    reason: str = ""  # why they failed to start


WantedBySpecialist = Mapping[str, Sequence[WantedWeights]]
RunningBySpecialist = Mapping[str, Mapping[int, RunningWeights]]


class WeightsFile:
    """One of the two files, read again only when it has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, ...] | None = None
        self._written = ""

    def read(self) -> Any:
        """Return the content if it has changed since the last call, else None."""
        stamp = file_stamp(self._path)
        if stamp is None or stamp == self._stamp:
            return None
        content = json.loads(self._path.read_text())
        self._stamp = stamp
        return content

    def write(self, content: object) -> None:
        text = json.dumps(content)
        if text != self._written:
            unfinished = self._path.with_name(f"{self._path.name}.new")
            unfinished.write_text(text)
            unfinished.replace(self._path)
            self._written = text


def wanted_to_json(wanted: WantedBySpecialist) -> dict[str, Any]:
    return {name: [asdict(each) for each in weights] for name, weights in wanted.items()}


def wanted_from_json(content: Mapping[str, Any]) -> dict[str, tuple[WantedWeights, ...]]:
    return {name: tuple(WantedWeights(**each) for each in weights) for name, weights in content.items()}


def running_to_json(running: RunningBySpecialist) -> dict[str, Any]:
    return {
        name: {str(number): [each.state, each.reason[:_MAX_REASON]] for number, each in states.items()}
        for name, states in running.items()
    }


def running_from_json(content: Mapping[str, Any]) -> dict[str, dict[int, RunningWeights]]:
    """Raises ValueError for an unknown state."""
    found = {
        name: {int(number): RunningWeights(state, reason) for number, (state, reason) in states.items()}
        for name, states in content.items()
    }
    for states in found.values():
        if not {each.state for each in states.values()} <= {*get_args(WeightsState)}:
            raise ValueError(f"unknown states of weights: {states}")
    return found


def weights_socket(socket: Path, number: int) -> Path:
    """Return the socket of a replica with these weights; `socket` is that of the same replica with the configured."""
    return socket if number == 0 else socket.with_name(f"{socket.name.partition('-')[0]}-w{number}.sock")
