"""The calculation behind the refusal of a request that would miss its own deadline, with rounded parts that add up, or
that would make others late."""

from collections.abc import Sequence
from math import ceil, floor, inf
from typing import NamedTuple

from admission.forecast.bookings import BookedRequest, Refuse
from admission.forecast.forecast import Forecast, ForecastCheck


def explain_lateness(
    request: BookedRequest, forecast: Forecast, check: ForecastCheck, retry_after: float | None, *, is_late_alone: bool
) -> Refuse:
    """Refuse a request that would miss its own deadline, even on an idle replica if `is_late_alone`. The shown parts
    add up to the shown forecast, which exceeds the shown time that is left."""
    parts: list[tuple[str, float]] = []
    missed = check.missed
    if is_late_alone:
        own, padded = (forecast.times_alone(request, factor) for factor in (1.0, 1 + forecast.margin))
        is_first = forecast.left(request.first_deadline, padded.first) < forecast.left(
            request.booking.deadline, padded.end
        )
        missed = "first" if is_first else "end"
        by_first = is_first or own.end == own.first
        seconds, total = (own.first, padded.first) if is_first else (own.end, padded.end)
        left = forecast.left(request.first_deadline if is_first else request.booking.deadline)
    else:
        is_first = missed == "first"
        by_first = is_first or forecast.is_judged_by_first_token(request)
        left = forecast.left(request.first_deadline if is_first else request.booking.deadline)
        seconds, total = check.due - check.wait, left + check.own_late
        parts.append(("{} of work is ahead of it", check.wait))
    work = "its first token takes" if by_first else f"its own {request.expected_left:.0f} tokens take"
    parts.append((f"{work} {{}}{' even alone' * is_late_alone}", seconds))
    if not is_late_alone and not by_first:
        parts.append(("a long answer takes {} more", check.timeline.long_finish(request) - check.due))
    shown = ShownSum.of(parts, total, left)
    limit = f"at least {shown.total}"
    return Refuse("deadline_unreachable", limit, shown.sentence(is_first=is_first), retry_after, missed)


def explain_delay(check: ForecastCheck, retry_after: float | None) -> Refuse:
    """Refuse a request that would make others late."""
    earlier = "admitted or promised a place" if any(each.request.is_place for each in check.delayed) else "admitted"
    late = "an unlimited time" if check.worst_delay == inf else _format_seconds(check.worst_delay)
    sentence = f"1 request that was {earlier} earlier would miss its deadline by {late}"
    if len(check.delayed) != 1:
        others = f"{len(check.delayed)} requests that were {earlier} earlier"
        sentence = f"{others} would miss their deadlines, the worst by {late}"
    return Refuse("would_delay_others", "every deadline that was accepted earlier", sentence, retry_after)


def explain_early(place: str, opens_after: float) -> Refuse:
    """Refuse a request that came before its place has opened."""
    sentence = f"its place opens in {_format_seconds(opens_after)}"
    return Refuse("would_delay_others", "the time from which a place is kept", sentence, opens_after, place=place)


def _format_seconds(value: float) -> str:
    return f"{value:.1f} s" if value >= 0.1 else f"{1000 * value:.0f} ms"


class ShownSum(NamedTuple):
    """A forecast and its parts, rounded so that the rounded parts add up."""

    parts: list[str]
    total: str
    left: str  # empty if no time is left

    @classmethod
    def of(cls, parts: Sequence[tuple[str, float]], total: float, left: float) -> "ShownSum":
        """Round to tenths, or finer if the total would otherwise not exceed the time that is left. Whatever the parts
        leave of the total is shown as the margin."""
        if total == inf:
            return cls(["the work ahead of it has no end in sight"], "an unlimited time", f"{left:.1f} s")
        digits = next((digits for digits in (1, 2) if total - left >= 10**-digits), 3)
        scale = 10**digits
        left_units = floor(left * scale)
        total_units = max(ceil(total * scale), left_units + 1)

        def show(units: int) -> str:
            return f"{units / scale:.{digits}f} s"

        rest, shown = total_units, []
        for text, seconds in parts:
            units = min(rest, max(0, round(seconds * scale)))
            rest -= units
            shown.append(text.format(show(units)))
        shown.append(f"the margin for errors and urgent requests is {show(rest)}")
        return cls(shown, show(total_units), show(left_units) if left_units > 0 else "")

    def sentence(self, *, is_first: bool) -> str:
        *first, last = self.parts
        due = "its first token is due in" if is_first else "its deadline is in"
        past = "its first token was due earlier" if is_first else "its deadline has passed"
        added = f"{', '.join(first)} and {last}" if first else last
        return f"{added}: {self.total} in all; {f'{due} {self.left}' if self.left else past}"
