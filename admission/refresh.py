"""Refresh a specialist's weights: the new ones start beside the old, which stay until the new ones are trusted."""

from collections.abc import Container, Sequence
from dataclasses import replace

from admission.lanes import (
    BY_POLICY,
    HELD_STATES,
    AdapterRef,
    LaneError,
    LaneMove,
    LaneUpdate,
    SpecialistLanes,
    configure_lanes,
    has_name_clash,
)
from admission.weights import Refresh, Weights


def wanted_weights(book: SpecialistLanes, configured: str, failed: Container[int] = ()) -> tuple[Weights, ...]:
    """Return the weights that replicas should run: those of the serving lane and of the candidate, those that are
    coming, and those of the previous lane until the serving one is trusted, or if it is to serve again. Empty if they
    are not known. `configured` is the model that the configuration names now; if it has changed, only it is wanted. It
    also stands in for weights of the serving lane that have `failed` to start."""
    refresh = book.refresh
    if not refresh.configured:
        return ()
    if refresh.configured != configured:
        return (Weights(0, configured),)
    lanes = [book.serving, book.candidate, book.previous if book.serving.fresh or is_returning(book) else None]
    revisions = {lane.revision for lane in lanes if lane is not None}
    found = [each for each in refresh.weights if each.revision in revisions or each.number == refresh.coming > 0]
    serving = refresh.of_revision(book.serving.revision)
    if (serving is None or serving.number in failed) and all(each.number for each in found):
        found.append(Weights(0, configured))
    return tuple(sorted(found, key=lambda each: each.number))


def begin_configured(
    book: SpecialistLanes | None, specialist: str, adapters: Sequence[AdapterRef], revision: str, model: str, now: float
) -> tuple[SpecialistLanes, LaneMove | None]:
    """Like `configure_lanes`, for weights that a supervisor runs. If the configuration names another model, the lane
    that served becomes the previous lane, so that its weights stay until the new ones are trusted."""
    after, move = configure_lanes(book, specialist, adapters, revision, now)
    if move is None:
        return after, None
    refresh = Refresh() if book is None else book.refresh
    others, number = [each for each in refresh.weights if each.number], refresh.next_number
    old = refresh.numbered(0)
    if old is not None and old.model != model:
        others, number = [*others, replace(old, number=number)], number + 1
    weights = (Weights(0, model, revision), *(each for each in others if each.revision != revision))
    after = replace(after, refresh=Refresh(model, weights, number))
    if book is not None and after.refresh.of_revision(book.serving.revision) and book.serving.revision != revision:
        former = book.serving
        if not has_name_clash(former, adapters):
            kept = replace(former, status="previous", since=now, by=move.by, why=move.why)
            lanes = tuple(kept if lane.number == former.number else lane for lane in after.lanes)
            after = replace(after, lanes=lanes)
    return _forget_unused(after), move


def order_refresh(
    book: SpecialistLanes, configured: str, model: str, revision: str, by: str, why: str, now: float
) -> LaneUpdate:
    """Let the weights of `model` start. `revision` is the content that they must have; empty for any. Raises LaneError
    while another refresh or return is on its way, or if this content serves already."""
    check_idle(book)
    if book.candidate is not None:
        raise LaneError(f"{book.candidate} of {book.specialist} is a candidate; promote it or roll it back first")
    if revision == book.serving.revision:
        raise LaneError(f"{book.serving} of {book.specialist} already has these weights")
    refresh = _forget_unused(book).refresh
    if refresh.of_revision(book.serving.revision) is None:
        refresh = replace(refresh, weights=(Weights(0, configured, book.serving.revision), *refresh.weights))
    number = refresh.next_number
    coming = Weights(number, model, revision)
    refresh = Refresh(refresh.configured or configured, (*refresh.weights, coming), number + 1, number, 0, by, why)
    move = LaneMove(now, "refresh", 0, f"{book.serving} serving", f"{model} starting", by, why)
    return replace(book, refresh=refresh), move


