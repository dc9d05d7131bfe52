"""Jobs over gRPC and HTTP: their events, their order, and which callers see them."""

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from octet import AsyncClient, Client, Job, NotFound
from octet.client.errors import InvalidRequest
from octet.config.ensemble import JobsConfig
from octet.rpc.refusal import prompt_too_long, queue_full
from octet.v1 import jobs_pb2
from octet.v1 import specialist_pb2 as wire
from router.api.http.connection import EXTENSION, CallerConnection
from router.api.http.errors import refusal_to_error
from router.api.http.infer import job_to_json, watch_job
from router.jobs.manager import JobManager
from router.request import CallerIdentity, use_caller
from tests.patience import PATIENCE
from tests.router.jobs.harness import QUICK, WORDS, answering, events_of, jobs_ensemble, running_jobs, until
from tests.router.serving.harness import infer_request, running_router
from tests.router.serving.spy import ACCEPTED, answer, running_spy

TEXT = "".join(WORDS)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE))


async def test_a_job_is_answered_like_any_request_over_grpc_and_http(tmp_path: Path) -> None:
    has_stored = asyncio.Event()

    async def answer_in_parts(_: wire.GenerateRequest, context: Any) -> None:
        await context.write(ACCEPTED)
        for number, word in enumerate(WORDS):
            await context.write(wire.GenerateEvent(chunk=wire.Chunk(text=word, token_ids=[number])))
            await has_stored.wait()
        usage = wire.Usage(finish_reason=wire.FINISH_REASON_STOP, completion_tokens=len(WORDS))
        await context.write(wire.GenerateEvent(usage=usage))

    async with running_jobs(tmp_path, answer_in_parts) as harness:
        submitted = await harness.submit(max_tokens=7)
        assert (submitted.status, submitted.json["status"], submitted.json["text"]) == (202, "queued", "")
        job_id = submitted.json["id"]
        assert submitted.headers["location"] == f"/v1/jobs/{job_id}"
        await harness.answered(job_id, WORDS[0])
        has_stored.set()
        response = await harness.fronted.get(f"/v1/jobs/{job_id}/events")
        events = events_of(response)
        assert response.headers["content-type"].startswith("text/event-stream")
        assert [number for number, _, _ in events] == list(range(1, len(events) + 1))
        statuses = [content["status"] for _, name, content in events if name == "status"]
        assert statuses == ["queued", "running", "done"]
        assert "".join(content["text"] for _, name, content in events if name == "chunk") == TEXT
        assert len(events) > 4, "chunks must be stored while the job runs"
        job = (await harness.fronted.get(f"/v1/jobs/{job_id}")).json
        assert events[-1][2] == job
        assert (job["status"], job["text"], job["partial"], job["error"]) == ("done", TEXT, False, None)
        assert (job["attempts"], job["finish_reason"], job["validation"]) == (1, "stop", None)
        assert job["submitted_at"] <= job["started_at"] <= job["ended_at"]
        assert job["receipt"]["specialist"] == "writer" and job["receipt"]["priority"] == QUICK.priority
        (asked,) = harness.spy.asked
        assert asked.max_tokens == 7 and harness.spy.seconds_left[0] > 3000
        same = await harness.client.jobs.get(job_id)
        assert json.loads(json.dumps(same.to_dict())) == job
        numbers = [event.number async for event in harness.client.jobs.events(job_id)]
        assert numbers == [number for number, _, _ in events]


def test_a_job_fails_with_the_code_that_the_same_request_would_be_refused_with() -> None:
    refusal = prompt_too_long(9000, 8191)
    failed = job_to_json(jobs_pb2.Job(status=jobs_pb2.JOB_STATUS_FAILED, error=refusal.error))["error"]
    assert failed["code"] == refusal_to_error(refusal, {}).code == "context_length_exceeded"


