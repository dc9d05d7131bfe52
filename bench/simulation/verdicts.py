"""Who judges answers in a simulation: they are right, unless somebody has spoilt the specialist."""

from collections import Counter
from collections.abc import Callable, Mapping

from octet.config.ensemble import Ensemble
from router.verify.verdict import Verdict, Verifier


class Verdicts:
    def __init__(self) -> None:
        self._spoilt: Counter[str] = Counter()

    def spoil(self, specialist: str) -> Callable[[], None]:
        """Its answers are wrong until what comes back is called."""
        self._spoilt[specialist] += 1

        def mend() -> None:
            self._spoilt[specialist] -= 1

        return mend

    def of(self, ensemble: Ensemble) -> Mapping[str, Verifier]:
        return {name: _Verifier(name, self._spoilt) for name in ensemble.names}


class _Verifier:
    def __init__(self, specialist: str, spoilt: Counter[str]) -> None:
        self.name = "simulated"
        self._specialist = specialist
        self._spoilt = spoilt

    async def verify(self, question: str, answer: str) -> Verdict:
        return Verdict("failed", "spoilt") if self._spoilt[self._specialist] > 0 else Verdict("passed")

    async def close(self) -> None:
        """Nothing is open."""
