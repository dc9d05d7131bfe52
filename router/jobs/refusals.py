"""Why a call about a job was not served, and why a job was not answered."""

import grpc

from octet.rpc.refusal import Refusal, shorten
from octet.store.errors import StoreUnavailable
from octet.store.job_rows import NoRoom
from octet.v1 import error_pb2 as wire

_WATCH_AGAIN_SECONDS = 5.0


def unknown_job(job_id: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.NOT_FOUND,
        wire.ERROR_REASON_UNKNOWN_JOB,
        f"nothing is known of a job with the id {shorten(job_id)}",
        field="id",
        limit="the id of a job of your own that has not ended too long ago",
        value=shorten(job_id),
    )


def not_yours(tenant: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.PERMISSION_DENIED,
        wire.ERROR_REASON_FORBIDDEN,
        "this key may not list another tenant's jobs: it needs the role 'operate'",
        field="tenant",
        limit="your own, or a key with the role 'operate'",
        value=shorten(tenant),
    )


def key_taken(key: str) -> Refusal:
    return Refusal(
        grpc.StatusCode.ALREADY_EXISTS,
        wire.ERROR_REASON_CONFLICT,
        f"the idempotency key {shorten(key)} belongs to a job that asks for something else",
        field="idempotency_key",
        limit="a key that no other request of yours has had",
        value=shorten(key),
    )


def no_room(none: NoRoom) -> Refusal:
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_QUEUE_FULL,
        f"{none.limit:,} {none.what} wait or are answered already",
        field=none.what,
        limit=f"at most {none.limit:,} {none.what}",
    )


def too_many_watch(most: int, whose: str = "") -> Refusal:
    """When one of them leaves is not known: whoever comes back too soon is told the same."""
    return Refusal(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        wire.ERROR_REASON_QUEUE_FULL,
        f"{most:,} callers{whose} watch jobs here already; a job can be looked at without",
        field="watchers",
        limit=f"at most {most:,} callers{whose} at once",
        retry_after=_WATCH_AGAIN_SECONDS,
    )


def not_on_record(error: StoreUnavailable) -> Refusal:
    """`error` says nothing of what the store is, or where."""
    done = "the store does not answer, and nothing was done"
    perhaps = "the store does not answer, and whether it was done is not known: ask again with the same idempotency key"
    return Refusal(grpc.StatusCode.UNAVAILABLE, wire.ERROR_REASON_STORE_UNAVAILABLE, done if error.certain else perhaps)


def lost_too_often(times: int) -> Refusal:
    return Refusal(
        grpc.StatusCode.INTERNAL,
        wire.ERROR_REASON_ENGINE_FAILED,
        f"whoever answered it was lost, {times} times",
        limit=f"at most {times} routers or replicas that are lost with it",
    )


def too_long(most: int) -> Refusal:
    return Refusal(
        grpc.StatusCode.OUT_OF_RANGE,
        wire.ERROR_REASON_INVALID_FIELD,
        f"the answer is longer than the {most:,} bytes that are kept of one, and was cut off",
        field="max_tokens",
        limit=f"an answer of at most {most:,} bytes",
    )
