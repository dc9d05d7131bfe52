"""How a gRPC status without an Octet error reason is classified."""

from typing import Any

import grpc
import pytest

from octet.v1 import error_pb2
from router.dispatch.attempts import classify_failure

LOST, NO_REPLICA = error_pb2.ERROR_REASON_REPLICA_LOST, error_pb2.ERROR_REASON_NO_REPLICA


def bare(code: grpc.StatusCode) -> Any:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata())


@pytest.mark.parametrize(
    ("name", "was_open", "accepted", "kind", "reason", "is_break"),
    [
        ("UNAVAILABLE", True, False, "dropped", NO_REPLICA, True),
        ("UNAVAILABLE", False, False, "free", NO_REPLICA, False),
        ("UNAVAILABLE", True, True, "lost", LOST, True),
        # gRPC's own status for calls that a stopping replica has not started. These calls have had no effect.
        ("CANCELLED", True, False, "dropped", NO_REPLICA, False),
        ("CANCELLED", False, False, "free", NO_REPLICA, False),
        ("CANCELLED", True, True, "lost", LOST, False),
        ("INTERNAL", True, False, "failed", LOST, False),
        ("DEADLINE_EXCEEDED", True, False, "final", error_pb2.ERROR_REASON_DEADLINE, False),
        ("RESOURCE_EXHAUSTED", True, False, "full", error_pb2.ERROR_REASON_QUEUE_FULL, False),
    ],
)
def test_a_status_without_a_reason_is_classified(
    name: str, was_open: bool, accepted: bool, kind: str, reason: int, is_break: bool
) -> None:
    failure = classify_failure(bare(grpc.StatusCode[name]), "stl-0", was_open=was_open, accepted=accepted)
    assert (failure.kind, failure.refusal.error.reason, failure.is_break) == (kind, reason, is_break)
