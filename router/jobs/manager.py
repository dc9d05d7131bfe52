"""Jobs for every API: submit, get, list, watch, cancel."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TypeVar

import grpc

from octet.config.ensemble import JobsConfig
from octet.limits import shorten
from octet.rpc.messages import copy_message
from octet.rpc.refusal import Refusal, draining, invalid_field
from octet.v1 import error_pb2
from octet.v1 import inference_pb2 as infer
from octet.v1 import jobs_pb2 as wire
from router.answers import ChunkCollector
from router.jobs.attempt import JobContext, JobCounters
from router.jobs.workers import JobWatchers, JobWorkers
from router.request import current_caller, current_grant
from router.serving import RequestServer
from router.store.jobs import IdempotencyKeyTaken, JobQueueFull, JobRow, JobTable, NewJob
from router.store.rows import StoreUnavailable
from router.store.store import Store

_log = logging.getLogger(__name__)
MAX_LISTED = 100
DEFAULT_LISTED = 50
_PREFIX = "job-"
_ID = re.compile(_PREFIX + r"[0-9a-f]{32}")
_MAX_KEY_BYTES = 128
_PAGE_BYTES = 256 << 10  # bytes of events read together for a watcher
_LARGE_BYTES = 64 << 10  # a job with more events is assembled on another thread
_NO_LIMIT = 1 << 62
T = TypeVar("T")


class JobManager:
    """Job calls. Each may raise Refusal. `tenant` defaults to the caller's tenant; only operators may name another."""

    def __init__(
        self,
        store: Store,
        server: RequestServer,
        config: JobsConfig,
        chance: Callable[[], float],
        new_id: Callable[[], str],
    ) -> None:
        """`chance` draws from [0, 1); `new_id` returns 32 random hex digits."""
        self._store = store
        self._server = server
        self._config = config
        self._new_id = new_id
        self.watchers = JobWatchers(config.watchers)
        context = JobContext(store.jobs, server, config, chance, self.watchers.notify)
        self.counters: JobCounters = context.counters
        self._workers = JobWorkers(context, self.watchers, new_id)
        self.drain, self.close = self._workers.drain, self._workers.close

    @property
    def num_running(self) -> int:
        return len(self._workers)

    def start(self) -> None:
        if not self._store.is_durable:
            _log.warning("the store is in memory: jobs are lost when this router stops")
        self._workers.start()

    async def submit(self, request: infer.InferRequest, key: str) -> tuple[wire.Job, bool]:
        """Store a new job, or find the job that has the same non-empty `key`. Return it and whether it is new."""
        new = self._new_job(request, key)
        found = await self._on_table(lambda table: table.submit(new, self._config))
        if isinstance(found, JobQueueFull):
            message, limit = f"{found.limit:,} {found.what} are already queued or running", f"at most {found.limit:,} "
            raise Refusal(error_pb2.ERROR_REASON_QUEUE_FULL, message, field=found.what, limit=limit + found.what)
        if isinstance(found, IdempotencyKeyTaken):
            raise _key_taken(key)
        row, is_new = found
        self.counters.submitted += is_new
        self._workers.wake()
        return (await self._with_wait(_summarize(row), row) if is_new else await self._assemble(row)), is_new

    async def get(self, job_id: str, tenant: str = "") -> wire.Job:
        return await self._assemble(await self._find(job_id, tenant))

    async def newest(self, limit: int | None, before: str, tenant: str = "") -> list[wire.Job]:
        """List jobs without their answers, newest first; only jobs older than `before`, if given."""
        most = DEFAULT_LISTED if limit is None else limit
        if not 1 <= most <= MAX_LISTED:
            raise invalid_field("limit", f"in [1, {MAX_LISTED}]", str(most))
        if before and _ID.fullmatch(before) is None:
            raise _unknown_job(before)
        owner = current_caller().visible_tenant(tenant)
        if owner is None:
            message = "this key may not list another tenant's jobs: it needs the role 'operate'"
            allowed, value = "your own tenant, or a key with the role 'operate'", shorten(tenant)
            raise Refusal(error_pb2.ERROR_REASON_FORBIDDEN, message, field="tenant", limit=allowed, value=value)
        rows = await self._on_table(lambda table: table.newest(owner, most, before))
        if rows is None:
            raise _unknown_job(before)
        return [_summarize(row) for row in rows]

    async def cancel(self, job_id: str, tenant: str = "") -> wire.Job:
        owner = _owner(job_id, tenant)
        now_ms = self._server.wall_ms()
        row = await self._on_table(lambda table: table.cancel(job_id, owner, now_ms))
        if row is None:
            raise _unknown_job(job_id)
        self._workers.lose(job_id)
        self.watchers.notify(job_id)
        return await self._assemble(row)

    async def watch(self, job_id: str, after: int) -> AsyncGenerator[wire.JobEvent, None]:
        row = await self._find(job_id)
        if not 0 <= after <= row.events:
            raise invalid_field("after", f"0 or the number of an event, in [0, {row.events}]", str(after))
        grant = current_grant()
        with self.watchers.watching(job_id, row.tenant) as changed:
            while True:
                grant.check()
                changed.clear()
                page = await self._on_table(
                    partial(JobTable.events, job_id=job_id, after=after, most_bytes=_PAGE_BYTES)
                )
                for number, raw in page:
                    after = number
                    if not raw:
                        yield wire.JobEvent(number=number, status=await self.get(job_id))
                        return
                    event = wire.JobEvent.FromString(raw)
                    event.number = number
                    yield event
                if not page:
                    row = await self._find(job_id)
                    if row.events <= after and row.has_ended:
                        return
                    if row.events <= after:
                        await grant.while_valid(changed.wait)

    def _new_job(self, request: infer.InferRequest, key: str) -> NewJob:
        if self._server.draining:
            raise draining("router")
        if request.request_id:
            raise invalid_field("request_id", "unset for a job", request.request_id[:60])
        if request.HasField("first_token_timeout_ms"):
            given = str(request.first_token_timeout_ms)
            raise invalid_field("first_token_timeout_ms", "unset for a job", given)
        if len(key.encode()) > _MAX_KEY_BYTES or not key.isprintable():
            limit = f"printable and at most {_MAX_KEY_BYTES} bytes"
            raise invalid_field("idempotency_key", limit, f"{shorten(key)} ({len(key.encode())} bytes)")
        kept = copy_message(request)
        digest = sha256(kept.SerializeToString(deterministic=True)).hexdigest()
        if not kept.HasField("priority"):
            kept.priority = self._config.priority
        validated = self._server.validator.validate(kept, None, None)
        if validated.embed:
            raise invalid_field("embed", "unset for a job, whose answer is text", "true")
        self._server.policy.apply_rules(validated)
        seconds = kept.timeout_ms / 1000 if kept.HasField("timeout_ms") else self._config.timeout
        now_ms, caller = self._server.wall_ms(), current_caller()
        job_id = f"{_PREFIX}{self._new_id()}"
        submitted = wire.Job(id=job_id, status=wire.JOB_STATUS_QUEUED, submitted_unix_ms=now_ms)
        return NewJob(
            id=job_id,
            tenant=caller.tenant,
            caller=caller.name,
            idempotency_key=key or None,
            digest=digest,
            priority=validated.priority,
            submitted_ms=now_ms,
            deadline_ms=now_ms + round(seconds * 1000),
            request=kept.SerializeToString(),
            event=wire.JobEvent(status=submitted).SerializeToString(),
        )

    async def _on_table(self, call: Callable[[JobTable], T]) -> T:
        try:
            return await self._store.jobs(call)
        except StoreUnavailable as error:
            message = "the store does not answer, and nothing was changed"  # does not reveal the address of the store
            if not error.certain:
                unknown = "the store does not answer, and it is unknown whether the change was made"
                message = f"{unknown}: repeat the call with the same idempotency key"
            raise Refusal(error_pb2.ERROR_REASON_STORE_UNAVAILABLE, message) from None

    async def _find(self, job_id: str, tenant: str = "") -> JobRow:
        owner = _owner(job_id, tenant)
        row = await self._on_table(lambda table: table.get(job_id, owner))
        if row is None:
            raise _unknown_job(job_id)
        return row

    async def _assemble(self, row: JobRow) -> wire.Job:
        events = await self._on_table(lambda table: table.events(row.id, 0, _NO_LIMIT))
        if row.num_bytes > _LARGE_BYTES:
            return await asyncio.to_thread(_with_answer, row, events)
        return await self._with_wait(_with_answer(row, events), row)

    async def _with_wait(self, job: wire.Job, row: JobRow) -> wire.Job:
        """Add the estimated wait of a queued job. A store that does not answer leaves it out."""
        if row.status == "queued":
            with suppress(StoreUnavailable):
                backlog = await self._store.jobs(lambda table: table.backlog(row))
                slots = self._config.concurrency
                wait_ms = None if backlog is None else backlog.estimate_ms(slots, self._server.wall_ms())
                if wait_ms is not None:
                    job.estimated_wait_ms = wait_ms
        return job


