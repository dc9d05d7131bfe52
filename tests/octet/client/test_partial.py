"""The partial text in errors of answers that ended early."""

import copy

import grpc
import pytest

from octet import Answer, AsyncClient, Client, DeadlineExceeded, OctetError, ReplicaLost, ServerError
from octet.v1 import inference_pb2 as wire
from tests.octet.client.server import Script, ScriptedCall, busy, scripted
from tests.specialist.server.harness import run

LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")
CUT = ScriptedCall(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
LATE = ScriptedCall(
    code=grpc.StatusCode.DEADLINE_EXCEEDED, error=wire.Error(reason=wire.ERROR_REASON_DEADLINE, message="too late")
)


def infer(script: Script, how: str, max_retries: int, timeout: float | None) -> Answer:
    async def ask() -> Answer:
        async with AsyncClient(script.address, max_retries=max_retries) as client:
            return await client.infer("x", timeout=timeout)

    if how == "async":
        return run(ask())
    with Client(script.address, max_retries=max_retries) as client:
        return client.infer("x", timeout=timeout)


@pytest.mark.parametrize("how", ["sync", "async"])
@pytest.mark.parametrize(
    ("act", "kind", "timeout"),
    [
        (LATE, DeadlineExceeded, 20.0),
        (ScriptedCall(hangs=True), DeadlineExceeded, 0.2),
        (CUT, ReplicaLost, None),
        (ScriptedCall(with_receipt=False), ServerError, None),
    ],
)
def test_error_carries_the_partial_text(
    how: str, act: ScriptedCall, kind: type[OctetError], timeout: float | None
) -> None:
    with scripted(act) as script, pytest.raises(kind) as caught:
        infer(script, how, 0, timeout)
    assert caught.value.partial == "one two three"
    assert copy.copy(caught.value).partial == "one two three"


@pytest.mark.parametrize("how", ["sync", "async"])
def test_infer_retries_after_partial_text_and_returns_it_once(how: str) -> None:
    with scripted(busy(), CUT) as script:
        answer = infer(script, how, 2, 20)
    assert len(script.calls) == 3
    assert (answer.text, answer.token_ids) == ("one two three", (0, 1, 2))


def test_stream_error_carries_the_partial_text() -> None:
    with scripted(LATE) as script, Client(script.address) as client:
        with pytest.raises(DeadlineExceeded) as caught, client.stream("x") as answer:
            list(answer)
        assert caught.value.partial == answer.text == "one two three"


def test_error_without_text_has_an_empty_partial() -> None:
    with scripted(busy()) as script, pytest.raises(OctetError) as caught:
        infer(script, "sync", 0, None)
    assert caught.value.partial == ""
