"""Laws of cordons, said again plainly: only operators are blamed for what operators did."""

from hypothesis import given
from hypothesis import strategies as st

from admission.lanes import configure_lanes
from router.control.state import LANES, REPLICA, SharedState
from router.control.status import Cordons
from router.store.rows import Document
from tests.router.control.houses import ENSEMBLE
from tests.router.control.toys import Toy, Toys
from tests.router.store.stores import make_store

toys = st.builds(
    Toy, st.just(""), st.sampled_from(["algo", "debug"]), st.sampled_from(["r1", "r2"]), linked=st.booleans()
)


@given(st.lists(toys, max_size=4), st.sets(st.integers(0, 4)), st.booleans())
def test_the_last_replica_that_answers_is_found(fleet: list[Toy], drained: set[int], is_known: bool) -> None:
    """The lane of `algo` is on r1; a replica that cannot be reached may be of it."""
    for number, toy in enumerate(fleet):
        toy.name = f"{toy.specialist}-{number}"
    known = SharedState(ENSEMBLE, make_store("memory"), Toys(*fleet))
    known.refresh()
    if is_known:
        book, _ = configure_lanes(None, "algo", (), "r1", 0.0)
        known.documents.take(Document(LANES, "algo", 1, book.to_body(), 0, "ada"))
    names = {toy.name for number, toy in enumerate(fleet) if number in drained}
    for name in names:
        known.documents.take(Document(REPLICA, name, 1, {"by": "ada", "why": "x", "since": 0.0}, 0, "ada"))
    cordons = Cordons(known, None)  # type: ignore[arg-type]
    able = [toy for toy in fleet if toy.specialist == "algo" and not (is_known and toy.linked and toy.revision != "r1")]
    assert cordons.names() == names
    assert cordons.all_drained("algo") == (bool(able) and all(toy.name in names for toy in able))
    for toy in fleet:
        others = [each for each in able if each.linked and each.name not in names | {toy.name}]
        assert cordons.is_last(toy.name, "algo") == (not others)
