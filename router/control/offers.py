"""What the replicas run beside what is written down of their lanes: a model or configured adapters that are others
start a lane of their own."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from admission.lane import AdapterRef, LaneRecord
from admission.lanes import POLICY, LaneBook, LaneMove, Origin, begin
from octet.config.ensemble import SpecialistConfig
from router.control.known import could_serve
from router.control.seen import Seen

_ANOTHER = "another model at some of the replicas"
_NO_OTHER = "no replica of the model before is left"


def configured_refs(seen: Seen, specialist: SpecialistConfig) -> tuple[AdapterRef, ...] | None:
    """What a replica has loaded at its start and is to apply; None while some of it is missing."""
    if not all(name in seen.adapters for name in specialist.use_adapters):
        return None
    return tuple(AdapterRef(name, name, seen.adapters[name], "") for name in specialist.use_adapters)


def origins(seen: Sequence[Seen], specialist: SpecialistConfig) -> frozenset[Origin]:
    """What the configuration asks for, as the replicas have it."""
    found = ((each, configured_refs(each, specialist)) for each in seen)
    return frozenset(
        Origin(tuple(ref.digest for ref in refs), each.revision) for each, refs in found if refs is not None
    )


def is_asked_for(book: LaneBook, own: Iterable[Origin]) -> bool:
    """Whether the configuration still asks for what it asked for when its last lane was begun."""
    return any(each.digests == book.origin.digests for each in own)


def begun(
    book: LaneBook | None, seen: Sequence[Seen], specialist: SpecialistConfig, now: float
) -> tuple[LaneBook, LaneMove] | None:
    """The lane of what is there now, where nothing else is. A candidate that is just that takes its place first."""
    if book is not None and book.candidate is not None and _is_all_there_is(book, book.candidate, seen):
        return anchored(book.promote(None, POLICY, _NO_OTHER, now))
    for each in seen:
        refs = configured_refs(each, specialist)
        if refs is not None and each.revision:
            after, move = begin(book, specialist.name, refs, each.revision, now)
            return None if move is None else (after, move)
    return None


def offered(book: LaneBook, seen: Sequence[Seen], now: float) -> tuple[LaneBook, LaneMove] | None:
    """Another model at some of the replicas: a candidate, unless there is one, or it was sent away before."""
    turned_down = {lane.revision for lane in book.lanes if lane.status in ("previous", "rolled_back")}
    others = {each.revision for each in seen if each.revision} - {book.serving.revision} - turned_down
    if not others or book.candidate is not None:
        return None
    return book.load(book.serving.adapters, POLICY, _ANOTHER, now, revision=min(others))


def anchored(moved: tuple[LaneBook, LaneMove]) -> tuple[LaneBook, LaneMove]:
    """The model that serves is the one that counts as known."""
    book, move = moved
    return replace(book, origin=Origin(book.origin.digests, book.serving.revision)), move


def _is_all_there_is(book: LaneBook, candidate: LaneRecord, seen: Sequence[Seen]) -> bool:
    return candidate.revision != book.serving.revision and all(could_serve(each, candidate) for each in seen)
