"""Every status and every reason maps to exactly one error class."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet import NoSpecialist, OctetError, ReplicaLost, ServerError
from octet.client import errors
from octet.client.errors import _CLASS_BY_REASON, error_class
from octet.v1 import error_pb2 as wire

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, OctetError)]
CODES = sorted(grpc.StatusCode, key=lambda code: str(code.name))
REASONS = [reason for reason in wire.ErrorReason.values() if reason]


def test_every_reason_of_the_wire_has_a_class() -> None:
    assert set(_CLASS_BY_REASON) == set(REASONS)


@given(st.sampled_from(CODES), st.sampled_from(REASONS))
def test_reason_takes_precedence_over_any_code(code: grpc.StatusCode, reason: wire.ErrorReason) -> None:
    kind = error_class(code, reason)
    assert kind in KINDS and kind is not OctetError
    assert {error_class(other, reason) for other in CODES} == {kind}


@given(st.sampled_from(CODES), st.integers(1000, 2000))
def test_unknown_reason_falls_back_to_the_code(code: grpc.StatusCode, reason: int) -> None:
    assert error_class(code, reason) is error_class(code, 0)


def test_every_error_class_is_used() -> None:
    reached = {error_class(code, reason) for code in CODES for reason in (0, *REASONS)}
    assert reached == set(KINDS) - {OctetError}


def test_error_classes_do_not_inherit_from_each_other() -> None:
    assert all(kind.__bases__ == (OctetError,) for kind in KINDS if kind is not OctetError)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (wire.ERROR_REASON_NO_SPECIALIST, NoSpecialist),
        (wire.ERROR_REASON_REPLICA_LOST, ReplicaLost),
        (wire.ERROR_REASON_ENGINE_FAILED, ServerError),
    ],
)
def test_reason_takes_precedence_over_the_code(reason: wire.ErrorReason, kind: type[OctetError]) -> None:
    assert error_class(grpc.StatusCode.UNAVAILABLE, reason) is kind
