"""What had been said when an answer was ended."""

import copy

import grpc
import pytest

from octet import Answer, AsyncClient, Client, DeadlineExceeded, OctetError, ReplicaLost, ServerError
from octet.v1 import inference_pb2 as wire
from tests.octet.sdk.server import Act, Script, busy, scripted
from tests.service.harness import run

LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")
CUT = Act(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
LATE = Act(
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
        (Act(hangs=True), DeadlineExceeded, 0.2),
        (CUT, ReplicaLost, None),
        (Act(with_receipt=False), ServerError, None),
    ],
)
def test_the_error_has_what_was_said(how: str, act: Act, kind: type[OctetError], timeout: float | None) -> None:
    with scripted(act) as script, pytest.raises(kind) as caught:
        infer(script, how, 0, timeout)
    assert caught.value.partial == "one two three"
    assert copy.copy(caught.value).partial == "one two three"


@pytest.mark.parametrize("how", ["sync", "async"])
def test_nobody_has_read_it_so_it_is_asked_for_again_and_said_once(how: str) -> None:
    with scripted(busy(), CUT) as script:
        answer = infer(script, how, 2, 20)
    assert len(script.calls) == 3
    assert (answer.text, answer.token_ids) == ("one two three", (0, 1, 2))


def test_a_stream_says_the_same() -> None:
    with scripted(LATE) as script, Client(script.address) as client:
        with pytest.raises(DeadlineExceeded) as caught, client.stream("x") as answer:
            list(answer)
        assert caught.value.partial == answer.text == "one two three"


def test_where_nothing_was_said_there_is_nothing() -> None:
    with scripted(busy()) as script, pytest.raises(OctetError) as caught:
        infer(script, "sync", 0, None)
    assert caught.value.partial == ""
