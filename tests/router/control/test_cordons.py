"""Laws of cordons, said again plainly: only operators are blamed for what operators did."""

from hypothesis import given
from hypothesis import strategies as st

from admission.lanes import begin
from octet.store import Document
from router.control.cordons import Cordons
from router.control.known import LANES, REPLICA, Known
from tests.octet.store.stores import make_store
from tests.router.control.houses import ENSEMBLE
from tests.router.control.toys import Toy, Toys

toys = st.builds(
    Toy, st.just(""), st.sampled_from(["algo", "debug"]), st.sampled_from(["r1", "r2"]), linked=st.booleans()
)


@given(st.lists(toys, max_size=4), st.sets(st.integers(0, 4)), st.booleans())
def test_who_is_left_to_answer(fleet: list[Toy], drained: set[int], is_known: bool) -> None:
    """The lane of `algo` is on r1; a replica that cannot be reached may be of it."""
    for number, toy in enumerate(fleet):
        toy.name = f"{toy.specialist}-{number}"
    known = Known(ENSEMBLE, make_store("memory"), Toys(*fleet))
    known.look()
    if is_known:
        book, _ = begin(None, "algo", (), "r1", 0.0)
        known.shelf.take(Document(LANES, "algo", 1, book.to_body(), 0, "ada"))
    names = {toy.name for number, toy in enumerate(fleet) if number in drained}
    for name in names:
        known.shelf.take(Document(REPLICA, name, 1, {"by": "ada", "why": "x", "since": 0.0}, 0, "ada"))
    cordons = Cordons(known, None)  # type: ignore[arg-type]
    able = [toy for toy in fleet if toy.specialist == "algo" and not (is_known and toy.linked and toy.revision != "r1")]
    assert cordons.names() == names
    assert cordons.leave_nobody("algo") == (bool(able) and all(toy.name in names for toy in able))
    for toy in fleet:
        others = [each for each in able if each.linked and each.name not in names | {toy.name}]
        assert cordons.is_last(toy.name, "algo") == (not others)
