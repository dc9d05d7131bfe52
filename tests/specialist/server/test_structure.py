"""Structured answers through a replica's gRPC server: their form, options, and hostile structures."""

import asyncio
import json
import re
import time
from collections.abc import Sequence
from threading import Event
from typing import Any

import grpc
import pytest
from jsonschema import Draft202012Validator

from octet.v1 import specialist_pb2 as wire
from octet.v1.error_pb2 import ERROR_REASON_INVALID_FIELD
from specialist.scheduling.sequence import GuideExhausted
from specialist.text.structured_output import Guide
from tests.specialist.server.harness import QUICK, Heard, ask, asking, expected, serving, sim

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["old", "new"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def schema(content: Any) -> wire.Structure:
    return wire.Structure(json_schema=content if isinstance(content, str) else json.dumps(content))


def choice(*choices: str) -> wire.Structure:
    return wire.Structure(choice=wire.Choices(choices=choices))


def ended(heard: Heard) -> int:
    assert heard.error is None and heard.usage is not None
    return heard.usage.finish_reason


async def test_every_kind_of_structure() -> None:
    async with serving() as served:
        for seed in range(5):
            heard = await ask(served.client, asking(structure=schema(SCHEMA), max_tokens=300, seed=seed))
            assert ended(heard) == wire.FINISH_REASON_STOP
            Draft202012Validator(SCHEMA).validate(json.loads(heard.text))
            heard = await ask(served.client, asking(structure=wire.Structure(regex=r"[a-z]+:\d{2}"), seed=seed))
            matches = re.fullmatch(r"[a-z]+:\d{2}", heard.text) is not None
            assert matches == (ended(heard) == wire.FINISH_REASON_STOP)
            heard = await ask(served.client, asking(structure=choice("yes", "no", "yes sir"), seed=seed))
            assert heard.text in ("yes", "no", "yes sir") and ended(heard) == wire.FINISH_REASON_STOP
            any_object = asking(structure=wire.Structure(json_object=True), max_tokens=400, seed=seed)
            heard = await ask(served.client, any_object)
            assert heard.text.startswith("{")
            if ended(heard) == wire.FINISH_REASON_STOP:
                assert isinstance(json.loads(heard.text), dict)


async def test_at_the_longest_length_it_ends_as_any_other() -> None:
    async with serving() as served:
        heard = await ask(served.client, asking(structure=wire.Structure(regex="a{20}"), max_tokens=19))
        assert (heard.text, ended(heard)) == ("a" * 19, wire.FINISH_REASON_LENGTH)
        heard = await ask(served.client, asking(structure=wire.Structure(regex="a{20}"), max_tokens=20))
        assert (heard.text, ended(heard)) == ("a" * 20, wire.FINISH_REASON_STOP)
        endless = asking(structure=wire.Structure(regex="a+"), max_tokens=40, ignore_eos=True)
        heard = await ask(served.client, endless)
        assert (heard.text, ended(heard)) == ("a" * 40, wire.FINISH_REASON_LENGTH)


async def test_with_stop_strings() -> None:
    async with serving() as served:
        request = asking(structure=wire.Structure(regex="ab{3}c{3}"), stop=["bc"], max_tokens=20)
        heard = await ask(served.client, request)
        assert (heard.text, ended(heard)) == ("abb", wire.FINISH_REASON_STOP)
        assert heard.usage is not None and heard.usage.stop_string == "bc"


async def test_together_as_alone() -> None:
    async with serving(sim(QUICK)) as served:
        requests = [
            asking(
                f"{seed}",
                seed=seed,
                max_tokens=60,
                structure=[schema(SCHEMA), wire.Structure(regex="[a-f]{1,50}"), None][seed % 3],
            )
            for seed in range(12)
        ]
        alone = [(await ask(served.client, request)).tokens for request in requests]
        together = await asyncio.gather(*(ask(served.client, request) for request in requests))
        assert [heard.tokens for heard in together] == alone
        await served.idle()
        served.check_whole()


HOSTILE: list[tuple[str, wire.Structure]] = [
    ("structure", wire.Structure()),
    ("structure.json_object", wire.Structure(json_object=False)),
    ("structure.json_schema", schema("")),
    ("structure.json_schema", schema("{")),
    ("structure.json_schema", schema("3")),
    ("structure.json_schema", schema({"enum": ["x" * 1_000_000]})),
    ("structure.json_schema", schema({"enum": list(range(100_000))})),
    ("structure.json_schema", schema('{"items":' * 1000 + "{}" + "}" * 1000)),
    ("structure.json_schema", schema("[" * 60_000)),
    ("structure.json_schema", schema({"$ref": "#"})),
    ("structure.json_schema", schema({"allOf": [{"$ref": "#"}, {"type": "object"}]})),
    ("structure.json_schema", schema({"$ref": "file:///etc/passwd"})),
    ("structure.json_schema", schema({"not": {}})),
    (
        "structure.json_schema",
        schema({"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for i in range(40)]} for j in range(40)]}),
    ),
    ("structure.regex", wire.Structure(regex="")),
    ("structure.regex", wire.Structure(regex="(")),
    ("structure.regex", wire.Structure(regex="a" * 8193)),
    ("structure.regex", wire.Structure(regex="(?<=a)b")),
    ("structure.choice.choices", choice()),
    ("structure.choice.choices", choice("")),
    ("structure.choice.choices", choice("a", "a")),
    ("structure.choice.choices", choice(*map(str, range(1025)))),
    ("structure.choice.choices", choice("x" * 1025)),
    ("structure.choice", choice(*(f"{i:01000}" for i in range(100)))),
]
"""Refused; the others are hard, and may be answered."""
HARD = [
    wire.Structure(regex="(a+)+$"),
    wire.Structure(regex="(((a*)*)*)*b"),
    wire.Structure(regex="a{1,1000000}"),
    wire.Structure(regex="((a{1,1000}){1,1000}){1,1000}"),
    wire.Structure(regex="(.*a.{200}b.*){1,30}"),
    wire.Structure(regex="(" * 4000 + "a" + ")" * 4000),
    wire.Structure(regex="|".join(f".*{i}.*" for i in range(900))),
    schema({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"x": {"$ref": "#/$defs/a"}}, "type": "object"}}}),
    schema({"type": "string", "pattern": "^(([a-z])+.)+[A-Z]([a-z])+$"}),
    schema({"type": "array", "minItems": 1_000_000, "maxItems": 1_000_000}),
    schema({"type": "string", "minLength": 1_000_000}),
    schema({"enum": list(range(10_000))}),
    schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2000)}}),
    schema({"frobnicate": 1}),
    choice(*map(str, range(1000, 2024))),
]


