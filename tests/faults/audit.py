"""Compare receipts with what callers received, while routers restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from tests.faults.callers import RouterClient
from tests.faults.history import Account, History
from tests.faults.verdict import disagreement

_PAUSE = 0.2
"""Seconds to wait before comparing, because a receipt may be written later than the answer."""


@dataclass(slots=True)
class Audit:
    router: RouterClient
    history: History
    num_compared: int = 0
    found: list[str] = field(default_factory=list)
    _num_seen: int = 0

    async def resume(self) -> None:
        while True:
            fresh = self.history.accounts[self._num_seen :]
            self._num_seen += len(fresh)
            await asyncio.sleep(_PAUSE)
            for account in fresh:
                await self._compare(account)

    async def _compare(self, account: Account) -> None:
        """Compare what the caller received with the router's receipt. Skip the request if its caller left, or if a
        restart of the router lost the receipt."""
        if account.left:
            return
        try:
            found = await disagreement(self.router, account)
        except grpc.aio.AioRpcError:
            if not self._is_forgotten(account):
                raise
            return
        if not self._is_forgotten(account):
            self.num_compared += 1
            self.found += found

    def _is_forgotten(self, account: Account) -> bool:
        return any(outage.ended >= account.began for outage in self.history.outages)


@asynccontextmanager
async def auditing(router: RouterClient, history: History) -> AsyncIterator[Audit]:
    audit = Audit(router, history)
    async with asyncio.TaskGroup() as tasks:
        going_on = tasks.create_task(audit.resume())
        yield audit
        going_on.cancel()
