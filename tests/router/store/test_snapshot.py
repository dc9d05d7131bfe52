"""A snapshot keeps the newest known version of every document, in whatever order versions arrive."""

from hypothesis import given
from hypothesis import strategies as st

from router.store.database import StorePosition, StoreSnapshot
from router.store.rows import Document

learned = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.booleans()), max_size=20)


@given(learned)
def test_no_document_returns_to_an_older_version(learned: list[tuple[str, int, bool]]) -> None:
    history, newest = StoreSnapshot("memory", lambda: 0.0), dict[str, int]()
    for number, (key, version, is_deleted) in enumerate(learned, 1):
        body = None if is_deleted else {"version": version}
        history.update(StorePosition("identity", number, number), [Document("knob", key, version, body, 0, "ada")])
        newest[key] = max(newest.get(key, 0), version)
        assert {place[1]: each.version for place, each in history.documents.items()} == newest
        assert history.position == StorePosition("identity", number, number)


@given(st.integers(0, 5), st.integers(0, 5), st.sampled_from(["identity", "another"]))
def test_a_database_continues_a_snapshot_unless_it_was_replaced_or_rolled_back(
    known: int, now: int, identity: str
) -> None:
    history = StoreSnapshot("memory", lambda: 0.0)
    assert history.continues(StorePosition(identity, now, now)), "any database may continue an empty snapshot"
    history.update(StorePosition("identity", known, known), [])
    assert history.continues(StorePosition(identity, now, now)) == (identity == "identity" and now >= known)
