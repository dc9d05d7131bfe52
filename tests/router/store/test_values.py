"""Every database accepts the same values and returns them unchanged."""

import asyncio
import json
from typing import Any

import pytest

from octet.rpc.refusal import Refusal
from router.store.rows import AuditRow, ComparisonRow, CountBucket, ReceiptRow
from tests.router.store.stores import NOW, audit_row, counted, eventually, opened

LARGEST = {"t": "x" * ((64 << 10) - len('{"t":""}'))}


async def test_texts_are_returned_unchanged(url: str) -> None:
    body = {"nul": "\0", "lone": "\ud800", "wide": "\U0001f600", "": [None, True, 1e300, -(2**80)], "%s ? {}": "'\"\\"}
    prose = AuditRow(0, NOW, "Ann\0\udfff", "\ud800 why", "{}%s?", "ü", "", "'; DROP TABLE audit --")
    async with opened(url) as store:
        document = await store.change("knob", "ü%s?'", 0, body, prose)
        assert document.body == body
        assert list(await store.documents()) == [document]
        assert document.changed_by == "Ann\\x00\\udfff"
        (row,) = await store.audit(subject="ü")
        assert row == prose._replace(number=1, who="Ann\\x00\\udfff", why="\\ud800 why")
        await store.change("knob", "large", 0, LARGEST, audit_row())
        store.keep_receipt(ReceiptRow("ü", NOW, bytes(range(256)) * 4096))
        await eventually(lambda: store._held.is_empty)
        kept = await store.receipt("ü")
        assert kept is not None
        assert kept.raw == bytes(range(256)) * 4096


@pytest.mark.parametrize("key", ["", "a\0", "\ud800", "x" * 257, "ü" * 129])
async def test_an_invalid_key_is_refused(key: str) -> None:
    async with opened("memory") as store:
        for kind, name in (("knob", key), (key, "a")):
            with pytest.raises(Refusal, match="must be 1 to 256 bytes"):
                await store.change(kind, name, 0, {}, audit_row())
        with pytest.raises(Refusal, match=r"audit\.subject"):
            await store.change("knob", "a", 0, {}, audit_row(key))
        with pytest.raises(Refusal, match="request_id"):
            await store.receipt(key)
        assert (await store.documents(), await store.audit()) == ([], [])


NO_BODIES = {
    "list": [],
    "text": "text",
    "nan": {"n": float("nan")},
    "object": {"n": object()},
    "set": {"n": {1, 2}},
    "large": {"t": LARGEST["t"] + "x"},
}


@pytest.mark.parametrize("body", NO_BODIES.values(), ids=NO_BODIES)
async def test_an_invalid_body_is_refused(body: Any) -> None:
    async with opened("memory") as store:
        with pytest.raises(Refusal) as refused:
            await store.change("knob", "a", 0, body, audit_row())
        assert refused.value.error.field == "body"


def test_a_body_that_is_too_deep_is_refused() -> None:
    body: dict[str, Any] = {}
    for _ in range(100_000):
        body = {"n": body}

    async def scenario() -> None:
        async with opened("memory") as store:
            with pytest.raises(Refusal):
                await store.change("knob", "a", 0, body, audit_row())

    asyncio.run(scenario())
    while body:  # Unnest level by level, because Python's destructor recurses.
        body = body["n"]


@pytest.mark.parametrize(
    "row", [audit_row()._replace(why="x" * 65_537), audit_row()._replace(at_ms=-1)], ids=["why", "at_ms"]
)
async def test_an_invalid_audit_row_is_refused(row: AuditRow) -> None:
    async with opened("memory") as store:
        with pytest.raises(Refusal, match=r"audit\."):
            await store.change("knob", "a", 0, {}, row)


async def test_invalid_rows_are_dropped_and_counted(url: str) -> None:
    async with opened(url) as store:
        store.count(counted(1, 1, key="a\0"))
        store.count(counted(-1, 0))
        store.count(CountBucket("correctness", "lane", -1, 1, 0))
        store.keep_receipt(ReceiptRow("\ud800", NOW, b""))
        store.keep_receipt(ReceiptRow("r", NOW, bytes((1 << 20) + 1)))
        store.keep_comparison(ComparisonRow(2**60, "r", b""))
        store.count(counted(1, 0))
        await eventually(lambda: store._held.is_empty)
        figures = store.counters()
        assert (figures.dropped_receipts, figures.dropped_comparisons) == (2, 1)
        assert figures.dropped_counts == 3
        assert (await store.buckets("correctness", 0)) == [counted(1, 0)]


def test_the_largest_body_has_the_documented_size() -> None:
    assert len(json.dumps(LARGEST, separators=(",", ":"))) == 64 << 10
