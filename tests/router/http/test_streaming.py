"""Chunks that are made from a template equal chunks that are encoded as JSON. Work for a request ends when the caller
disconnects."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.handlers import CallerGone
from octet.v1 import inference_pb2 as wire
from router.api.http.completions import AnswerChoice, ApiRequest
from router.api.http.connection import EventTemplate, data_event, run_while_connected
from router.api.http.openai_requests import parse_chat_request, parse_completion_request
from router.api.http.openai_responses import OpenAIWriter

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CHAT = {"model": "octet/writer", "messages": [{"role": "user", "content": "hello"}], "stream": True}
COMPLETION = {"model": "octet", "prompt": "hello", "stream": True}


def _order(chat: bool, usage: bool) -> ApiRequest:
    more = {"stream_options": {"include_usage": True}} if usage else {}
    return (
        parse_chat_request({**CHAT, **more}, "id") if chat else parse_completion_request({**COMPLETION, **more}, "id")
    )


@given(texts=st.lists(TEXT, max_size=6), chat=st.booleans(), usage=st.booleans(), revision=TEXT)
def test_templated_chunks_equal_encoded_chunks(texts: list[str], chat: bool, usage: bool, revision: str) -> None:
    order, choice = _order(chat, usage), AnswerChoice(0, is_kept=False)
    choice.receipt = wire.Receipt(specialist="writer", lane=wire.Lane(revision=revision.replace("\0", "")))
    telling, objects = (OpenAIWriter(order, [choice], "id", 17) for _ in range(2))
    is_first = True
    for text in texts:
        chunk = wire.Chunk(text=text)
        result = telling.write_event(choice, wire.InferEvent(chunk=chunk))
        if text:
            assert result == data_event(objects.text_chunk(choice, chunk, is_first=is_first))
            assert json.loads(result.removeprefix(b"data: ")) == objects.text_chunk(choice, chunk, is_first=is_first)
            is_first = False
        else:
            assert result == b""


def test_template_needs_exactly_one_place_for_the_text() -> None:
    with pytest.raises(ValueError):
        EventTemplate(lambda text: data_event({"said": text, "again": text}))
    with pytest.raises(ValueError):
        EventTemplate(lambda _: data_event({"said": "always the same"}))


class _Caller:
    """A caller that has sent its whole request, and disconnects when `left` is set."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}


async def _caller_goes() -> None:
    caller, ended = _Caller(), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    asyncio.get_running_loop().call_later(0.01, caller.left.set)
    with pytest.raises(CallerGone):
        await run_while_connected(caller.receive, work())
    task = asyncio.current_task()
    assert ended.is_set() and task is not None and not task.cancelling()


async def _is_gone_already() -> None:
    """The caller disconnects before the router watches for disconnects."""
    caller = _Caller()
    caller.left.set()
    with pytest.raises(CallerGone):
        await run_while_connected(caller.receive, asyncio.sleep(60))
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def _is_done_at_once() -> None:
    """The work ends before the router watches for disconnects, so no watch is started."""
    caller, task = _Caller(), asyncio.current_task()
    assert await run_while_connected(caller.receive, asyncio.sleep(0, "done")) == "done"
    caller.left.set()
    await asyncio.sleep(0.05)
    assert task is not None and not task.cancelling() and asyncio.all_tasks() == {task}


async def _is_done_later() -> None:
    task = asyncio.current_task()
    assert await run_while_connected(_Caller().receive, asyncio.sleep(0.05, "done")) == "done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {task}


async def _goes_then() -> None:
    caller = _Caller()

    async def work() -> str:
        caller.left.set()
        return "done"

    assert await run_while_connected(caller.receive, work()) == "done"
    await asyncio.sleep(0.01)
    with pytest.raises(ValueError):
        await run_while_connected(_Caller().receive, _failing())


async def _failing() -> None:
    await asyncio.sleep(0)
    raise ValueError


async def _told_to_end() -> None:
    caller = _Caller()
    working = asyncio.create_task(run_while_connected(caller.receive, asyncio.sleep(60)))
    await asyncio.sleep(0.05)
    working.cancel()
    caller.left.set()
    with pytest.raises(asyncio.CancelledError):
        await working


CASES = [_caller_goes, _is_gone_already, _is_done_at_once, _is_done_later, _goes_then, _told_to_end]


@pytest.mark.parametrize("case", CASES)
def test_work_runs_while_the_caller_is_connected(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(case())
