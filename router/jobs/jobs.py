"""Jobs as every door sees them: submitted, looked at, followed and cancelled, by those whose they are."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Protocol

from octet.config.ensemble import JobsConfig
from octet.rpc.refusal import draining, invalid
from octet.store import Store, StoreUnavailable
from octet.store.job_rows import JobRoom, JobRow, KeyTaken, NewJob, NoRoom
from octet.v1 import inference_pb2 as infer
from octet.v1 import jobs_pb2 as wire
from router.decide.policy import Policy
from router.jobs import told
from router.jobs.attempt import Means
from router.jobs.refusals import key_taken, no_room, not_on_record, not_yours, unknown_job
from router.jobs.tally import Tally
from router.jobs.watchers import Watchers
from router.jobs.workers import Workers
from router.reception.caller import Caller, current_caller
from router.reception.reception import Reception
from router.reception.standing import current_standing

_log = logging.getLogger(__name__)
MOST_LISTED = 100
USUALLY_LISTED = 50
_PREFIX = "job-"
_ID = re.compile(_PREFIX + r"[0-9a-f]{32}")
_KEY_BYTES = 128
_PAGE_BYTES = 256 << 10
"""Of events that are read at once for somebody who watches."""
_LARGE = 64 << 10
"""Bytes of events that are put together elsewhere: the event loop has others to serve."""
_EVERYTHING = 1 << 62


class Rules(Protocol):
    """By which requests are received now."""

    policy: Policy
    reception: Reception
    draining: bool


class Jobs:
    """Belongs to the event loop. Every call raises Refusal. `caller` is whoever the door has let in, unless it is
    said; `tenant` is the caller's own, unless an operator names another."""

    def __init__(self, store: Store, rules: Rules, means: Means, watchers: Watchers, new_id: Callable[[], str]) -> None:
        """`new_id` draws 32 hex digits."""
        self._store = store
        self._rules = rules
        self._means = means
        self._config: JobsConfig = means.config
        self.watchers = watchers
        self._new_id = new_id
        self._workers = Workers(means, watchers, new_id)

    @property
    def tally(self) -> Tally:
        return self._means.tally

    @property
    def num_running(self) -> int:
        """In this router's hands."""
        return len(self._workers)

    def start(self) -> None:
        if not self._store.is_durable:
            _log.warning("jobs are kept in memory, as everything in this store: they end with this router")
        self._workers.start()

    async def drain(self) -> None:
        """What is being answered here is left to other routers, or to this one when it is back."""
        await self._workers.drain()

    async def close(self) -> None:
        await self._workers.close()

    async def submit(
        self, request: infer.InferRequest, key: str, caller: Caller | None = None
    ) -> tuple[wire.Job, bool]:
        """The job, on record, and whether it is new. `key` may be empty."""
        new = self._new_job(request, key, caller or current_caller())
        config = self._config
        room = JobRoom(config.queue, config.tenant_queue, config.queue_bytes)
        with _on_record():
            found = await self._means.store.submit(new, room)
        if isinstance(found, NoRoom):
            raise no_room(found)
        if isinstance(found, KeyTaken):
            raise key_taken(key)
        row, is_new = found
        self._means.tally.submitted += is_new
        self._workers.kick()
        return (told.brief(row) if is_new else await self._whole(row)), is_new

    async def get(self, job_id: str, tenant: str = "", caller: Caller | None = None) -> wire.Job:
        return await self._whole(await self._row(job_id, tenant, caller))

    async def newest(
        self, limit: int | None, before: str, tenant: str = "", caller: Caller | None = None
    ) -> list[wire.Job]:
        """Newest first, without what they said; those older than the job `before`."""
        most = USUALLY_LISTED if limit is None else limit
        if not 1 <= most <= MOST_LISTED:
            raise invalid("limit", f"in [1, {MOST_LISTED}]", str(most))
        if before and _ID.fullmatch(before) is None:
            raise unknown_job(before)
        owner = _owner(tenant, caller)
        if owner is None:
            raise not_yours(tenant)
        with _on_record():
            rows = await self._means.store.newest(owner, most, before)
        if rows is None:
            raise unknown_job(before)
        return [told.brief(row) for row in rows]

    async def cancel(self, job_id: str, tenant: str = "", caller: Caller | None = None) -> wire.Job:
        """The job as it is then: cancelled, or ended before."""
        owner = _owner(tenant, caller)
        if owner is None:
            raise unknown_job(job_id)
        with _on_record():
            row = await self._means.store.cancel(_checked(job_id), owner, self._means.wall_ms())
        if row is None:
            raise unknown_job(job_id)
        self._workers.lose(job_id)
        self.watchers.told(job_id)
        return await self._whole(row)

    async def watch(self, job_id: str, after: int, caller: Caller | None = None) -> AsyncGenerator[wire.JobEvent, None]:
        """Every event after that number, and those yet to come, to the job's end."""
        row = await self._row(job_id, "", caller)
        if not 0 <= after <= row.events:
            raise invalid("after", f"the number of an event, or 0: in [0, {row.events}]", str(after))
        known = current_standing()
        with self.watchers.watching(job_id, row.tenant) as changed:
            while True:
                known.check()
                changed.clear()
                with _on_record():
                    page = await self._means.store.events(job_id, after, _PAGE_BYTES)
                for number, raw in page:
                    after = number
                    if not raw:
                        yield wire.JobEvent(number=number, status=await self.get(job_id, "", caller))
                        return
                    event = wire.JobEvent.FromString(raw)
                    event.number = number
                    yield event
                if not page:
                    row = await self._row(job_id, "", caller)
                    if row.events <= after and row.has_ended:
                        return
                    if row.events <= after:
                        await known.while_known(changed.wait)

    def _new_job(self, request: infer.InferRequest, key: str, caller: Caller) -> NewJob:
        if self._rules.draining:
            raise draining("router")
        if request.request_id:
            raise invalid("request_id", "unset: a job has an id of its own", request.request_id[:60])
        if request.HasField("first_token_timeout_ms"):
            given = str(request.first_token_timeout_ms)
            raise invalid("first_token_timeout_ms", "unset: nobody waits for a job's first token", given)
        if len(key.encode()) > _KEY_BYTES or not key.isprintable():
            raise invalid("idempotency_key", f"printable, of at most {_KEY_BYTES} bytes", f"{len(key)} characters")
        kept = infer.InferRequest()
        kept.CopyFrom(request)
        digest = sha256(kept.SerializeToString(deterministic=True)).hexdigest()
        if not kept.HasField("priority"):
            kept.priority = self._config.priority
        ask = self._rules.reception.receive(kept, None, None)
        self._rules.policy.read(ask)
        seconds = kept.timeout_ms / 1000 if kept.HasField("timeout_ms") else self._config.timeout
        now_ms = self._means.wall_ms()
        job_id = f"{_PREFIX}{self._new_id()}"
        return NewJob(
            id=job_id,
            tenant=caller.tenant,
            caller=caller.name,
            idempotency_key=key or None,
            digest=digest,
            priority=ask.priority,
            submitted_ms=now_ms,
            deadline_ms=now_ms + round(seconds * 1000),
            request=kept.SerializeToString(),
            event=told.submitted(job_id, now_ms).SerializeToString(),
        )

    async def _row(self, job_id: str, tenant: str, caller: Caller | None) -> JobRow:
        owner = _owner(tenant, caller)
        with _on_record():
            row = None if owner is None else await self._means.store.get(_checked(job_id), owner)
        if row is None:
            raise unknown_job(job_id)
        return row

    async def _whole(self, row: JobRow) -> wire.Job:
        with _on_record():
            events = await self._means.store.events(row.id, 0, _EVERYTHING)
        if row.num_bytes > _LARGE:
            return await asyncio.to_thread(told.whole, row, events)
        return told.whole(row, events)


def _owner(tenant: str, caller: Caller | None) -> str | None:
    """Whose jobs are meant; None: of somebody whose jobs the caller may not see."""
    asks = caller or current_caller()
    owner = tenant or asks.tenant
    return owner if asks.may_see(owner) else None


def _checked(job_id: str) -> str:
    """What cannot be the id of a job is nobody's."""
    if _ID.fullmatch(job_id) is None:
        raise unknown_job(job_id)
    return job_id


@contextmanager
def _on_record() -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise not_on_record(error) from None
