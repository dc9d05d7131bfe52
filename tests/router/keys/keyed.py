"""A router that requires keys, with a simulated replica."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from router.api.keys.key_file import KeySource, StaticKeys
from router.api.keys.keys import Allowance, Key, KeySet, Role, new_token, token_digest
from specialist.engines.sim.engine import CostModel
from tests.router.http.harness import Fronted, fronting
from tests.specialist.server.harness import FREE, serving, sim


@dataclass(frozen=True)
class Made:
    """A key and its token."""

    key: Key
    token: str

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.token}"),)

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.token}"}


def made(name: str, role: Role = "call", tenant: str = "", expires_ms: int | None = None, **limits: int) -> Made:
    token = new_token()
    key = Key(name, token_digest(token.encode()), role, tenant or name, Allowance(**limits), "", expires_ms)
    return Made(key, token)


def book_of(*keys: Made) -> KeySet:
    return KeySet(each.key for each in keys)


@asynccontextmanager
async def keyed(keys: Sequence[Made] | KeySource, *, cost: CostModel = FREE, **settings: Any) -> AsyncIterator[Fronted]:
    source = StaticKeys(book_of(*keys)) if isinstance(keys, Sequence) else keys
    async with (
        serving(sim(cost)) as served,
        fronting({"writer": [served.address]}, keys=source, **settings) as fronted,
    ):
        yield fronted