def check_idle(book: SpecialistLanes) -> None:
    """Raises LaneError while a refresh or a return is on its way."""
    refresh = book.refresh
    coming = refresh.numbered(refresh.coming)
    if refresh.coming and coming is not None:
        raise LaneError(f"the weights {coming.model} of {book.specialist} are starting; roll back to give them up")
    if is_returning(book):
        raise LaneError(f"{book.specialist} is returning to {book.previous}; wait until it serves")


def weights_arrived(book: SpecialistLanes, number: int, revision: str, now: float) -> LaneUpdate | None:
    """The replicas of these weights serve, and report this revision: make them the candidate. None if they are not
    awaited any more."""
    refresh, weights = book.refresh, book.refresh.numbered(number)
    if refresh.coming != number or weights is None:
        return None
    if weights.revision not in ("", revision):
        return weights_failed(book, number, f"{weights.model} has the digest {revision}, not {weights.revision}", now)
    known = tuple(replace(each, revision=revision) if each.number == number else each for each in refresh.weights)
    arrived = replace(book, refresh=replace(refresh, weights=known, coming=0))
    try:
        return arrived.load(book.serving.adapters, refresh.by, refresh.why, now, revision=revision)
    except LaneError as error:
        return weights_failed(book, number, str(error), now)


def weights_failed(book: SpecialistLanes, number: int, reason: str, now: float) -> LaneUpdate | None:
    """These weights cannot be started: give up the refresh or return that awaits them. None if nothing does."""
    refresh, weights = book.refresh, book.refresh.numbered(number)
    if weights is None:
        return None
    if refresh.coming == number:
        kept = tuple(each for each in refresh.weights if each.number != number)
        after = replace(book, refresh=replace(refresh, weights=kept, coming=0, failure=reason))
    elif is_returning(book) and book.previous is not None and book.previous.revision == weights.revision:
        after = replace(book, refresh=replace(refresh, returning=0, failure=reason))
    else:
        return None
    move = LaneMove(now, "refresh_failed", 0, f"{weights.model} starting", f"{book.serving} serving", BY_POLICY, reason)
    return after, move


def roll_back(book: SpecialistLanes, held: Container[int], by: str, why: str, now: float) -> LaneUpdate:
    """Give up weights that are starting, else drop the candidate, else return to the previous lane: at once if it is
    `held` (lanes by number), otherwise as soon as its weights run again. Raises LaneError if nothing can be undone."""
    refresh, previous = book.refresh, book.previous
    coming = refresh.numbered(refresh.coming)
    if refresh.coming and coming is not None:
        kept = tuple(each for each in refresh.weights if each.number != refresh.coming)
        after = replace(book, refresh=replace(refresh, weights=kept, coming=0))
        return after, LaneMove(now, "roll_back", 0, f"{coming.model} starting", str(book.serving), by, why)
    if book.candidate is None and previous is not None and previous.number not in held:
        check_idle(book)
        if refresh.of_revision(previous.revision) is not None and previous.revision != book.serving.revision:
            after = replace(book, refresh=replace(refresh, returning=previous.number, by=by, why=why, failure=""))
            return after, LaneMove(
                now, "return", previous.number, f"{book.serving} serving", f"{previous} returning", by, why
            )
    return book.roll_back(by, why, now)


def finish_return(book: SpecialistLanes, now: float) -> LaneUpdate | None:
    """The previous lane is held again: let it serve if that was ordered."""
    if not is_returning(book):
        return None
    return book.return_to_previous(book.refresh.by, book.refresh.why, now)


def is_returning(book: SpecialistLanes) -> bool:
    return book.previous is not None and book.previous.number == book.refresh.returning


def _forget_unused(book: SpecialistLanes) -> SpecialistLanes:
    revisions = {lane.revision for lane in book.lanes if lane.status in HELD_STATES}
    refresh = book.refresh
    kept = tuple(each for each in refresh.weights if each.revision in revisions or each.number == refresh.coming > 0)
    return replace(book, refresh=replace(refresh, weights=kept))
