"""How many copies may be sent that nobody waits for: a share of what is answered, and so many at once."""

from dataclasses import dataclass

from octet.config.ensemble import ShadowConfig

_WHOLE = 1_000_000
"""Parts of one shadow: shares add up without rounding errors."""


@dataclass(frozen=True, slots=True)
class Rules:
    share: float
    """Shadows for every answered request, at most."""
    most: int
    """At once."""

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError(f"share must be in [0, 1], got {self.share:g}")
        if self.most < 0:
            raise ValueError(f"most must not be negative, got {self.most}")


def rules_of(config: ShadowConfig) -> Rules:
    return Rules(config.budget, config.max_inflight)


class ShadowBudget:
    """Starts with one shadow, and saves no more than may be under way at once. Whatever happens, shadows that count
    <= 1 + share * answered."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._parts = _WHOLE if rules.share else 0
        self._num_inflight = 0

    @property
    def inflight(self) -> int:
        return self._num_inflight

    @property
    def tokens(self) -> float:
        return self._parts / _WHOLE

    def earn(self) -> None:
        """A request was answered."""
        self._parts = min(self._parts + round(self._rules.share * _WHOLE), self._cap)

    def take(self, *, counted: bool = True) -> bool:
        """Whether a shadow may go out now; it is under way until `done`. Those of fresh and of demoted lanes do not
        count against the share: what they show is needed."""
        if self._num_inflight >= self._rules.most or (counted and self._parts < _WHOLE):
            return False
        self._num_inflight += 1
        if counted:
            self._parts -= _WHOLE
        return True

    def done(self) -> None:
        if not self._num_inflight:
            raise ValueError("no shadow is under way")
        self._num_inflight -= 1

    def retune(self, rules: Rules) -> None:
        """Those under way go on; what was saved beyond the new limits is gone."""
        self._rules = rules
        self._parts = min(self._parts, self._cap)

    @property
    def _cap(self) -> int:
        return max(1, self._rules.most) * _WHOLE if self._rules.share else 0
