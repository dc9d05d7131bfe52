"""Everything that happens in a simulation from outside, as data: the same script gives the same history."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

DeedKind = Literal["kill", "stop", "cut", "cut_there", "cut_back", "slow", "reset", "crawl", "short", "wall", "drift"]
"""Of a machine: killed and started again; stopped and let go on; its way cut in both directions or in one; its way made
slow; its connections reset; its engine made slow; its memory nearly taken. Of the router's wall clock: set. Of a
specialist: its answers are judged wrong."""
CancelHow = Literal["call", "rpc", "leave"]
"""The caller cancels its call; asks for it by another call; its connection is lost."""
REPLICA_DEEDS: tuple[DeedKind, ...] = ("kill", "stop", "cut", "cut_there", "cut_back", "slow", "reset", "crawl")


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    number: int
    at: float
    """Seconds after the beginning, as with deeds."""
    text: str
    force: tuple[str, ...] = ()
    """Empty: the text says whom it is for."""
    adapters: tuple[str, ...] = ()
    max_tokens: int = 8
    seed: int = 0
    priority: int = 5
    timeout: float = 10.0
    in_request: bool = False
    """The request says how long; else its call does."""
    first_timeout: float | None = None
    """Seconds to the first token, as the request says."""
    exact: bool = False
    """The answer is as long as it may be."""
    session: str = ""
    salt: str = ""
    cancel_after: float | None = None
    cancel_how: CancelHow = "call"
    pause: float = 0.0
    """Seconds that the caller takes over every event."""

    @property
    def request_id(self) -> str:
        return f"r{self.number}"


@dataclass(frozen=True, slots=True)
class Deed:
    """Something done to the ensemble."""

    at: float
    kind: DeedKind
    target: str
    """The machine's name, or the specialist's."""
    seconds: float = 1.0
    """Until it is undone; what the wall clock is set by."""
    factor: float = 1.0
    """So many times as slow; of memory, the share that is taken."""


@dataclass(frozen=True, slots=True)
class Setup:
    """An ensemble small enough that everything runs out."""

    replicas: dict[str, int]
    calm: bool = False
    """Nothing goes wrong but that there is too much to do, and callers say truly what they want."""
    equal: bool = False
    """All requests are of one priority, so that nobody may give way to anybody."""
    judged: bool = False
    """Answers are short and end by themselves, verdicts and refusals have their consequences within seconds, and there
    is a third specialist, which stands in for the second."""
    floor_first: bool = False
    """Where answers are judged: escalation has no threshold to raise, and begins with the floor."""
    num_blocks: int = 16
    block_size: int = 8
    max_running: int = 4
    max_waiting: int = 6
    failures: int = 3
    max_attempts: int = 3
    cool_down: float = 0.5
    fault_rate: float = 0.0
    """Of the engines' steps."""
    mishaps: dict[str, float] = field(default_factory=dict)
    """Points in production code that may go wrong, and how often."""


@dataclass(frozen=True, slots=True)
class Script:
    seed: int
    """Of everything that is drawn on the way: delays, choices, jitter."""
    setup: Setup
    asks: tuple[Asked, ...]
    deeds: tuple[Deed, ...]

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Script":
        """Raises ValueError, TypeError, KeyError for what is none."""
        said: dict[str, Any] = json.loads(text)
        asks = tuple(
            Asked(**{**each, "force": tuple(each["force"]), "adapters": tuple(each["adapters"])})
            for each in said["asks"]
        )
        return cls(said["seed"], Setup(**said["setup"]), asks, tuple(Deed(**each) for each in said["deeds"]))
