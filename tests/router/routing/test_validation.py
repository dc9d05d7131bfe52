"""Validation returns a request within every limit, or a refusal that names the field."""

from math import inf, isfinite, nan
from typing import Any

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octet.clock import ManualClock
from octet.rpc.refusal import Refusal
from octet.v1 import inference_pb2 as wire
from router.request import Request
from router.routing.validation import COUNTS, RANGES, SIZES
from tests.router.routing.sample_requests import DEFAULT_TIMEOUT, anything, new_validator, sensible, validated_request

DAY = 24 * 3600


def field_exists(path: str) -> bool:
    kind = wire.InferRequest.DESCRIPTOR
    for name in path.split("."):
        if kind is None or name not in kind.fields_by_name:
            return False
        kind = kind.fields_by_name[name].message_type
    return True


def in_range(ask: Request) -> bool:
    given_numbers = {
        "max_experts": ask.max_experts,
        "max_tokens": ask.max_tokens,
        "min_tokens": ask.min_tokens,
        "context_size": ask.context_size,
        "draft_window": ask.draft_window,
        "priority": ask.priority,
        "seed": ask.seed,
    }
    for field, _ in () if ask.sampling is None else ask.sampling.ListFields():
        if field.name != "logit_bias":
            given_numbers[f"sampling.{field.name}"] = getattr(ask.sampling, field.name)
    numbers = all(value is None or value in RANGES[field] for field, value in given_numbers.items())
    texts = {"request_id": ask.request_id, "session_id": ask.session.name, "intent": ask.intent}
    sizes = all(len(text.encode()) <= SIZES[field] and text.isprintable() for field, text in texts.items())
    lists = {
        "force_specialists": ask.force,
        "exclude_specialists": ask.exclude,
        "adapters": ask.adapters,
        "stop": ask.stop,
    }
    counts = all(len(values) <= COUNTS[field] for field, values in lists.items())
    return numbers and sizes and counts and bool(ask.request_id) and not set(ask.force) & set(ask.exclude)


@given(anything, st.none() | st.floats(), st.none() | st.text(max_size=60))
def test_validation_gives_a_request_in_range_or_a_refusal_with_its_field(
    message: wire.InferRequest, seconds_left: float | None, traceparent: str | None
) -> None:
    before = message.SerializeToString(deterministic=True)
    try:
        ask = new_validator().validate(message, seconds_left, traceparent)
    except Refusal as refusal:
        assert refusal.error.reason in (wire.ERROR_REASON_INVALID_FIELD, wire.ERROR_REASON_DEADLINE)
        if refusal.error.reason == wire.ERROR_REASON_INVALID_FIELD:
            assert field_exists(refusal.error.field), refusal.error.field
            assert refusal.error.limit and refusal.error.value
            assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    else:
        assert in_range(ask)
        assert ask.text.strip() and 0 < ask.deadline - ask.arrival <= DAY
    assert message.SerializeToString(deterministic=True) == before


@given(sensible(("a", "b", "c"), ("i",)))
def test_a_valid_request_passes_unchanged(message: wire.InferRequest) -> None:
    ask = new_validator().validate(message, None, None)
    assert ask.sampling == (message.sampling if message.HasField("sampling") else None)
    assert ask.force == tuple(message.force_specialists) and ask.exclude == tuple(message.exclude_specialists)
    assert ask.stop == tuple(message.stop) and ask.adapters == tuple(message.adapters)
    assert ask.priority == (message.priority if message.HasField("priority") else 5)
    assert [(turn.role, turn.content) for turn in ask.messages] == (
        [(turn.role, turn.content) for turn in message.messages] or [("user", message.prompt)]
    )


@pytest.mark.parametrize(("field", "allowed"), RANGES.items())
def test_every_range_ends_as_documented(field: str, allowed: Any) -> None:
    def ask_for(value: float) -> None:
        message = wire.InferRequest(prompt="x")
        *parents, name = field.split(".")
        holder: Any = message
        for parent in parents:
            holder = getattr(holder, parent)
        setattr(holder.add() if parents[-1:] == ["logit_bias"] else holder, name, value)
        new_validator().validate(message, None, None)

    whole = not isinstance(_field(field).default_value, float)
    step = 1 if whole else 1e-9
    for good in (allowed.least + (step if allowed.open else 0), allowed.most):
        ask_for(int(good) if whole else good)
    bad = [allowed.least if allowed.open else allowed.least - step, allowed.most + max(step, 1)]
    for value in [*bad, *([] if whole else [nan, inf, -inf])]:
        if whole and not -(2**63) <= value < 2**63:
            continue
        with pytest.raises(Refusal) as refused:
            ask_for(int(value) if whole else value)
        assert refused.value.error.field == field
        assert refused.value.error.limit == str(allowed)


def _field(path: str) -> Any:
    kind = wire.InferRequest.DESCRIPTOR
    *parents, last = path.split(".")
    for name in parents:
        kind = kind.fields_by_name[name].message_type
    return kind.fields_by_name[last]


