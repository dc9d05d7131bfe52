"""A replica as its last report shows it, and what can be asked of it beside requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Seen:
    name: str
    specialist: str
    address: str = ""
    linked: bool = True
    """It can be reached, and has reported."""
    status: str = "serving"
    """serving, connecting, hung, draining."""
    health_breaker: str = "closed"
    revision: str = ""
    adapters: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Digest by name, of those in its memory."""
    waiting: int = 0
    running: int = 0
    shadows: int = 0
    refusing: bool = False
    usual_wait: float | None = None
    estimate_error_p90: float | None = None


class Replicas(Protocol):
    """Names are the same on every router with the same configuration."""

    def seen(self) -> Sequence[Seen]:
        """Everybody, reachable or not."""

    async def load(self, replica: str, name: str, path: str) -> str:
        """The digest. Raises Refusal: what the replica said, or that it cannot be reached."""

    async def unload(self, replica: str, name: str) -> None:
        """Raises Refusal."""
