"""The JSON form of a message loses nothing except non-finite numbers."""

import json
from math import inf, nan
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from octet.rpc.messages import message_to_json
from octet.v1 import error_pb2, inference_pb2, operator_pb2, overview_pb2, specialist_pb2

KINDS: list[type[Message]] = [
    overview_pb2.Overview,
    overview_pb2.History,
    inference_pb2.Receipt,
    inference_pb2.InferRequest,
    specialist_pb2.LoadReport,
    specialist_pb2.GenerateEvent,
    operator_pb2.OperatorEvent,
]
_FLOATS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False, allow_infinity=False),
    FieldDescriptor.TYPE_FLOAT: st.floats(allow_nan=False, allow_infinity=False, width=32),
    FieldDescriptor.TYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_STRING: st.text(max_size=5),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=5),
}


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


@st.composite
def values(draw: st.DrawFn, field: FieldDescriptor, kind: Any, depth: int) -> Any:
    if field.message_type is not None:
        return draw(messages(kind, depth + 1))
    if field.enum_type is not None:
        return draw(st.sampled_from([*field.enum_type.values_by_number, 77]))
    return draw(_SCALARS[field.type])


@st.composite
def messages(draw: st.DrawFn, kind: Any, depth: int = 0) -> Any:
    """Draw messages with any combination of fields set. Deeply nested messages are small."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if not draw(st.booleans()):
            continue
        number = draw(st.integers(0, 2)) if depth < 2 else 0
        within = None if field.message_type is None else field.message_type._concrete_class
        if is_map(field):
            for key in range(number):
                getattr(message, field.name)[str(key)] = draw(
                    values(field.message_type.fields_by_name["value"], None, depth)
                )
        elif field.is_repeated:
            getattr(message, field.name).extend([draw(values(field, within, depth)) for _ in range(number)])
        elif field.message_type is not None:
            if depth < 3:
                getattr(message, field.name).CopyFrom(draw(values(field, within, depth)))
        else:
            setattr(message, field.name, draw(values(field, within, depth)))
    return message


def value_again(field: FieldDescriptor, content: Any) -> Any:
    if field.message_type is not None:
        return again(field.message_type._concrete_class, content)
    if field.enum_type is not None:
        return enum_again(field, content)
    return bytes.fromhex(content) if field.type == FieldDescriptor.TYPE_BYTES else content


def enum_again(field: FieldDescriptor, content: str) -> int:
    """Return the number of the enum value with this short name. If no value has this name, `content` is the number
    itself."""
    named = {each.name.lower(): each.number for each in field.enum_type.values if each.name.lower().endswith(content)}
    return int(named[min(named, key=len)] if named else content)


def again(kind: Any, content: dict[str, Any]) -> Any:
    message = kind()
    for name, value in content.items():
        field = kind.DESCRIPTOR.fields_by_name[name]
        if value is None:
            continue
        if is_map(field):
            of = field.message_type.fields_by_name["value"]
            getattr(message, name).update({key: value_again(of, each) for key, each in value.items()})
        elif field.is_repeated:
            getattr(message, name).extend([value_again(field, each) for each in value])
        elif field.message_type is not None:
            getattr(message, name).CopyFrom(value_again(field, value))
            getattr(message, name).SetInParent()
        else:
            setattr(message, name, value_again(field, value))
    return message


@given(st.sampled_from(KINDS).flatmap(messages))
@settings(max_examples=30, deadline=None)
def test_nothing_is_lost_on_the_way_through_json(message: Any) -> None:
    content = message_to_json(message)
    assert again(type(message), json.loads(json.dumps(content, allow_nan=False))) == message
    chosen = {each.name for each, _ in message.ListFields()}
    for field in message.DESCRIPTOR.fields:
        within = field.containing_oneof
        if within is None or within.name.startswith("_"):
            assert field.name in content, "every field must be present"
        else:
            assert (field.name in content) == (field.name in chosen), "only the chosen field of a oneof may be present"


@pytest.mark.parametrize("number", [nan, inf, -inf])
def test_non_finite_numbers_become_none(number: float) -> None:
    report = specialist_pb2.LoadReport(
        prefill_rate=number, estimate_error=specialist_pb2.EstimateError(step_p50=number)
    )
    content = message_to_json(report)
    assert content["prefill_rate"] is None and content["estimate_error"]["step_p50"] is None
    json.dumps(content, allow_nan=False)


def test_enums_become_short_names() -> None:
    error = error_pb2.Error(reason=error_pb2.ERROR_REASON_QUEUE_FULL)
    assert message_to_json(error)["reason"] == "queue_full"
    trouble = overview_pb2.Trouble(severity=overview_pb2.Trouble.CRITICAL)
    assert message_to_json(trouble)["severity"] == "critical"
    assert message_to_json(error_pb2.Error())["reason"] == "unspecified"
