"""What is written by a form is what would be written without one."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.rpc.calls import CallerGone
from octet.v1 import inference_pb2 as wire
from router.http.asking import while_there
from router.http.choice import Choice
from router.http.openai_chat import chat_order
from router.http.openai_completion import completion_order
from router.http.openai_objects import Objects
from router.http.openai_telling import OpenAITelling
from router.http.order import Order
from router.http.server_events import Form, data_event

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CHAT = {"model": "octet/writer", "messages": [{"role": "user", "content": "hello"}], "stream": True}
COMPLETION = {"model": "octet", "prompt": "hello", "stream": True}


def _order(chat: bool, usage: bool) -> Order:
    more = {"stream_options": {"include_usage": True}} if usage else {}
    return chat_order({**CHAT, **more}, "id") if chat else completion_order({**COMPLETION, **more}, "id")


@given(texts=st.lists(TEXT, max_size=6), chat=st.booleans(), usage=st.booleans(), revision=TEXT)
def test_every_chunk_of_a_stream_is_what_its_object_says(
    texts: list[str], chat: bool, usage: bool, revision: str
) -> None:
    order, choice = _order(chat, usage), Choice(0, keeps=False)
    choice.routed = wire.Receipt(specialist="writer", lane=wire.Lane(revision=revision.replace("\0", "")))
    telling, objects = OpenAITelling(order, [choice], "id", 17), Objects(order, "id", 17)
    is_first = True
    for text in texts:
        chunk = wire.Chunk(text=text)
        told = telling.told(choice, wire.InferEvent(chunk=chunk))
        if text:
            assert told == data_event(objects.piece(choice, chunk, is_first=is_first))
            assert json.loads(told.removeprefix(b"data: ")) == objects.piece(choice, chunk, is_first=is_first)
            is_first = False
        else:
            assert told == b""


def test_a_form_has_one_place_for_its_text() -> None:
    with pytest.raises(ValueError):
        Form(lambda text: data_event({"said": text, "again": text}))
    with pytest.raises(ValueError):
        Form(lambda _: data_event({"said": "always the same"}))


class _Caller:
    """Of a request whose body has been read."""

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
        await while_there(caller.receive, work())
    task = asyncio.current_task()
    assert ended.is_set() and task is not None and not task.cancelling()


async def _is_gone_already() -> None:
    """Before anybody watches."""
    caller = _Caller()
    caller.left.set()
    with pytest.raises(CallerGone):
        await while_there(caller.receive, asyncio.sleep(60))
    task = asyncio.current_task()
    assert task is not None and not task.cancelling()


async def _is_done_at_once() -> None:
    """Before anybody watches: then nobody begins to."""
    caller, task = _Caller(), asyncio.current_task()
    assert await while_there(caller.receive, asyncio.sleep(0, "done")) == "done"
    caller.left.set()
    await asyncio.sleep(0.05)
    assert task is not None and not task.cancelling() and asyncio.all_tasks() == {task}


async def _is_done_later() -> None:
    task = asyncio.current_task()
    assert await while_there(_Caller().receive, asyncio.sleep(0.05, "done")) == "done"
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {task}


async def _goes_then() -> None:
    caller = _Caller()

    async def work() -> str:
        caller.left.set()
        return "done"

    assert await while_there(caller.receive, work()) == "done"
    await asyncio.sleep(0.01)
    with pytest.raises(ValueError):
        await while_there(_Caller().receive, _failing())


async def _failing() -> None:
    await asyncio.sleep(0)
    raise ValueError


async def _told_to_end() -> None:
    caller = _Caller()
    working = asyncio.create_task(while_there(caller.receive, asyncio.sleep(60)))
    await asyncio.sleep(0.05)
    working.cancel()
    caller.left.set()
    with pytest.raises(asyncio.CancelledError):
        await working


CASES = [_caller_goes, _is_gone_already, _is_done_at_once, _is_done_later, _goes_then, _told_to_end]


@pytest.mark.parametrize("case", CASES)
def test_work_lasts_while_its_caller_is_there(case: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(case())
