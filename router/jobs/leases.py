"""Who is not there any more. Nobody's clock is trusted but one's own: a job whose beat has not changed while it was
looked at for a whole lease is in nobody's hands. Pure; time is handed in."""

from collections.abc import Collection, Sequence

from octet.store.job_rows import Holding

_LOOKS = 4
"""In a lease, at least. The time between two looks that lie further apart counts as if they did not: while the store
was away, nobody could give a sign of life."""


class Leases:
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen: dict[str, tuple[Holding, float]] = {}
        """With the seconds for which it has been the same."""
        self._last: float | None = None

    def observe(self, held: Sequence[Holding], own: Collection[str], now: float) -> list[Holding]:
        """Those that can be taken away. `own` are the ids of the jobs in the observer's hands."""
        passed = 0.0 if self._last is None else min(max(0.0, now - self._last), self._seconds / _LOOKS)
        self._last = now
        self._seen = {each.id: self._aged(each, passed) for each in held if each.id not in own}
        return [holding for holding, seconds in self._seen.values() if seconds >= self._seconds]

    def _aged(self, holding: Holding, passed: float) -> tuple[Holding, float]:
        before, seconds = self._seen.get(holding.id, (None, 0.0))
        return holding, seconds + passed if before == holding else 0.0