def test_the_documented_fields_exist() -> None:
    assert all(field_exists(field) for field in (*SIZES, *COUNTS, *RANGES))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("prompt", {"prompt": "é" * 1_000_001}),
        ("body", {"body": "x" * 2_000_001}),
        ("template", {"template": "{prompt}" + "x" * 100_000}),
        ("template", {"template": "{body}" * 10 + "{prompt}", "body": "x" * 300_000}),
        ("template", {"template": "no place for it"}),
        ("template", {"template": "only {prompt}", "body": "left out"}),
        ("messages", {"messages": [wire.Message(role="user", content="x")] * 1025}),
        ("messages", {"messages": [wire.Message(role="user", content="é" * 500_001)] * 2}),
        ("messages", {"messages": [wire.Message(role="system", content="be brief")]}),
        ("messages.role", {"messages": [wire.Message(role="User", content="x")]}),
        ("prompt", {"prompt": "x", "messages": [wire.Message(role="user", content="x")]}),
        ("prompt", {"prompt": " \n\t\u00a0"}),
        ("exclude_specialists", {"force_specialists": ["a"], "exclude_specialists": ["a"]}),
        ("force_specialists", {"force_specialists": [f"s{n}" for n in range(17)]}),
        ("force_specialists", {"force_specialists": ["a", "a"]}),
        ("intent", {"intent": "x" * 65}),
        ("request_id", {"request_id": "one\nline two"}),
        ("user_id", {"user_id": "x" * 257}),
        ("user_id", {"session_id": "s", "user_id": "x" * 257}),
        ("metadata", {"metadata": {f"k{n}": "" for n in range(17)}}),
        ("metadata", {"metadata": {"": "x"}}),
        ("metadata", {"metadata": {"a\nb": "x"}}),
        ("metadata.key", {"metadata": {"é" * 33: "x"}}),
        ("metadata.value", {"metadata": {"k": "é" * 257}}),
        ("metadata", {"metadata": {"session_id": "x" * 129}}),
        ("metadata", {"session_id": "s", "metadata": {"session_id": "a\nb"}}),
        ("tenant_salt", {"tenant_salt": b"x" * 65}),
        ("stop", {"stop": [""]}),
        ("stop", {"stop": ["x"] * 17}),
        ("stop", {"stop": ["é" * 129]}),
        ("min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    ],
)  # fmt: skip
def test_a_refusal_names_its_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        validated_request(**fields)
    assert refused.value.error.field == field
    assert len(refused.value.error.value) < 200


def test_the_total_size_is_checked_first() -> None:
    message = wire.InferRequest(prompt="x" * 1_600_000, body="y" * 1_600_000)
    with pytest.raises(Refusal) as refused:
        new_validator().validate(message, None, None)
    assert refused.value.error.field == "request"


@given(
    st.floats(0, 1e9),
    st.none() | st.integers(1, DAY * 1000),
    st.none() | st.floats(allow_nan=True, allow_infinity=True),
)
def test_the_earlier_deadline_counts_and_none_overflows(
    now: float, timeout_ms: int | None, seconds_left: float | None
) -> None:
    message = wire.InferRequest(prompt="x", timeout_ms=timeout_ms)
    named = [] if timeout_ms is None else [timeout_ms / 1000]
    if seconds_left is not None and isfinite(seconds_left):
        named.append(min(seconds_left, DAY))
    if named and min(named) <= 0:
        with pytest.raises(Refusal) as refused:
            new_validator(ManualClock(now)).validate(message, seconds_left, None)
        assert refused.value.error.reason == wire.ERROR_REASON_DEADLINE
        return
    ask = new_validator(ManualClock(now)).validate(message, seconds_left, None)
    assert ask.arrival == now
    assert ask.deadline == now + min(named, default=DEFAULT_TIMEOUT)


@given(st.floats(0, 1e9), st.none() | st.integers(1, DAY * 1000))
def test_the_first_token_has_its_own_deadline(now: float, first_ms: int | None) -> None:
    ask = new_validator(ManualClock(now)).validate(
        wire.InferRequest(prompt="x", first_token_timeout_ms=first_ms), None, None
    )
    assert ask.first_deadline == (None if first_ms is None else now + first_ms / 1000)
    assert ask.deadline == now + DEFAULT_TIMEOUT


def test_an_id_is_the_callers_or_a_new_one() -> None:
    door = new_validator()
    asks = [door.validate(wire.InferRequest(prompt="x", request_id=given), None, None) for given in ("", "mine", "")]
    assert [ask.request_id for ask in asks] == ["made-1", "mine", "made-2"]


@pytest.mark.parametrize(
    ("field", "structure"),
    [
        ("structure", wire.Structure()),
        ("structure.json_object", wire.Structure(json_object=False)),
        ("structure.json_schema", wire.Structure(json_schema="")),
        ("structure.json_schema", wire.Structure(json_schema=" " * 65_537)),
        ("structure.regex", wire.Structure(regex="")),
        ("structure.regex", wire.Structure(regex="a" * 8193)),
        ("structure.choice.choices", wire.Structure(choice=wire.Choices())),
        ("structure.choice.choices", wire.Structure(choice=wire.Choices(choices=["a", ""]))),
        ("structure.choice.choices", wire.Structure(choice=wire.Choices(choices=["a", "a"]))),
        ("structure.choice.choices", wire.Structure(choice=wire.Choices(choices=map(str, range(1025))))),
        ("structure.choice.choices", wire.Structure(choice=wire.Choices(choices=["a" * 1025]))),
        ("structure.choice", wire.Structure(choice=wire.Choices(choices=[f"{i:01000}" for i in range(66)]))),
    ],
)
def test_an_empty_or_oversized_structure_is_refused(field: str, structure: wire.Structure) -> None:
    with pytest.raises(Refusal) as refused:
        new_validator().validate(wire.InferRequest(prompt="x", structure=structure), None, None)
    assert refused.value.error.field == field and refused.value.error.limit and refused.value.error.value
