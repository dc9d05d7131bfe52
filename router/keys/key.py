"""One key, as it is kept."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Role: TypeAlias = Literal["call", "operate"]
ROLES: tuple[Role, ...] = ("call", "operate")
"""Whoever may operate may call as well."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """None: as much as there is."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    """Of prompts and answers."""
    concurrency: int | None = None
    """Calls at once."""


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    digest: bytes = field(repr=False)
    """sha256 of what is shown."""
    role: Role
    tenant: str
    """Whose it is: keys of one tenant share what is theirs."""
    allowance: Allowance = Allowance()
    created: str = ""
    """ISO 8601; for people."""
    expires_ms: int | None = None
    """Since 1970; from then on nobody knows it."""

    @property
    def operates(self) -> bool:
        return self.role == "operate"

    def is_over(self, wall_ms: int) -> bool:
        return self.expires_ms is not None and wall_ms >= self.expires_ms
