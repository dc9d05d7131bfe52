"""`response_format` with OpenAI's own client: structured answers, and errors that name the field."""

import json
import re
from typing import TYPE_CHECKING, Any, Literal

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from tests.later import Later
from tests.router.http.harness import HELLO, running_http_router
from tests.specialist.server.harness import QUICK, running_replica, sim

if TYPE_CHECKING:
    import openai
else:
    openai = Later("openai")

CHAT: dict[str, Any] = {"model": "octet/writer", "messages": HELLO, "max_tokens": 300}
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["a", "b"]}},
    "required": ["size", "kind"],
    "additionalProperties": False,
}


class Report(BaseModel):
    kind: Literal["bug", "wish"]
    lines: list[int] = Field(max_length=3)


def json_schema(schema: Any, **more: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


async def test_answers_follow_every_response_format() -> None:
    async with (
        running_replica(sim(QUICK, context=1024)) as served,
        running_http_router({"writer": [served.address]}) as fronted,
    ):
        create = fronted.openai.chat.completions.create
        for seed in range(3):
            asked = {**CHAT, "seed": seed}
            shaped = await create(**asked, response_format=json_schema(SCHEMA, strict=True))
            assert shaped.choices[0].finish_reason == "stop"
            Draft202012Validator(SCHEMA).validate(json.loads(shaped.choices[0].message.content or ""))
            free = await create(**asked, response_format={"type": "json_object"})
            assert (free.choices[0].message.content or "").startswith("{")
            plain = await create(**asked, response_format={"type": "text"})
            assert plain.choices[0].message.content == (await create(**asked)).choices[0].message.content
            own = await create(**asked, extra_body={"octet": {"structure": {"regex": "[a-c]{4}"}}})
            assert re.fullmatch("[a-c]{4}", own.choices[0].message.content or "")
            yes_no = {"octet": {"structure": {"choice": ["yes", "no"]}}}
            result = await fronted.openai.completions.create(model="octet/writer", prompt="so?", extra_body=yes_no)
            assert result.choices[0].text in ("yes", "no")


async def test_pydantic_model_is_parsed_whole_and_streamed() -> None:
    async with (
        running_replica(sim(QUICK, context=1024)) as served,
        running_http_router({"writer": [served.address]}) as fronted,
    ):
        chat = fronted.openai.chat.completions
        parsed = await chat.parse(**CHAT, seed=2, response_format=Report)
        assert isinstance(parsed.choices[0].message.parsed, Report)
        async with chat.stream(**CHAT, seed=2, response_format=Report) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == parsed.choices[0].message.parsed


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "xml"}}, "response_format.type", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.name", "missing"),
    ({"response_format": json_schema(None)}, "response_format.json_schema.schema", "a JSON Schema"),
    ({"response_format": json_schema({"not": {}})}, "response_format", "satisfies"),
    ({"response_format": json_schema({"$ref": "#"})}, "response_format", "satisfies"),
    ({"response_format": json_schema({"enum": ["x" * 70_000]})}, "response_format", "65,536 bytes"),
    (
        {"response_format": {"type": "json_object"}, "extra_body": {"octet": {"structure": {"regex": "a"}}}},
        "response_format",
        "octet.structure",
    ),
    ({"extra_body": {"octet": {"structure": {"regex": "("}}}}, "octet.structure.regex", "regular expression"),
    ({"extra_body": {"octet": {"structure": {"choice": []}}}}, "octet.structure.choice", "non-empty"),
    ({"extra_body": {"octet": {"structure": {"json_object": False}}}}, "octet.structure.json_object", "true"),
    (
        {"extra_body": {"octet": {"structure": {"regex": "a", "choice": ["a"]}}}},
        "octet.structure",
        "exactly one of the keys",
    ),
]


async def test_invalid_response_format_names_the_field() -> None:
    async with running_replica(sim()) as served, running_http_router({"writer": [served.address]}) as fronted:
        for given, param, words in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await fronted.openai.chat.completions.create(**{**CHAT, **given})
            assert caught.value.param == param and words in caught.value.message, given
