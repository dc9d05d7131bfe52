"""Hears how requests fare, and counts. Labels are what is configured, never what a caller says."""

from collections import Counter
from collections.abc import Callable, Sequence

from admission.knobs import UNSPECIFIED
from octet.config.ensemble import Ensemble
from octet.telemetry.outcome import reason_name, specialist_of
from octet.v1 import inference_pb2 as wire
from router.metrics.fare import Fare
from router.reception.ask import Ask


class RequestTally:
    """An Observer. Belongs to the event loop."""

    def __init__(self, ensemble: Callable[[], Ensemble]) -> None:
        """`ensemble` is the one in force; its specialists stay the same."""
        self._ensemble = ensemble
        self.fares = {name: Fare() for name in ensemble().names}
        self.unrouted: Counter[str] = Counter()
        """Requests that belong to nobody, by reason."""
        self._read: Ensemble | None = None
        self._intents: frozenset[str] = frozenset()

    def gaps(self, specialist: str, seconds: Sequence[float]) -> None:
        add = self.fares[specialist].gap.add
        for each in seconds:
            add(each)

    def began(self, specialist: str, ttft: float, admission: float) -> None:
        """Counted with the rest, when it has ended."""

    def ended(self, ask: Ask, receipt: wire.Receipt) -> None:
        decision = receipt.decision
        if decision.primary in self.fares:
            self.fares[decision.primary].decided_by(decision, receipt.timings)
        fare = self.fares.get(specialist_of(receipt))
        if fare is None:
            self.unrouted[reason_name(receipt.error.reason)] += 1
            return
        fare.ended(self._intent(ask.intent), receipt)
        self._side_steps(receipt)

    def turned_away(self, error: wire.Error) -> None:
        self.unrouted[reason_name(error.reason)] += 1

    def _side_steps(self, receipt: wire.Receipt) -> None:
        """Of whoever it was that could not answer."""
        between = receipt.between
        if between.spilled and receipt.decision.primary in self.fares:
            self.fares[receipt.decision.primary].spilled += 1
        if between.instead_of in self.fares:
            self.fares[between.instead_of].stood_in += 1
        for attempt in receipt.attempts:
            if attempt.reason and attempt.specialist in self.fares:
                self.fares[attempt.specialist].failed_attempts[reason_name(attempt.reason)] += 1

    def _intent(self, said: str) -> str:
        ensemble = self._ensemble()
        if ensemble is not self._read:
            self._read, self._intents = ensemble, frozenset(intent.name for intent in ensemble.intents)
        return said if said in self._intents else UNSPECIFIED
