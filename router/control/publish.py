"""The standing that requests meet, from everything that is known."""

from collections.abc import Sequence

from admission import correctness
from admission.correctness import Standing as Breaker
from admission.lane import LaneRecord, lane_id
from admission.lanes import LaneBook
from octet.config.ensemble import SpecialistConfig
from router.between.standing import LaneStanding, SpecialistStanding, Standing, configured, configured_knobs
from router.control.breakers import Breakers
from router.control.cordons import Cordons
from router.control.knobs import KnobBoard
from router.control.known import Known, could_serve, holds, is_what
from router.control.seen import Seen


def standing_of(known: Known, breakers: Breakers, knobs: KnobBoard, cordons: Cordons, now: float) -> Standing:
    ensemble = known.ensemble
    return Standing(
        specialists={each.name: _specialist(each, known, breakers, cordons, now) for each in ensemble.specialists},
        base_knobs=configured_knobs(ensemble.intents),
        turned_knobs=knobs.turned(),
        cordoned=cordons.names(),
    )


def _specialist(
    config: SpecialistConfig, known: Known, breakers: Breakers, cordons: Cordons, now: float
) -> SpecialistStanding:
    breaker, book = breakers.standing(config.name), known.book(config.name)
    seen = known.seen(config.name)
    initial = configured(config)
    candidate = None if book is None or book.candidate is None else book.candidate
    is_held = candidate is not None and any(holds(each, candidate) for each in seen)
    return SpecialistStanding(
        name=config.name,
        lane=initial.lane if book is None else _serving(config, book, known),
        correctness=correctness.shown(breaker),
        serves=correctness.serves(breaker),
        because="" if correctness.serves(breaker) else _because(config.name, breaker, breakers, now),
        away=_away(config.name, known, cordons),
        candidate=_lane(config.name, candidate, seen) if candidate is not None and is_held else None,
        known=initial.known if book is None else {**_named(book), **initial.known, **_names(book.serving)},
    )


def _serving(config: SpecialistConfig, book: LaneBook, known: Known) -> LaneStanding:
    """Where somebody is there and nobody could serve the lane, whoever is there answers as configured now, as far as
    somebody can, and it counts for none. Not where the lane's own content is lost: nobody asked for another's."""
    lane, seen = book.serving, known.seen(config.name)
    if not seen or known.is_lost(config.name, lane) or any(could_serve(each, lane) for each in seen):
        return _lane(book.specialist, lane, seen)
    names = [name for name in config.use_adapters if any(name in each.adapters for each in seen)]
    lacking = frozenset(each.name for each in seen if not all(name in each.adapters for name in names))
    adapters = tuple((name, name) for name in names)
    unfit = lacking if len(lacking) < len(seen) else frozenset()
    return LaneStanding(lane.number, adapters=adapters, fresh=lane.fresh, unfit=unfit)


def _away(specialist: str, known: Known, cordons: Cordons) -> str:
    book = known.book(specialist)
    if book is not None and known.is_lost(specialist, book.serving):
        return f"no replica of {specialist} has the adapters that it is to answer with any more"
    if cordons.leave_nobody(specialist):
        return f"no replica of {specialist} may answer: drained by an operator"
    return ""


def _lane(specialist: str, lane: LaneRecord, seen: Sequence[Seen]) -> LaneStanding:
    return LaneStanding(
        number=lane.number,
        lane_id=lane_id(specialist, lane),
        adapters=tuple((ref.name, ref.load_name) for ref in lane.adapters),
        revision=lane.revision,
        fresh=lane.fresh,
        unfit=frozenset(each.name for each in seen if not is_what(each, lane)),
    )


def _named(book: LaneBook) -> dict[str, str]:
    """Of lanes that wait. Where two call an adapter the same, the candidate's goes first."""
    names: dict[str, str] = {}
    for lane in (book.previous, book.candidate):
        names.update(_names(lane) if lane is not None else {})
    return names


def _names(lane: LaneRecord) -> dict[str, str]:
    return {ref.name: ref.load_name for ref in lane.adapters}


def _because(specialist: str, breaker: Breaker, breakers: Breakers, now: float) -> str:
    if breaker.hold:
        return f"{specialist} is held open by an operator"
    counts, floor = breakers.counts(specialist, now), breakers.rules(specialist).floor
    below = "" if floor is None else f" (floor {floor:.1%})"
    return f"{specialist} is {breaker.state.replace('_', '-')}, {counts.good} of {counts.total} passed{below}"
