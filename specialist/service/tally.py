"""What a replica has done, counted since its start. Whoever scrapes only reads."""

from collections import Counter
from typing import Any, get_args

from admission.forecast import Admit, Refuse, Verdict
from admission.forecast.verdict import RefuseReason
from octet.telemetry import bounds
from octet.telemetry.histogram import Histogram
from specialist.events import Cause, Preempted
from specialist.request import FinishReason
from specialist.service.job import Usage
from specialist.step import Mode, Step

MODES: tuple[Mode, ...] = ("prefill", "decode", "spec_verify")


def _begun(words: Any, *more: str) -> Counter[str]:
    """Every word of a Literal, at 0: Prometheus sees no growth in what begins with 1."""
    return Counter(dict.fromkeys((*get_args(words), *more), 0))


class EngineTally:
    """Written by the engine's thread."""

    def __init__(self) -> None:
        self.step_seconds = {mode: Histogram(bounds.STEP_SECONDS) for mode in MODES}
        self.step_rows = {mode: Histogram(bounds.ROWS) for mode in MODES}
        self.step_tokens = dict.fromkeys(MODES, 0)
        """Computed; of steps that decode, those that were emitted."""
        self.queued = Histogram(bounds.TTFT_SECONDS)
        self.prefill = Histogram(bounds.TTFT_SECONDS)
        self.finished: Counter[str] = _begun(FinishReason)
        self.preempted: Counter[str] = _begun(Cause)
        self.prompt_tokens = self.cached_tokens = self.completion_tokens = 0
        self.adapter_switches = 0
        self._adapters: tuple[str, ...] = ()

    def stepped(self, step: Step, num_emitted: int, seconds: float) -> None:
        mode = step.mode
        self.step_seconds[mode].add(seconds)
        self.step_rows[mode].add(len(step.rows))
        self.step_tokens[mode] += step.num_tokens if mode == "prefill" else num_emitted
        if step.adapters != self._adapters:
            self._adapters = step.adapters
            self.adapter_switches += 1

    def gave_way(self, event: Preempted) -> None:
        self.preempted[event.cause] += 1

    def ended(self, usage: Usage) -> None:
        self.finished[usage.reason] += 1
        if usage.queued is None:
            return  # it never ran
        self.queued.add(usage.queued)
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cache_hit_tokens
        self.completion_tokens += usage.completion_tokens
        if usage.prefill is not None:
            self.prefill.add(usage.prefill)


class DeskTally:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = _begun(RefuseReason, "admitted")
        """Of requests that are no shadows: admitted, or why not."""
        self.shadow_verdicts: Counter[str] = _begun(RefuseReason, "admitted")
        self.displaced = self.set_aside = 0

    def judged(self, verdict: Verdict, *, shadow: bool) -> None:
        word = verdict.reason if isinstance(verdict, Refuse) else "admitted"
        (self.shadow_verdicts if shadow else self.verdicts)[word] += 1
        if isinstance(verdict, Admit):
            self.displaced += len(verdict.displaced)
            self.set_aside += len(verdict.aside)
