"""The drained replicas, and the last replica that can answer, are the same as in a direct computation."""

from hypothesis import given
from hypothesis import strategies as st

from admission.lanes import configure_lanes
from router.control.state import LANES, REPLICA, SharedState
from router.control.status import DrainedReplicas
from router.store.rows import Document
from tests.router.control.fake_replicas import FakeReplica, FakeReplicas
from tests.router.control.harness import ENSEMBLE
from tests.router.store.stores import make_store

replicas = st.builds(
    FakeReplica, st.just(""), st.sampled_from(["algo", "debug"]), st.sampled_from(["r1", "r2"]), linked=st.booleans()
)


@given(st.lists(replicas, max_size=4), st.sets(st.integers(0, 4)), st.booleans())
def test_the_last_replica_that_answers_is_found(fleet: list[FakeReplica], drained: set[int], is_known: bool) -> None:
    """The lane of `algo` uses revision r1. The revision of an unreachable replica is unknown."""
    for number, replica in enumerate(fleet):
        replica.name = f"{replica.specialist}-{number}"
    known = SharedState(ENSEMBLE, make_store("memory"), FakeReplicas(*fleet))
    known.refresh()
    if is_known:
        book, _ = configure_lanes(None, "algo", (), "r1", 0.0)
        known.documents.take(Document(LANES, "algo", 1, book.to_body(), 0, "ada"))
    names = {replica.name for number, replica in enumerate(fleet) if number in drained}
    for name in names:
        known.documents.take(Document(REPLICA, name, 1, {"by": "ada", "why": "x", "since": 0.0}, 0, "ada"))
    found = DrainedReplicas(known, None)  # type: ignore[arg-type]
    able = [
        replica
        for replica in fleet
        if replica.specialist == "algo" and not (is_known and replica.linked and replica.revision != "r1")
    ]
    assert found.names() == names
    assert found.all_drained("algo") == (bool(able) and all(replica.name in names for replica in able))
    for replica in fleet:
        others = [each for each in able if each.linked and each.name not in names | {replica.name}]
        assert found.is_last(replica.name, "algo") == (not others)
