"""Who judges answers in a simulation: they are mostly right, and mostly wrong while somebody has spoilt the
specialist."""

from collections import Counter
from collections.abc import Callable, Mapping
from random import Random

from octet.config.ensemble import Ensemble
from router.verify.verdict import Verdict, Verifier

_USUALLY, _SPOILT = 0.05, 0.9
"""Of the answers fail."""
_NOTHING_TO_JUDGE = 0.05


class Verdicts:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._spoilt: Counter[str] = Counter()

    def spoil(self, specialist: str) -> Callable[[], None]:
        """Its answers are wrong until what comes back is called."""
        self._spoilt[specialist] += 1

        def mend() -> None:
            self._spoilt[specialist] -= 1

        return mend

    def of(self, ensemble: Ensemble) -> Mapping[str, Verifier]:
        return {name: _Verifier(name, self._spoilt, self._random) for name in ensemble.names}


class _Verifier:
    def __init__(self, specialist: str, spoilt: Counter[str], random: Random) -> None:
        self.name = f"simulated for {specialist}"
        self._specialist = specialist
        self._spoilt = spoilt
        self._random = random

    async def verify(self, question: str, answer: str) -> Verdict:
        drawn = self._random.random()
        if drawn > 1 - _NOTHING_TO_JUDGE:
            return Verdict("skipped")
        fails = _SPOILT if self._spoilt[self._specialist] > 0 else _USUALLY
        return Verdict("failed", "drawn so") if drawn < fails else Verdict("passed")

    async def close(self) -> None:
        """Nothing is open."""