def _owner(job_id: str, tenant: str) -> str:
    """Return `tenant` or the caller's own. Raises Refusal for an invalid job id, or a tenant hidden from the caller."""
    owner = current_caller().visible_tenant(tenant)
    if _ID.fullmatch(job_id) is None or owner is None:
        raise _unknown_job(job_id)
    return owner


def _unknown_job(job_id: str) -> Refusal:
    message = f"there is no job with the id {shorten(job_id)}"
    limit, value = "the id of one of your own jobs that has not expired", shorten(job_id)
    return Refusal(error_pb2.ERROR_REASON_UNKNOWN_JOB, message, field="id", limit=limit, value=value)


def _key_taken(key: str) -> Refusal:
    message = f"the idempotency key {shorten(key)} belongs to a job with a different request"
    reason, code = error_pb2.ERROR_REASON_CONFLICT, grpc.StatusCode.ALREADY_EXISTS
    limit, value = "a key that no other request of yours has used", shorten(key)
    return Refusal(reason, message, code=code, field="idempotency_key", limit=limit, value=value)


def _summarize(row: JobRow) -> wire.Job:
    job = wire.Job.FromString(row.result)
    job.ClearField("receipt")
    return _fill_status(job, row)


def _with_answer(row: JobRow, events: Iterable[tuple[int, bytes]]) -> wire.Job:
    answer = ChunkCollector()
    for number, raw in events:
        event = wire.JobEvent.FromString(raw)
        if number > row.events:
            break
        if event.HasField("restarted"):
            answer = ChunkCollector()
        elif event.HasField("chunk"):
            answer.add(event.chunk)
    job = _fill_status(wire.Job.FromString(row.result), row)
    job.text = answer.text
    job.tool_calls.extend(answer.tool_calls)
    return job


def _fill_status(job: wire.Job, row: JobRow) -> wire.Job:
    job.id = row.id
    job.status = wire.JobStatus.Value(f"JOB_STATUS_{row.status.upper()}")
    job.submitted_unix_ms = row.submitted_ms
    job.attempts = row.attempts
    if row.started_ms is not None:
        job.started_unix_ms = row.started_ms
    if row.ended_ms is not None:
        job.ended_unix_ms = row.ended_ms
    job.partial = row.status in ("failed", "cancelled") and row.attempts > 0
    return job
