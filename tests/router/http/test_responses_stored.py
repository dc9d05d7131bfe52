"""Stored responses: conversations continued by id, found only by their own tenant, until they expire."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octet.config.ensemble import StoreConfig
from tests.later import Later
from tests.router.http.harness import HttpHarness, running_http_router
from tests.router.keys.keyed import issue_key, running_keyed_router
from tests.router.serving.harness import ensemble_of
from tests.specialist.server.harness import QUICK, running_replica, sim

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

ASKED: dict[str, Any] = {"model": "octet/writer", "max_output_tokens": 32}
PATH = "/v1/responses"
UNKNOWN = "resp_" + "0" * 32


@asynccontextmanager
async def routers(*stores: StoreConfig) -> AsyncIterator[list[HttpHarness]]:
    """Run one replica, and a router with each store."""
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(running_replica(sim(QUICK, context=1024)))
        yield [
            await stack.enter_async_context(
                running_http_router({"writer": [served.address]}, ensemble=replace(ensemble_of("writer"), store=store))
            )
            for store in stores
        ]


def chat_messages(*texts: str) -> Any:
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index, text in enumerate(texts)]


async def read_input(fronted: HttpHarness, response_id: str, **query: Any) -> list[str]:
    listed: Any = await fronted.openai.responses.input_items.list(response_id, **query)
    return [item.content[0].text async for item in listed]


async def post(fronted: HttpHarness, **asked: Any) -> Any:
    return await fronted.post(json.dumps({**ASKED, **asked}).encode(), PATH)


async def test_three_turns_equal_the_chat_and_reuse_its_prefix_at_either_router(tmp_path: Path) -> None:
    shared = StoreConfig(url=f"sqlite:{tmp_path / 'shared.db'}")
    async with routers(shared, shared) as (one, two):
        texts: list[str] = []
        previous, cached = None, []
        for number, router in enumerate((one, two, one)):
            texts.append(f"question {number}, which is long enough to fill a block of tokens")
            answer = await router.openai.responses.create(**ASKED, input=texts[-1], previous_response_id=previous)
            chat = await router.openai.chat.completions.create(
                model="octet/writer", messages=chat_messages(*texts), max_tokens=32
            )
            assert answer.output_text == chat.choices[0].message.content
            assert answer.usage is not None and answer.previous_response_id == previous and answer.store
            receipt = (await router.get(f"/v1/receipts/{answer.id}")).json
            assert receipt["usage"]["cache_hit_tokens"] == answer.usage.input_tokens_details.cached_tokens
            assert receipt["session_source"] == "metadata"
            cached.append(answer.usage.input_tokens_details.cached_tokens)
            texts.append(answer.output_text)
            previous = answer.id
        assert cached[0] < cached[1] < cached[2], cached
        assert await read_input(two, previous or "", order="asc") == texts[:-1]


async def test_instructions_are_not_carried_over_and_keys_of_the_caller_win() -> None:
    async with routers(StoreConfig(url="memory")) as (router,):
        create = router.openai.responses.create
        first = await create(**ASKED, input="hi", instructions="Be short.", prompt_cache_key="mine")
        second = await create(**ASKED, input="more", previous_response_id=first.id)
        chat = await router.openai.chat.completions.create(
            model="octet/writer", messages=chat_messages("hi", first.output_text, "more"), max_tokens=32
        )
        assert second.output_text == chat.choices[0].message.content and second.instructions is None
        for answer in (first, second):
            assert (await router.get(f"/v1/receipts/{answer.id}")).json["session_id"] == "mine"


async def test_only_the_own_tenant_finds_a_response() -> None:
    ann, bob = issue_key("ann"), issue_key("bob")
    async with running_keyed_router([ann, bob]) as fronted:
        mine = fronted.openai.with_options(api_key=ann.token).responses
        other = fronted.openai.with_options(api_key=bob.token).responses
        first = await mine.create(**ASKED, input="secret")
        item = first.output[0].id or ""
        for unknown in (first.id, UNKNOWN, "resp_x", "", "\x00", "é" * 1000):
            with pytest.raises(openai.BadRequestError) as refused:
                await other.create(**ASKED, input="more", previous_response_id=unknown)
            assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
            if unknown == first.id:
                theirs = str(refused.value).replace(first.id, UNKNOWN)
            elif unknown == UNKNOWN:
                assert str(refused.value) == theirs, "another tenant's id must look like an unknown one"
        for call in (other.retrieve, other.delete, other.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await call(first.id)
        for own, reference in ((mine, "msg_x"), (mine, item.replace("msg", "item")), (other, item)):
            with pytest.raises(openai.BadRequestError) as refused:
                await own.create(**ASKED, input=[{"type": "item_reference", "id": reference}])
            assert (refused.value.code, refused.value.param) == ("item_not_found", "input[0]")
        assert (await mine.retrieve(first.id)).output_text == first.output_text
        await mine.delete(first.id)
        for gone in (mine.retrieve, mine.delete):
            with pytest.raises(openai.NotFoundError):
                await gone(first.id)


async def test_response_expires_and_what_is_not_stored_is_not_found() -> None:
    async with routers(StoreConfig(url="memory", responses_keep=60.0)) as (router,):
        create = router.openai.responses.create
        first = await create(**ASKED, input="hi")
        unkept = await create(**ASKED, input="more", previous_response_id=first.id, store=False)
        assert unkept.store is False
        with pytest.raises(openai.BadRequestError, match="was not stored"):
            await create(**ASKED, input="more", previous_response_id=unkept.id)
        service = router.app._service
        service.wall_ms = lambda now=service.wall_ms: now() + 61_000  # type: ignore[misc]
        with pytest.raises(openai.BadRequestError, match="has expired"):
            await create(**ASKED, input="more", previous_response_id=first.id)
        with pytest.raises(openai.NotFoundError):
            await router.openai.responses.retrieve(first.id)


async def test_router_that_stores_none_says_so() -> None:
    async with routers(StoreConfig(url="memory", responses=0)) as (router,):
        answer = (await post(router, input="hi")).json
        assert answer["store"] is False and (await router.get(f"{PATH}/{answer['id']}")).status == 404
        refused = await post(router, input="hi", store=True)
        assert (refused.status, refused.error["param"]) == (400, "store") and "store.responses" in refused.error[
            "message"
        ]


async def test_store_that_fails_costs_no_answer_and_is_never_hidden(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    broken = StoreConfig(url=f"sqlite:{tmp_path / 'file' / 'x.db'}")
    async with routers(broken) as (router,):
        whole = (await post(router, input="hi")).json
        assert (whole["status"], whole["store"]) == ("incomplete", False)
        events = (await post(router, input="hi", stream=True)).body.decode()
        assert '"store":false' in events.rsplit("event: response.incomplete", 1)[1]
        for refused in (
            await post(router, input="more", previous_response_id=whole["id"]),
            await post(router, input=[{"type": "item_reference", "id": whole["output"][0]["id"]}]),
            await router.get(f"{PATH}/{whole['id']}"),
        ):
            assert (refused.status, refused.error["code"]) == (503, "store_unavailable")
            assert str(tmp_path) not in refused.error["message"]


async def test_input_items_come_in_pages() -> None:
    async with routers(StoreConfig(url="memory")) as (router,):
        items: Any = [{"role": "user", "content": [{"type": "input_text", "text": str(number)}]} for number in range(5)]
        answer = await router.openai.responses.create(**ASKED, input=items)
        assert await read_input(router, answer.id, limit=2) == list("43210")
        first = await router.openai.responses.input_items.list(answer.id, limit=2, order="asc")
        assert first.has_more and len(first.data) == 2
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=nothing"):
            refused = await router.get(f"{PATH}/{answer.id}/input_items?{query}")
            assert (refused.status, refused.error["param"]) == (400, query.partition("=")[0])
        assert (await router.get(f"{PATH}/{answer.id}?stream=true")).error["param"] == "stream"
        cancelled = await router.send("POST", f"{PATH}/{answer.id}/cancel")
        assert cancelled.status == 400 and "/v1/jobs" in cancelled.error["message"]


async def test_concurrent_turns_of_one_response_are_separate_branches() -> None:
    async with routers(StoreConfig(url="memory")) as (router,):
        create = router.openai.responses.create
        first = await create(**ASKED, input="hi")
        branches = await asyncio.gather(
            *(create(**ASKED, input=f"branch {number}", previous_response_id=first.id) for number in range(4))
        )
        for number, branch in enumerate(branches):
            assert await read_input(router, branch.id) == [f"branch {number}", first.output_text, "hi"]
