"""Octet's own words: `/v1/infer`, jobs, and the operators' page."""

from collections.abc import Mapping
from typing import Any

from octet.rpc.tool_checks import NAME
from octet.sdk.receipt import Validation
from octet.sdk.tools import ToolCall
from router.http.openapi.answers import ALWAYS, ANSWER, BODY, body, events, nothing, refusals, streamed, whole
from router.http.openapi.dashboard import PATHS as DASHBOARD
from router.http.openapi.router import TENANT
from router.http.openapi.shapes import (
    COUNT,
    FLAG,
    NUMBER,
    TEXT,
    Shape,
    asked,
    maybe,
    named,
    one_of,
    ranged,
    record,
    several,
    shape_of,
    text,
    word,
)
from router.reception.limits import Limits

_ID = {"name": "job_id", "in": "path", "required": True, "schema": TEXT}
_AFTER: Shape = {"type": "string", "pattern": "^[0-9]{1,18}$"}
_JOB = (*ALWAYS, 404)
_EXAMPLE = {"prompt": "undefined reference to vtable", "max_tokens": 64}


def paths() -> Mapping[str, Any]:
    return {
        **DASHBOARD,
        "/v1/infer": {
            "post": {
                "operationId": "infer",
                "summary": "an answer and all that is known of it, whole or as server-sent events",
                "requestBody": body("InferRequest", _EXAMPLE),
                "responses": streamed(named("Answer"), "the answer")
                | refusals((*ALWAYS, *BODY, *ANSWER), "PartialError"),
            }
        },
        "/v1/jobs": {
            "post": {
                "operationId": "submitJob",
                "summary": "a request that nobody waits for: on record when this answers",
                "parameters": [{"name": "idempotency-key", "in": "header", "schema": text(128)}],
                "requestBody": body("JobRequest", _EXAMPLE),
                "responses": whole(named("Job"), "it was submitted before, with the same key")
                | whole(named("Job"), "it will end, once", 202)
                | refusals((*ALWAYS, *BODY, 404, 409, 422)),
            },
            "get": {
                "operationId": "listJobs",
                "summary": "the caller's own, newest first",
                "parameters": [
                    {"name": "limit", "in": "query", "schema": _AFTER},
                    {"name": "before", "in": "query", "schema": TEXT},
                    TENANT,
                ],
                "responses": whole(record({"jobs": several(named("Job"))}), "some of them") | refusals((*_JOB, 400)),
            },
        },
        "/v1/jobs/{job_id}": {"get": _of_job("getJob", "as it stands")},
        "/v1/jobs/{job_id}/cancel": {"post": _of_job("cancelJob", "ends it, unless it has ended")},
        "/v1/jobs/{job_id}/events": {
            "get": {
                "operationId": "watchJob",
                "summary": "everything from a number on, and what is yet to come",
                "parameters": [
                    _ID,
                    {"name": "after", "in": "query", "schema": _AFTER},
                    {"name": "last-event-id", "in": "header", "schema": _AFTER},
                ],
                "responses": events("they end with the job")
                | nothing("the job has ended, and its last event is the one named: do not come back")
                | refusals((*_JOB, 400)),
            }
        },
    }


def _of_job(name: str, summary: str) -> Mapping[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "parameters": [_ID, TENANT],
        "responses": whole(named("Job"), "as it is then") | refusals(_JOB),
    }


def schemas(limits: Limits) -> Mapping[str, Shape]:
    fields = _fields(limits)
    return {
        "InferRequest": asked({}, {**fields, "stream": FLAG}, more=False),
        "JobRequest": asked({}, fields, more=False),
        "Structure": one_of(
            record({"json_object": {"const": True}}),
            record({"json_schema": {"type": "object"}}),
            record({"regex": text(limits.regex_bytes, 1)}),
            record({"choice": several(text(limits.choice_bytes, 1), 1, limits.choices)}),
        ),
        "Turn": asked(
            {"role": text(limits.role_bytes, 1)},
            {"content": TEXT, "tool_calls": several(named("ToolCall")), "tool_call_id": TEXT},
            more=False,
        ),
        "Tool": asked(
            {"name": {"type": "string", "pattern": f"^{NAME}$"}},
            {"description": TEXT, "parameters": {"type": "object"}, "strict": FLAG},
            more=False,
        ),
        "ToolCall": shape_of(ToolCall),
        "Validation": shape_of(Validation),
        "TokenLogprobs": record(
            {"token": TEXT, "logprob": NUMBER, "top": several(record({"token": TEXT, "logprob": NUMBER}))}
        ),
        "Answer": _answer(),
        "PartialError": _partial(),
        "Job": _job(),
    }


def _fields(limits: Limits) -> dict[str, Shape]:
    ranges, sizes, counts = limits.ranges(), limits.sizes(), limits.counts()
    whole_numbers = ("max_experts", "seed", "max_tokens", "min_tokens", "context_size", "priority")
    timeouts = ("timeout_ms", "first_token_timeout_ms")
    numbers = ("temperature", "top_p", "min_p", "typical_p")
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    texts = ("prompt", "template", "body", "intent", "session_id", "user_id")
    lists = ("force_specialists", "exclude_specialists", "adapters", "stop")
    return {
        **{name: text(sizes[name]) for name in texts},
        **{name: one_of(text(sizes[name]), several(text(sizes[name]), 0, counts[name])) for name in lists},
        **{name: ranged(ranges[name], "integer") for name in (*whole_numbers, *timeouts)},
        **{name: ranged(ranges[f"sampling.{name}"], "integer") for name in ("top_k", "num_logprobs")},
        **{name: ranged(ranges[f"sampling.{name}"], "number") for name in (*numbers, *penalties)},
        "ignore_eos": FLAG,
        "validate": FLAG,
        "messages": several(named("Turn"), 0, limits.messages),
        "tools": several(named("Tool")),
        "tool_choice": one_of(word("auto", "none", "required"), record({"name": TEXT})),
        "structure": named("Structure"),
        "metadata": {"type": "object", "additionalProperties": TEXT, "maxProperties": limits.metadata},
    }


def _answer() -> Shape:
    return record(
        {
            "id": TEXT,
            "text": TEXT,
            "tool_calls": several(named("ToolCall")),
            "finish_reason": maybe(TEXT),
            "partial": {"const": False},
            "validation": maybe(named("Validation")),
            "specialist": TEXT,
            "usage": record(
                {
                    "prompt_tokens": COUNT,
                    "completion_tokens": COUNT,
                    "total_tokens": COUNT,
                    "cache_hit_tokens": COUNT,
                }
            ),
            "receipt": named("Receipt"),
        },
        {"logprobs": several(named("TokenLogprobs"))},
    )


def _partial() -> Shape:
    """Beside the error, what had been said."""
    said = {"id": TEXT, "text": TEXT, "partial": {"const": True}, "receipt": maybe(named("Receipt"))}
    return {"allOf": [named("Error"), record({}, said, more=True)]}


def _job() -> Shape:
    time = {"type": "string", "format": "date-time"}
    error = record({"message": TEXT, "type": TEXT, "param": maybe(TEXT), "code": TEXT})
    return record(
        {
            "id": TEXT,
            "status": word("queued", "running", "done", "failed", "cancelled"),
            "submitted_at": time,
            "started_at": maybe(time),
            "ended_at": maybe(time),
            "text": TEXT,
            "tool_calls": several(named("ToolCall")),
            "partial": FLAG,
            "error": maybe(error),
            "finish_reason": maybe(TEXT),
            "validation": maybe(named("Validation")),
            "receipt": maybe(named("Receipt")),
            "attempts": COUNT,
        }
    )
