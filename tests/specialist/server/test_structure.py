"""Structured answers through a replica's gRPC server: their form, their options, and hostile structures."""

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
from tests.patience import PATIENCE
from tests.specialist.server.harness import QUICK, ReceivedAnswer, ask, expected, generate_request, running_replica, sim

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


def ended(received: ReceivedAnswer) -> int:
    assert received.error is None and received.usage is not None
    return received.usage.finish_reason


async def test_every_kind_of_structure() -> None:
    async with running_replica() as served:
        for seed in range(5):
            received = await ask(served.client, generate_request(structure=schema(SCHEMA), max_tokens=300, seed=seed))
            assert ended(received) == wire.FINISH_REASON_STOP
            Draft202012Validator(SCHEMA).validate(json.loads(received.text))
            received = await ask(
                served.client, generate_request(structure=wire.Structure(regex=r"[a-z]+:\d{2}"), seed=seed)
            )
            matches = re.fullmatch(r"[a-z]+:\d{2}", received.text) is not None
            assert matches == (ended(received) == wire.FINISH_REASON_STOP)
            received = await ask(served.client, generate_request(structure=choice("yes", "no", "yes sir"), seed=seed))
            assert received.text in ("yes", "no", "yes sir") and ended(received) == wire.FINISH_REASON_STOP
            any_object = generate_request(structure=wire.Structure(json_object=True), max_tokens=400, seed=seed)
            received = await ask(served.client, any_object)
            assert received.text.startswith("{")
            if ended(received) == wire.FINISH_REASON_STOP:
                assert isinstance(json.loads(received.text), dict)


async def test_a_structured_answer_ends_at_max_tokens() -> None:
    async with running_replica() as served:
        received = await ask(served.client, generate_request(structure=wire.Structure(regex="a{20}"), max_tokens=19))
        assert (received.text, ended(received)) == ("a" * 19, wire.FINISH_REASON_LENGTH)
        received = await ask(served.client, generate_request(structure=wire.Structure(regex="a{20}"), max_tokens=20))
        assert (received.text, ended(received)) == ("a" * 20, wire.FINISH_REASON_STOP)
        endless = generate_request(structure=wire.Structure(regex="a+"), max_tokens=40, ignore_eos=True)
        received = await ask(served.client, endless)
        assert (received.text, ended(received)) == ("a" * 40, wire.FINISH_REASON_LENGTH)


async def test_a_structured_answer_ends_at_a_stop_string() -> None:
    async with running_replica() as served:
        request = generate_request(structure=wire.Structure(regex="ab{3}c{3}"), stop=["bc"], max_tokens=20)
        received = await ask(served.client, request)
        assert (received.text, ended(received)) == ("abb", wire.FINISH_REASON_STOP)
        assert received.usage is not None and received.usage.stop_string == "bc"


async def test_structured_answers_do_not_depend_on_the_batch() -> None:
    async with running_replica(sim(QUICK)) as served:
        requests = [
            generate_request(
                f"{seed}",
                seed=seed,
                max_tokens=60,
                structure=[schema(SCHEMA), wire.Structure(regex="[a-f]{1,50}"), None][seed % 3],
            )
            for seed in range(12)
        ]
        alone = [(await ask(served.client, request)).tokens for request in requests]
        together = await asyncio.gather(*(ask(served.client, request) for request in requests))
        assert [received.tokens for received in together] == alone
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
"""Refused structures, each with the field that the refusal names. The structures in HARD may be answered instead."""
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
    async with running_replica(sim(QUICK), piece_gap=0.0) as served:
        neighbour = generate_request("the neighbour", max_tokens=500 - len("the neighbour"), seed=5, ignore_eos=True)
        right = expected(served.replica, neighbour)
        gaps: list[float] = []

        async def listen() -> None:
            while not done.is_set():
                received, last = ReceivedAnswer(), time.process_time()
                async for event in served.client.generate(neighbour):
                    received.add(event)
                    now = time.process_time()
                    gaps.append(now - last)
                    last = now
                assert received.tokens == right

        done = asyncio.Event()
        listening = asyncio.create_task(listen())
        for field, structure in HOSTILE:
            started = time.process_time()
            received = await ask(served.client, generate_request(structure=structure))
            assert time.process_time() - started < 5, (field, str(structure)[:80])
            assert received.error is not None and received.error.error is not None, str(structure)[:80]
            assert (received.error.code, received.error.error.field) == (grpc.StatusCode.INVALID_ARGUMENT, field)
            assert received.error.error.limit and received.error.error.value
        for structure in HARD:
            started = time.process_time()
            received = await ask(served.client, generate_request(structure=structure))
            assert time.process_time() - started < 5, str(structure)[:80]
            if received.error is not None:
                assert received.error.code == grpc.StatusCode.INVALID_ARGUMENT, (str(structure)[:80], received.error)
            else:
                assert ended(received) in (wire.FINISH_REASON_STOP, wire.FINISH_REASON_LENGTH)
        done.set()
        await listening
        assert len(gaps) > 100 and max(gaps) < 5
        await served.idle()
        served.check_whole()


async def test_structure_that_compiles_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_replica() as served:
        grammars = served.replica.grammars
        is_refused = Event()
        monkeypatch.setattr(grammars, "compile", lambda structure: is_refused.wait(PATIENCE))
        started = time.perf_counter()
        received = await ask(served.client, generate_request(structure=wire.Structure(regex="a")))
        is_refused.set()
        assert time.perf_counter() - started >= 1
        assert received.error is not None and received.error.error is not None
        assert (received.error.code, received.error.error.field) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            "structure.regex",
        )
        assert "within 1 s" in received.error.error.limit


async def test_an_exhausted_structure_is_the_callers_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If an exhausted structure were reported as an engine error, it would count against the replica's health."""
    allowed = Guide.allowed

    def costly(guide: Guide, generated: Sequence[int], guessed: Sequence[int] = ()) -> bytes | None:
        if len(generated) >= 3:
            raise GuideExhausted("the answer cannot continue within its structure")
        return allowed(guide, generated, guessed)

    async with running_replica() as served:
        monkeypatch.setattr(Guide, "allowed", costly)
        received = await ask(served.client, generate_request(structure=wire.Structure(regex="a{20}"), max_tokens=20))
        assert received.error is not None and received.error.error is not None and received.text == "aaa"
        assert received.error.code == grpc.StatusCode.INVALID_ARGUMENT
        assert (received.error.error.reason, received.error.error.field) == (ERROR_REASON_INVALID_FIELD, "structure")
        await served.idle()
        served.check_whole()
