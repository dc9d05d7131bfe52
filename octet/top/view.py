"""What somebody looks at: the order, the selection, the details, the help. Keys change it; nothing else does."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from octet.sdk.overview import SpecialistView
from octet.top.figures import load

_HIGH = float("inf")


def _ttft(view: SpecialistView) -> float:
    found = None if view.slo is None or view.slo.ttft is None else view.slo.ttft.p95
    return -1.0 if found is None else found


def _wrong(view: SpecialistView) -> float:
    found = None if view.slo is None else view.slo.pass_rate
    return -_HIGH if found is None else -found


SORTS: dict[str, Callable[[SpecialistView], float]] = {
    "as configured": lambda view: 0.0,
    "requests": lambda view: 0.0 if view.rates is None else view.rates.requests,
    "queue": lambda view: load(view)[0],
    "ttft": _ttft,
    "wrong answers": _wrong,
}
"""Largest first; equals stay as they are."""
_NAMES = tuple(SORTS)


@dataclass(frozen=True, slots=True)
class View:
    sort: str = _NAMES[0]
    selected: str = ""
    """A specialist's name; empty: nobody."""
    details: bool = False
    help: bool = False

    def ordered(self, views: Sequence[SpecialistView]) -> list[SpecialistView]:
        return sorted(views, key=SORTS[self.sort], reverse=True) if self.sort != _NAMES[0] else list(views)

    def pressed(self, key: str, views: Sequence[SpecialistView]) -> "View":
        """A key that means nothing changes nothing."""
        if key == "?":
            return replace(self, help=not self.help)
        if key == "escape":
            return replace(self, help=False, details=False)
        if key == "s":
            return replace(self, sort=_NAMES[(_NAMES.index(self.sort) + 1) % len(_NAMES)])
        if key in ("up", "down", "k", "j"):
            return self._moved(-1 if key in ("up", "k") else 1, [each.name for each in self.ordered(views)])
        if key in ("enter", "right", "left"):
            return self._opened(key, [each.name for each in self.ordered(views)])
        return self

    def _moved(self, by: int, names: Sequence[str]) -> "View":
        if not names:
            return replace(self, selected="")
        if self.selected not in names:
            return replace(self, selected=names[0 if by > 0 else -1])
        return replace(self, selected=names[min(max(0, names.index(self.selected) + by), len(names) - 1)])

    def _opened(self, key: str, names: Sequence[str]) -> "View":
        if not names:
            return self
        selected = self.selected if self.selected in names else names[0]
        is_open = {"right": True, "left": False}.get(key, not self.details)
        return replace(self, selected=selected, details=is_open)
