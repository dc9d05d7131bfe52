"""The newest audit entries are kept, so that an overview needs no query."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from octet.rpc.refusal import Refusal
from octet.v1 import error_pb2
from octet.v1 import operator_pb2 as wire
from router.control.control import OperatorEvents
from router.observe.overview.overview import MOST_ENTRIES, AuditTail
from tests.patience import PATIENCE


class Auditor:
    def __init__(self) -> None:
        self.events = OperatorEvents(max_queued=30)
        self.kept = [wire.AuditEntry(number=number) for number in range(1, 31)]
        self.num_asked = 0
        self.is_away = False

    async def audit(self, most: int, subject: str) -> Sequence[wire.AuditEntry]:
        self.num_asked += 1
        if self.is_away:
            raise Refusal(error_pb2.ERROR_REASON_STORE_UNAVAILABLE, "away")
        return self.kept[::-1][:most]

    def publish(self, number: int) -> None:
        self.events.publish(wire.OperatorEvent(audit=wire.AuditEntry(number=number)))


def numbers(tail: AuditTail) -> list[int]:
    return [entry.number for entry in tail.entries()]


async def until(tail: AuditTail, newest: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while numbers(tail)[:1] != [newest]:
            await asyncio.sleep(0.001)


async def test_the_audit_is_read_once_and_then_followed() -> None:
    auditor = Auditor()
    tail = AuditTail(cast(Any, auditor))
    following = asyncio.create_task(tail.follow())
    await until(tail, 30)
    for number in (31, 33, 32, 30, 0):
        auditor.publish(number)
    await until(tail, 33)
    auditor.publish(34)
    await until(tail, 34)
    assert numbers(tail) == list(range(34, 34 - MOST_ENTRIES, -1)) and auditor.num_asked == 1
    auditor.events.close()
    await following


async def test_missed_audit_entries_are_read_again() -> None:
    auditor = Auditor()
    tail = AuditTail(cast(Any, auditor), retry_seconds=0.01)
    following = asyncio.create_task(tail.follow())
    await until(tail, 30)
    auditor.kept.append(wire.AuditEntry(number=90))
    for _ in range(40):
        auditor.publish(31)
    await until(tail, 90)
    auditor.kept.append(wire.AuditEntry(number=91))
    auditor.is_away = True
    auditor.events.publish(wire.OperatorEvent(store_trouble="away"))
    auditor.events.publish(wire.OperatorEvent(store_trouble=""))
    async with asyncio.timeout(PATIENCE):
        while auditor.num_asked < 5:
            await asyncio.sleep(0.001)
    assert numbers(tail)[0] == 90
    auditor.is_away = False
    await until(tail, 91)
    following.cancel()
