"""A router that asks for keys, before one that computes nothing."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from router.keys.book import KeyBook
from router.keys.key import Allowance, Key, Role
from router.keys.source import GivenKeys, KeySource
from router.keys.token import new_token, token_digest
from specialist.engines.sim import CostModel
from tests.router.http.harness import Fronted, fronting
from tests.service.harness import FREE, serving, sim


@dataclass(frozen=True)
class Made:
    """A key, and what is shown for it."""

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


def book_of(*keys: Made) -> KeyBook:
    return KeyBook(each.key for each in keys)


@asynccontextmanager
async def keyed(keys: Sequence[Made] | KeySource, *, cost: CostModel = FREE, **settings: Any) -> AsyncIterator[Fronted]:
    source = GivenKeys(book_of(*keys)) if isinstance(keys, Sequence) else keys
    async with (
        serving(sim(cost)) as served,
        fronting({"writer": [served.address]}, keys=source, **settings) as fronted,
    ):
        yield fronted
