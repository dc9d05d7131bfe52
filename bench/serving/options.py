"""What is asked of the bench."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.serving.asks import Source
from bench.serving.classes import CallerClass
from bench.serving.endpoint import Endpoint
from bench.serving.site import Engine


@dataclass(frozen=True, slots=True)
class Own:
    """An ensemble that is started for the bench."""

    engine: Engine
    replicas: int
    doors: tuple[str, ...]
    """Of http and grpc."""
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class Options:
    source: Callable[[float | None], Source]
    """At a rate, or at its own."""
    rate: float | None
    shares: tuple[float, ...]
    """Of the first system's capacity, each a load of its own. None: one load, at the rate."""
    classes: tuple[CallerClass, ...]
    own: Own | None
    endpoints: tuple[Endpoint, ...]
    seconds: float
    runs: int
    seed: int
    context: int
    key: str | None = None
    give_up: float = 120.0
    """Seconds after which a caller hangs up, unless its deadline is sooner."""
    peers: tuple[str, ...] = ()
    """Whose own servers are started beside the own ensemble: names of SERVER_PEERS."""
    quick: bool = False