async def test_a_returning_watcher_gets_the_rest_and_nothing_twice(tmp_path: Path) -> None:
    async with running_jobs(tmp_path, answering(*WORDS, pause=0.3)) as harness:
        job_id = (await harness.submit()).json["id"]
        every = [event async for event in harness.client.jobs.events(job_id)]
        for after in (0, 1, 3, len(every) - 1):
            again = [event async for event in harness.client.jobs.events(job_id, after)]
            assert again == every[after:]
            path = f"/v1/jobs/{job_id}/events"
            resumed = await harness.fronted.send("GET", path, headers={"last-event-id": str(after)})
            asked = await harness.fronted.get(f"{path}?after={after}")
            assert resumed.body == asked.body
            assert [number for number, _, _ in events_of(asked)] == [event.number for event in every[after:]]
        assert [event async for event in harness.client.jobs.events(job_id, len(every))] == []
        for headers, query in (({"last-event-id": str(len(every))}, ""), ({}, f"?after={len(every)}")):
            over = await harness.fronted.send("GET", f"/v1/jobs/{job_id}/events{query}", headers=headers)
            assert (over.status, over.body) == (204, b""), "after any other status, a browser would reconnect"
        late = await harness.fronted.get(f"/v1/jobs/{job_id}/events?after={len(every) + 1}")
        assert (late.status, late.error["param"]) == (400, "after")
        assert (await harness.fronted.get(f"/v1/jobs/{job_id}/events?after=x")).status == 400


