"""A receipt keeps every field of its message, except fields that repeat others."""

import json
import pickle
from typing import Any

import grpc
from hypothesis import given
from hypothesis import strategies as st

from octet.cli.receipts import explain_decision, format_decision, format_receipt
from octet.client.errors import Busy
from octet.client.receipts import Receipt
from octet.client.wire_record import enum_label
from octet.v1 import inference_pb2 as wire

RENAMED = {"accepted": "admission", "error.retry_after_ms": "retry_after"}
DROPPED = {"admission.request_id", "admission.lane", "error.ticket", "error.place"}
"""Fields that repeat other fields of the receipt, and fields that the router leaves out of receipts."""
_STRING, _MESSAGE, _ENUM, _DOUBLE = 9, 11, 14, 1


def filled(kind: Any) -> Any:
    """Return a message in which every field is set, nearly all of them to distinct values."""
    message = kind()
    for number, field in enumerate(kind.DESCRIPTOR.fields, start=1):
        if field.message_type is not None:
            value = filled(getattr(wire, field.message_type.name))
            if field.is_repeated:
                getattr(message, field.name).append(value)
            else:
                getattr(message, field.name).CopyFrom(value)
            continue
        plain: Any = f"{field.name}-{number}" if field.type == _STRING else 1 if field.type == _ENUM else number
        plain = number / 64 if field.type == _DOUBLE else plain
        if field.is_repeated:
            getattr(message, field.name).append(plain)
        else:
            setattr(message, field.name, plain)
    return message


def missing(message: Any, shown_as: Any, prefix: str = "") -> list[str]:
    """Return the fields that are set in the message but missing from the dictionary."""
    found = []
    for field, _ in message.ListFields():
        name = RENAMED.get(f"{prefix}{field.name}", field.name)
        path = f"{prefix}{name}"
        if path in DROPPED:
            continue
        if name not in shown_as or shown_as[name] in (None, "", [], {}):
            found.append(path)
        elif field.message_type is not None and not field.is_repeated and field.name != "sampling":
            found += missing(getattr(message, field.name), shown_as[name], f"{path}.")
    return found


def test_nothing_is_lost() -> None:
    message = filled(wire.Receipt)
    receipt = Receipt.from_wire(message)
    as_dict = json.loads(json.dumps(receipt.to_dict()))
    assert missing(message, as_dict) == []
    assert receipt.wire == message and "wire" not in as_dict
    assert set(as_dict["decision"]["sampling"]) == set(wire.Sampling.DESCRIPTOR.fields_by_name)
    assert as_dict["decision"]["source"] == "forced" and as_dict["error"]["reason"] == "malformed"
    assert as_dict["attempts"][0]["reason"] == "malformed" and as_dict["usage"]["finish_reason"] == "stop"
    assert receipt.adapters == ("adapter_digests-3",) and receipt.why == "why-3"
    assert receipt.distribution[0].probability == 2 / 64


def test_receipts_are_hashable_and_picklable() -> None:
    receipt, same = (Receipt.from_wire(filled(wire.Receipt)) for _ in range(2))
    assert len({receipt, same, Receipt.from_wire(wire.Receipt())}) == 2
    error = Busy("no", code=grpc.StatusCode.UNAVAILABLE, reason="queue_full", retry_after=1.5, receipt=receipt)
    error.add_note("as it came")
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert type(copy) is Busy and str(copy) == "no" and vars(copy) == vars(error)
    assert copy.receipt is not None and copy.receipt.wire == receipt.wire


def test_empty_receipt() -> None:
    receipt = Receipt.from_wire(wire.Receipt())
    assert (receipt.usage, receipt.admission, receipt.error, receipt.timings.decided) == (None,) * 4
    assert receipt.decision.confidence is None and receipt.decision.source == ""
    assert format_decision(receipt.decision) == "no specialist  -  reject"


def test_unknown_enum_value_shows_its_number() -> None:
    assert enum_label(wire.FinishReason.DESCRIPTOR, 99) == "99"


def scalars(field: Any) -> st.SearchStrategy[Any]:
    if field.type == _ENUM:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type == _STRING:
        return st.text(max_size=70)
    return st.floats(0, 1) if field.type == _DOUBLE else st.integers(0, 2**62)


@st.composite
def receipts(draw: st.DrawFn, kind: Any = wire.Receipt) -> Any:
    """Draw messages of this type with any of their fields set."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if draw(st.booleans()):
            continue
        if field.message_type is not None:
            value = draw(receipts(getattr(wire, field.message_type.name)))
            target = getattr(message, field.name)
            target.append(value) if field.is_repeated else target.CopyFrom(value)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(scalars(field), max_size=2)))
        else:
            setattr(message, field.name, draw(scalars(field)))
    return message


@given(receipts())
def test_any_receipt_can_be_formatted(message: wire.Receipt) -> None:
    receipt = Receipt.from_wire(message)
    assert Receipt.from_wire(wire.Receipt.FromString(message.SerializeToString())) == receipt
    json.dumps(receipt.to_dict())
    assert format_decision(receipt.decision) in explain_decision(receipt)
    text = format_receipt(receipt)
    for name in (receipt.specialist, receipt.request_id, receipt.why):
        assert name.rstrip() in text, "the text must have no trailing spaces"
