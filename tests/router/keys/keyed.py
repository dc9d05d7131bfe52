"""A router that requires keys, with a simulated replica."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from router.api.keys.key_file import KeySource, StaticKeys
from router.api.keys.keys import Allowance, Key, KeySet, Role, new_token, token_digest
from specialist.engines.sim.engine import CostModel
from tests.router.http.harness import HttpHarness, running_http_router
from tests.specialist.server.harness import FREE, running_replica, sim


@dataclass(frozen=True)
class IssuedKey:
    """A key and its token."""

    key: Key
    token: str

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


def issue_key(
    name: str, role: Role = "call", tenant: str = "", expires_ms: int | None = None, **limits: int
) -> IssuedKey:
    token = new_token()
    key = Key(name, token_digest(token.encode()), role, tenant or name, Allowance(**limits), "", expires_ms)
    return IssuedKey(key, token)


def key_set(*keys: IssuedKey) -> KeySet:
    return KeySet(each.key for each in keys)


@asynccontextmanager
async def running_keyed_router(
    keys: Sequence[IssuedKey] | KeySource, *, cost: CostModel = FREE, **settings: Any
) -> AsyncIterator[HttpHarness]:
    source = StaticKeys(key_set(*keys)) if isinstance(keys, Sequence) else keys
    async with (
        running_replica(sim(cost)) as served,
        running_http_router({"writer": [served.address]}, keys=source, **settings) as fronted,
    ):
        yield fronted