async def test_one_idempotency_key_is_one_job(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        first, second = await asyncio.gather(
            *(harness.post("/v1/jobs", _body("hello"), idempotency_key="k") for _ in range(2))
        )
        assert first.json["id"] == second.json["id"] and {first.status, second.status} == {200, 202}
        other = await harness.post("/v1/jobs", _body("goodbye"), idempotency_key="k")
        assert (other.status, other.error["param"], other.error["code"]) == (409, "idempotency_key", "conflict")
        await harness.ended(first.json["id"])
        again = await harness.post("/v1/jobs", _body("hello"), idempotency_key="k")
        assert (again.status, again.json["text"]) == (200, TEXT)
        assert len(harness.spy.asked) == 1
        with pytest.raises(InvalidRequest):
            await harness.client.jobs.submit("goodbye", force="writer", idempotency_key="k")


def _body(prompt: str) -> dict[str, Any]:
    return {"prompt": prompt, "force_specialists": ["writer"]}


async def test_an_invalid_job_is_refused_at_submission(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        for field, value, param in (
            ("prompt", "", "prompt"),
            ("temperature", 9, "temperature"),
            ("stream", True, "stream"),
            ("colour", "red", "colour"),
            ("force_specialists", ["unknown"], "force_specialists"),
            ("timeout_ms", 0, "timeout_ms"),
            ("first_token_timeout_ms", 500, "first_token_timeout_ms"),
        ):
            refused = await harness.submit(**{field: value})
            assert refused.status in (400, 404) and refused.error["param"] == param, field
        assert (await harness.post("/v1/jobs", _body("x"), idempotency_key="k" * 200)).status == 400
        allowed = (await harness.fronted.send("PUT", "/v1/jobs")).headers["allow"]
        assert set(allowed.split(", ")) == {"GET", "HEAD", "POST"}
        assert (await harness.fronted.get("/v1/jobs?limit=0")).error["param"] == "limit"
        assert (await harness.fronted.get("/v1/jobs?before=none")).status == 404
        assert (await harness.fronted.get("/v1/jobs")).json == {"jobs": []}
        with pytest.raises(InvalidRequest, match="request_id"):
            await harness.client.jobs.submit("hello", force="writer", request_id="mine")


async def test_a_job_is_visible_to_its_tenant_only(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        jobs = harness.fronted.routed.server.jobs
        ann, bob = CallerIdentity("ann"), CallerIdentity("bob")
        with use_caller(ann):
            job, _ = await jobs.submit(infer_request(), "k")
        with use_caller(bob):
            other, is_new = await jobs.submit(infer_request("something else"), "k")
            assert is_new and other.id != job.id
            for call in (jobs.get(job.id), jobs.cancel(job.id), anext(jobs.watch(job.id, 0))):
                with pytest.raises(Exception, match="there is no job"):
                    await call
            assert [each.id for each in await jobs.newest(None, "")] == [other.id]
            with pytest.raises(Exception, match="there is no job"):
                await jobs.newest(None, job.id)
        with pytest.raises(NotFound):
            await harness.client.jobs.get(job.id)
        assert (await harness.fronted.get(f"/v1/jobs/{job.id}")).error["code"] == "unknown_job"
        await until(lambda: len(harness.spy.asked) == 2)


async def test_a_cancelled_job_and_its_work_end_at_once(tmp_path: Path) -> None:
    alone = JobsConfig(concurrency=1, lease=3600)  # The lease is so long that it is not checked.
    async with running_jobs(tmp_path, answering(*WORDS, holds=asyncio.Event()), alone) as harness:
        running = (await harness.submit()).json["id"]
        queued = (await harness.submit()).json["id"]
        await harness.answered(running, TEXT)
        for job_id, text, partial in ((queued, "", False), (running, TEXT, True)):
            cancelled = (await harness.post(f"/v1/jobs/{job_id}/cancel")).json
            assert (cancelled["status"], cancelled["text"], cancelled["partial"]) == ("cancelled", text, partial)
            assert (await harness.client.jobs.cancel(job_id)).to_dict() == cancelled, (
                "a second cancellation must change nothing"
            )
        await until(lambda: harness.spy.num_live == 0)
        assert len(harness.spy.asked) == 1
        listed = (await harness.fronted.get("/v1/jobs?limit=5")).json["jobs"]
        assert [(job["id"], job["status"]) for job in listed] == [(queued, "cancelled"), (running, "cancelled")]
        older = (await harness.fronted.get(f"/v1/jobs?before={queued}")).json["jobs"]
        assert [job["id"] for job in older] == [running]


async def test_a_job_past_its_deadline_keeps_its_partial_answer(tmp_path: Path) -> None:
    async with running_jobs(tmp_path, answering(*WORDS, holds=asyncio.Event())) as harness:
        job = (await harness.ended((await harness.submit(timeout_ms=3000)).json["id"])).to_dict()
        assert (job["status"], job["text"], job["partial"]) == ("failed", TEXT, True)
        assert job["error"]["reason"] == "deadline" and job["receipt"]["error"]["reason"] == "deadline"


async def test_a_job_is_retried_after_a_refusal_and_restarted_after_a_lost_replica(tmp_path: Path) -> None:
    calls = 0

    async def fail_twice(request: wire.GenerateRequest, context: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            full = queue_full("waiting", 8, 0.3)
            await context.abort(full.code, str(full), full.metadata())
        if calls == 2:
            await context.write(ACCEPTED)
            await context.write(wire.GenerateEvent(chunk=wire.Chunk(text="lost", token_ids=[1])))
            await context.abort(grpc.StatusCode.INTERNAL, "gone")
        await answer(request, context)

    async with running_jobs(tmp_path, fail_twice) as harness:
        job_id = (await harness.submit()).json["id"]
        events = [event async for event in harness.client.jobs.events(job_id)]
        assert [event.kind for event in events] == ["status", "status", "chunk", "restarted", "chunk", "status"]
        assert events[3].restarted == 2 and [event.number for event in events] == [1, 2, 3, 4, 5, 6]
        last = events[-1].job
        assert last is not None and (last.status, last.text, last.attempts) == ("done", "x", 2)


async def test_a_job_lost_too_often_fails(tmp_path: Path) -> None:
    async def dying(_: wire.GenerateRequest, context: Any) -> None:
        await context.write(ACCEPTED)
        await context.write(wire.GenerateEvent(chunk=wire.Chunk(text="a", token_ids=[1])))
        await context.abort(grpc.StatusCode.INTERNAL, "gone")

    async with running_jobs(tmp_path, dying, JobsConfig(attempts=2)) as harness:
        job = await harness.ended((await harness.submit()).json["id"])
        assert (job.status, job.attempts, job.text, job.partial) == ("failed", 2, "a", True)
        assert job.error is not None and job.error.reason == "replica_lost"


async def test_answers_queues_and_watchers_are_limited(tmp_path: Path) -> None:
    config = JobsConfig(concurrency=1, tenant_queue=2, answer_bytes=1024, watchers=1)
    async with running_jobs(tmp_path, answering(*["word " * 40] * 9, holds=asyncio.Event()), config) as harness:
        long = (await harness.submit()).json["id"]
        job = await harness.ended(long)
        assert (job.status, job.partial) == ("failed", True) and len(job.text) < 2000
        assert job.error is not None and job.error.limit == "an answer of at most 1,024 bytes"
        harness.spy.behave = answering(holds=asyncio.Event())
        waiting = [(await harness.submit()).json["id"] for _ in range(2)]
        full = await harness.submit()
        assert (full.status, full.error["code"]) == (429, "queue_full")
        watching = harness.client.jobs.events(waiting[0])
        await anext(watching)
        refused = await harness.fronted.get(f"/v1/jobs/{waiting[1]}/events")
        assert (refused.status, refused.error["param"], refused.headers["retry-after"]) == (429, "watchers", "5")
        await watching.aclose()
        await until(lambda: not len(harness.fronted.routed.server.jobs.watchers))


async def test_ended_jobs_are_pruned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.jobs.workers.PRUNE_SECONDS", 0.1)
    async with running_jobs(tmp_path, jobs=JobsConfig(kept=1)) as harness:
        ids = [(await harness.submit()).json["id"] for _ in range(3)]
        async with asyncio.timeout(PATIENCE):
            while len(await harness.client.jobs.list()) > 1:
                await asyncio.sleep(0.05)
        assert sum([(await harness.fronted.get(f"/v1/jobs/{job_id}")).status == 404 for job_id in ids]) == 2


async def test_a_blocking_client_does_the_same(tmp_path: Path) -> None:
    def ask(address: str) -> Job:
        with Client(address) as client:
            job = client.jobs.submit("hello", force="writer", validate=True)
            assert client.jobs.list(limit=1)[0].id == job.id
            ended = client.jobs.wait(job.id, timeout=PATIENCE)
            assert client.jobs.get(job.id) == ended == client.jobs.cancel(job.id)
            assert [event.kind for event in client.jobs.events(job.id)] == ["status", "status", "chunk", "status"]
            return ended

    async with running_jobs(tmp_path) as harness:
        job = await asyncio.to_thread(ask, harness.fronted.routed.address)
        assert (job.status, job.text, job.finish_reason) == ("done", TEXT, "stop")
        assert job.validation is not None and job.validation.outcome == "passed"


async def test_without_a_store_a_job_is_not_acknowledged(tmp_path: Path) -> None:
    async with running_jobs(tmp_path) as harness:
        await harness.fronted.routed.server.services.store.close()
        refused = await harness.submit()
        assert (refused.status, refused.error["code"]) == (503, "store_unavailable")
        assert not harness.spy.asked


async def test_a_stopping_router_leaves_its_jobs_to_the_next(tmp_path: Path) -> None:
    """The next router takes over the jobs without waiting for the leases to expire. The interrupted attempts do not
    count as lost."""
    patient = JobsConfig(lease=3600, attempts=1)
    async with running_jobs(tmp_path, answering("half ", holds=asyncio.Event()), patient) as harness:
        job_id = (await harness.submit()).json["id"]
        await harness.answered(job_id, "half ")
    async with running_jobs(tmp_path, jobs=patient) as harness:
        job = await harness.ended(job_id)
        assert (job.status, job.text, job.attempts) == ("done", TEXT, 2)


async def test_a_job_that_waits_past_its_deadline_fails_in_time(tmp_path: Path) -> None:
    async with running_jobs(tmp_path, answering(holds=asyncio.Event()), JobsConfig(concurrency=1)) as harness:
        await harness.submit()
        job = await harness.ended((await harness.submit(timeout_ms=300)).json["id"])
        assert (job.status, job.attempts, job.partial) == ("failed", 0, False)
        assert job.error is not None and job.error.reason == "deadline"
        head = await harness.fronted.send("HEAD", f"/v1/jobs/{job.id}/events")
        assert (head.status, head.body) == (200, b"")


def test_jobs_in_memory_are_answered_and_their_loss_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with (
            running_spy(answering(*WORDS)) as spy,
            running_router({"writer": [spy.address]}, ensemble=jobs_ensemble("memory")) as routed,
            AsyncClient(routed.address) as client,
        ):
            job = await client.jobs.submit("hello", force="writer")
            assert (await client.jobs.wait(job.id, timeout=PATIENCE)).text == TEXT

    run(scenario())
    assert "jobs are lost when this router stops" in caplog.text


async def test_a_caller_that_does_not_read_the_error_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.api.http.infer.JOB_STALL_SECONDS", 0.05)

    class Failing:
        async def watch(self, _: str, __: int) -> AsyncGenerator[jobs_pb2.JobEvent, None]:
            yield jobs_pb2.JobEvent(number=1)
            raise prompt_too_long(2, 1)

    gone, num_sent = asyncio.Event(), 0

    async def send(_: Any) -> None:
        nonlocal num_sent
        num_sent += 1
        if num_sent > 2:
            await asyncio.Event().wait()

    async def receive() -> Any:
        await gone.wait()
        return {"type": "http.disconnect"}

    scope = {
        **{"type": "http", "method": "GET", "path_params": {"job_id": "j"}, "headers": [], "query_string": b""},
        "extensions": {EXTENSION: CallerConnection(gone.set)},
    }
    async with asyncio.timeout(PATIENCE):
        await watch_job(cast(JobManager, Failing()), scope, receive, send)
    assert gone.is_set() and num_sent == 3
