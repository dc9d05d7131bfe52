"""The newest document is in force, in whatever order documents arrive. A change that is not yet stored takes precedence
over it."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from router.control.audit import ChangeAuthor, DocumentCache, audit_row
from router.control.breakers import BreakerDocument, merge_breaker_documents
from router.store.rows import Document

ROW = audit_row(1.0, ChangeAuthor("breaker", "why"), "trip", "algo", "closed", "shadow_only")
BODIES = st.none() | st.integers(0, 9).map(lambda number: {"number": number})


def document(version: int, body: dict[str, int] | None, key: str = "algo") -> Document:
    return Document("breaker", key, version, body, 0, "ann")


@given(st.lists(BODIES, min_size=1, max_size=6).flatmap(lambda bodies: st.permutations(list(enumerate(bodies, 1)))))
def test_the_newest_document_is_in_force_in_any_order_of_arrival(
    documents: Sequence[tuple[int, dict[str, int] | None]],
) -> None:
    cache = DocumentCache()
    for version, body in documents:
        cache.take(document(version, body))
    version, body = max(documents, key=lambda each: each[0])
    assert cache.body("breaker", "algo") == body
    assert cache.version("breaker", "algo") == (0 if body is None else version)
    assert [each.key for each in cache.of_kind("breaker")] == ([] if body is None else ["algo"])


@given(st.lists(st.sampled_from(["take", "whole", "put", "settle"]), max_size=12))
def test_an_unsaved_change_stays_until_it_is_settled(acts: list[str]) -> None:
    cache, own, version = DocumentCache(), None, 1
    cache.take(document(1, {"number": 0}))
    for number, act in enumerate(acts, 1):
        version += 1
        if act == "take":
            cache.take(document(version, {"number": -number}))
        elif act == "whole":
            cache.take_all([document(version, {"number": -number}), document(version, {}, "stl")])
        elif act == "put":
            own = {"number": number}
            cache.put_unsaved("breaker", "algo", own, ROW)
        elif own is not None:
            assert cache.unsaved[("breaker", "algo")].rows
            cache.settle("breaker", "algo", document(version, own), len(cache.unsaved[("breaker", "algo")].rows))
            assert cache.version("breaker", "algo") == version
            own = None
        if own is not None:
            assert cache.body("breaker", "algo") == own
    assert bool(cache.unsaved) == (own is not None)


def test_a_change_made_while_another_is_written_is_kept() -> None:
    cache = DocumentCache()
    cache.put_unsaved("breaker", "algo", {"number": 1}, ROW)
    cache.put_unsaved("breaker", "algo", {"number": 2}, ROW)
    cache.settle("breaker", "algo", document(7, {"number": 1}), 1)
    assert cache.body("breaker", "algo") == {"number": 2}
    assert (cache.unsaved[("breaker", "algo")].version, len(cache.unsaved[("breaker", "algo")].rows)) == (7, 1)


def test_an_unreadable_document_is_ignored() -> None:
    cache = DocumentCache()
    cache.take(document(1, {"another": 1}))
    assert cache.read("breaker", "algo", BreakerDocument.from_body) is None
    assert cache.is_unreadable("breaker", "algo")
    cache.take(document(2, BreakerDocument().to_body()))
    assert cache.read("breaker", "algo", BreakerDocument.from_body) == BreakerDocument() and not cache.is_unreadable(
        "breaker", "algo"
    )
    assert merge_breaker_documents({"another": 1}, BreakerDocument().to_body()) is None


def test_a_body_is_read_once() -> None:
    cache, reads = DocumentCache(), []
    cache.take(document(1, {"number": 1}))
    for _ in range(3):
        cache.read("breaker", "algo", lambda body: reads.append(body) or 1)  # type: ignore[func-returns-value]
    assert len(reads) == 1
