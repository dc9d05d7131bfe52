"""Conversations keep only complete turns, with sync and async clients."""

import asyncio
import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octet import AsyncClient, Client, OctetError
from octet.client.records import TokenCount
from octet.v1 import inference_pb2 as wire
from tests.octet.client.server import Script, ScriptedCall, scripted
from tests.patience import PATIENCE

LOST = wire.Error(reason=wire.ERROR_REASON_REPLICA_LOST, message="the replica was lost")
GOOD = ScriptedCall()
CUT = ScriptedCall(code=grpc.StatusCode.UNAVAILABLE, error=LOST)
REFUSED = ScriptedCall(words=(), code=grpc.StatusCode.INVALID_ARGUMENT, is_routed=False)
UNSEALED = ScriptedCall(with_receipt=False)
"""A stream that ends with status OK but without its receipt, so it may be incomplete."""


@dataclass(frozen=True)
class Step:
    text: str
    act: ScriptedCall
    way: str
    """`send`, `stream`, or `leave`, which leaves the stream after the first chunk."""

    @property
    def is_kept(self) -> bool:
        return self.way != "leave" and self.act is GOOD


STEPS = st.lists(
    st.builds(
        Step,
        st.text(st.characters(codec="utf-8"), max_size=8),
        st.sampled_from([GOOD, GOOD, CUT, REFUSED, UNSEALED]),
        st.sampled_from(["send", "stream", "leave"]),
    ),
    max_size=6,
)


@dataclass
class ConversationResult:
    history: list[tuple[str, str]] = field(default_factory=list)
    sent: list[list[tuple[str, str]]] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)


def pairs(messages: Sequence[Any]) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in messages]


def result(conversation: Any, script: Script, failures: list[str]) -> ConversationResult:
    requests = [call.request for call in script.calls]
    sent = [[(each.role, each.content) for each in request.messages] for request in requests]
    assert conversation.receipt is None or conversation.receipt.request_id
    sessions = {request.session_id for request in requests} | {conversation.session_id}
    return ConversationResult(pairs(conversation.messages), sent, sessions, failures)


def talk(steps: list[Step]) -> ConversationResult:
    failures: list[str] = []
    with scripted(*(step.act for step in steps)) as script, Client(script.address, max_retries=0) as client:
        conversation = client.conversation(system="be brief", seed=1)
        for step in steps:
            try:
                if step.way == "send":
                    conversation.send(step.text, max_tokens=4)
                    continue
                with conversation.stream(step.text, max_tokens=4) as answer:
                    for _ in answer:
                        if step.way == "leave":
                            break
            except OctetError as error:
                failures.append(type(error).__name__)
        return result(conversation, script, failures)


async def talk_async(steps: list[Step]) -> ConversationResult:
    failures: list[str] = []
    with scripted(*(step.act for step in steps)) as script:
        async with AsyncClient(script.address, max_retries=0) as client:
            conversation = client.conversation(system="be brief", seed=1)
            for step in steps:
                try:
                    if step.way == "send":
                        await conversation.send(step.text, max_tokens=4)
                        continue
                    async with conversation.stream(step.text, max_tokens=4) as answer:
                        async for _ in answer:
                            if step.way == "leave":
                                break
                except OctetError as error:
                    failures.append(type(error).__name__)
            return result(conversation, script, failures)


@settings(max_examples=15)
@given(STEPS)
def test_only_complete_turns_are_kept_and_sent_again(steps: list[Step]) -> None:
    received = talk(steps)
    history = [("system", "be brief")]
    for step, sent in zip(steps, received.sent, strict=True):
        assert sent == [*history, ("user", step.text)]
        if step.is_kept:
            history += [("user", step.text), ("assistant", "".join(step.act.words))]
    assert received.history == history
    assert len(received.sessions) == 1 and all(len(session) == 32 for session in received.sessions)
    again = asyncio.run(talk_async(steps))
    assert (again.history, again.sent, again.failures) == (received.history, received.sent, received.failures)


def test_turn_options_override_conversation_options() -> None:
    with scripted() as script, Client(script.address) as client:
        conversation = client.conversation("mine", temperature=0.5, force="stl")
        conversation.send("one", temperature=0.9)
        conversation.send("two")
        requests = [call.request for call in script.calls]
    assert [request.sampling.temperature for request in requests] == [0.9, 0.5]
    assert all(list(request.force_specialists) == ["stl"] and request.session_id == "mine" for request in requests)


def test_partial_turn_can_be_added_and_reset_starts_over() -> None:
    with scripted(CUT) as script, Client(script.address) as client:
        conversation = client.conversation(system="be brief")
        with pytest.raises(OctetError), conversation.stream("why?") as answer:
            for _ in answer:
                pass
        assert conversation.num_turns == 0
        conversation.add("why?", answer.text)
        conversation.send("and then?")
        assert [each.content for each in script.calls[-1].request.messages][1:] == [
            "why?",
            "one two three",
            "and then?",
        ]
        before = conversation.session_id
        conversation.reset()
        assert pairs(conversation.messages) == [("system", "be brief")] and conversation.receipt is None
        assert conversation.session_id != before


@pytest.mark.parametrize("name", ["messages", "session", "tools"])
def test_options_owned_by_the_conversation_are_refused(name: str) -> None:
    with Client("127.0.0.1:1") as client:
        options: Any = {name: ["x"]}
        with pytest.raises(TypeError, match=name):
            client.conversation(**options)
        with pytest.raises(TypeError, match=name):
            client.conversation().send("x", **options)


def test_dropped_conversation_stream_is_cancelled() -> None:
    """The conversation holds no reference to the stream, so the stream is cancelled without a run of the garbage
    collector."""
    gc.disable()
    try:
        with scripted(ScriptedCall(hangs=True)) as script, Client(script.address) as client:
            answer = client.conversation().stream("x")
            next(answer)
            del answer
            assert script.calls[0].ended.wait(PATIENCE)
    finally:
        gc.enable()


def test_tokens_are_counted_for_the_specialist_that_would_answer() -> None:
    with scripted() as script, Client(script.address) as client:
        conversation = client.conversation()
        conversation.send("one")
        assert client.count_tokens(messages=conversation.messages) == TokenCount(7, "stl")
        assert [each.content for each in script.calls[-1].request.messages] == ["one", "one two three"]
