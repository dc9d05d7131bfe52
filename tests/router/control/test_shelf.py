"""Documents in any order: the newest is in force, and what is still to be written here goes before it."""

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
def test_the_newest_is_in_force_whatever_came_last(told: Sequence[tuple[int, dict[str, int] | None]]) -> None:
    shelf = DocumentCache()
    for version, body in told:
        shelf.take(document(version, body))
    version, body = max(told, key=lambda each: each[0])
    assert shelf.body("breaker", "algo") == body
    assert shelf.version("breaker", "algo") == (0 if body is None else version)
    assert [each.key for each in shelf.of_kind("breaker")] == ([] if body is None else ["algo"])


@given(st.lists(st.sampled_from(["take", "whole", "lay", "settle"]), max_size=12))
def test_what_is_unsaved_stays_until_it_is_settled(acts: list[str]) -> None:
    shelf, own, version = DocumentCache(), None, 1
    shelf.take(document(1, {"number": 0}))
    for number, act in enumerate(acts, 1):
        version += 1
        if act == "take":
            shelf.take(document(version, {"number": -number}))
        elif act == "whole":
            shelf.take_all([document(version, {"number": -number}), document(version, {}, "stl")])
        elif act == "lay":
            own = {"number": number}
            shelf.put_unsaved("breaker", "algo", own, ROW)
        elif own is not None:
            assert shelf.unsaved[("breaker", "algo")].rows
            shelf.settle("breaker", "algo", document(version, own), len(shelf.unsaved[("breaker", "algo")].rows))
            assert shelf.version("breaker", "algo") == version
            own = None
        if own is not None:
            assert shelf.body("breaker", "algo") == own
    assert bool(shelf.unsaved) == (own is not None)


def test_what_is_laid_while_the_last_is_written_is_not_lost() -> None:
    shelf = DocumentCache()
    shelf.put_unsaved("breaker", "algo", {"number": 1}, ROW)
    shelf.put_unsaved("breaker", "algo", {"number": 2}, ROW)
    shelf.settle("breaker", "algo", document(7, {"number": 1}), 1)
    assert shelf.body("breaker", "algo") == {"number": 2}
    assert (shelf.unsaved[("breaker", "algo")].version, len(shelf.unsaved[("breaker", "algo")].rows)) == (7, 1)


def test_what_cannot_be_read_is_left_alone() -> None:
    shelf = DocumentCache()
    shelf.take(document(1, {"another": 1}))
    assert shelf.read("breaker", "algo", BreakerDocument.from_body) is None
    assert shelf.is_unreadable("breaker", "algo")
    shelf.take(document(2, BreakerDocument().to_body()))
    assert shelf.read("breaker", "algo", BreakerDocument.from_body) == BreakerDocument() and not shelf.is_unreadable(
        "breaker", "algo"
    )
    assert merge_breaker_documents({"another": 1}, BreakerDocument().to_body()) is None


def test_a_body_is_read_once() -> None:
    shelf, reads = DocumentCache(), []
    shelf.take(document(1, {"number": 1}))
    for _ in range(3):
        shelf.read("breaker", "algo", lambda body: reads.append(body) or 1)  # type: ignore[func-returns-value]
    assert len(reads) == 1