async def test_hostile_structures_are_refused_soon_and_harm_no_other_request() -> None:
    async with serving(sim(QUICK), piece_gap=0.0) as served:
        neighbour = asking("the neighbour", max_tokens=500 - len("the neighbour"), seed=5, ignore_eos=True)
        right = expected(served.replica, neighbour)
        gaps: list[float] = []

        async def listen() -> None:
            while not done.is_set():
                heard, last = Heard(), time.perf_counter()
                async for event in served.client.generate(neighbour):
                    heard.hear(event)
                    now = time.perf_counter()
                    gaps.append(now - last)
                    last = now
                assert heard.tokens == right

        done = asyncio.Event()
        listening = asyncio.create_task(listen())
        for field, structure in HOSTILE:
            started = time.process_time()
            heard = await ask(served.client, asking(structure=structure))
            assert time.process_time() - started < 5, (field, str(structure)[:80])
            assert heard.error is not None and heard.error.error is not None, str(structure)[:80]
            assert (heard.error.code, heard.error.error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
            assert heard.error.error.limit and heard.error.error.value
        for structure in HARD:
            started = time.process_time()
            heard = await ask(served.client, asking(structure=structure))
            assert time.process_time() - started < 5, str(structure)[:80]
            if heard.error is not None:
                assert heard.error.code == grpc.StatusCode.INVALID_ARGUMENT, (str(structure)[:80], heard.error)
            else:
                assert ended(heard) in (wire.FINISH_REASON_STOP, wire.FINISH_REASON_LENGTH)
        done.set()
        await listening
        assert len(gaps) > 100 and max(gaps) < 5
        await served.idle()
        served.check_whole()


async def test_structure_that_compiles_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as served:
        grammars = served.replica.grammars
        is_refused = Event()
        monkeypatch.setattr(grammars, "compile", lambda structure: is_refused.wait(60))
        started = time.perf_counter()
        heard = await ask(served.client, asking(structure=wire.Structure(regex="a")))
        is_refused.set()
        assert time.perf_counter() - started >= 1
        assert heard.error is not None and heard.error.error is not None
        assert (heard.error.code, heard.error.error.field) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "structure.regex",
        )
        assert "1 second" in heard.error.error.limit


async def test_a_form_that_becomes_too_costly_is_the_callers_and_not_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or a router would take the replica for a sick one, and ask the next."""
    allowed = Guide.allowed

    def costly(guide: Guide, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        if len(generated) >= 3:
            raise GuideExhausted("the structure cannot be followed further")
        return allowed(guide, generated, guessed)

    async with serving() as served:
        monkeypatch.setattr(Guide, "allowed", costly)
        heard = await ask(served.client, asking(structure=wire.Structure(regex="a{20}"), max_tokens=20))
        assert heard.error is not None and heard.error.error is not None and heard.text == "aaa"
        assert heard.error.code == grpc.StatusCode.INVALID_ARGUMENT
        assert (heard.error.error.reason, heard.error.error.field) == (ERROR_REASON_INVALID_FIELD, "structure")
        await served.idle()
        served.check_whole()
