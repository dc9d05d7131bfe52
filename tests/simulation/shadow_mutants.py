"""Deliberate bugs in shadow requests, which the simulation must detect."""

import admission.budgets
import admission.forecast.controller
import router.quality.answer_tap
import router.quality.shadow_copy
import router.routing.dispatch_plan
import router.serving
from tests.laws.mutants import Mutant

SHADOWING = router.routing.dispatch_plan._Planning
BESIDE = router.quality.answer_tap.AnswerTap

IN_SHADOWS = (
    Mutant(
        "a copy that looks like a request",
        router.quality.shadow_copy,
        "to_shadow_request",
        "    request.shadow = True\n",
        "",
        laws=("a shadow copy is treated as a shadow",),
    ),
    Mutant(
        "a shadow's text reaches the caller",
        BESIDE,
        "_begun",
        "self._handle = self._shadows.send(shadow, self.ordered, receipt)",
        "self._handle = self._shadows.send(shadow, self.ordered, receipt); self._handle and "
        "self._handle.when_done(lambda answer: answer and answer.captured._ends and __import__('asyncio').create_task("
        "self.write(bytes(answer.captured._raw[: answer.captured._ends[0]]))))",
        laws=("the tokens are correct",),
    ),
    Mutant(
        "a shadow's failure counts",
        router.quality.shadow_copy.ShadowStream,
        "listen",
        "failure = classify_failure(",
        "attempt._breaker.failed(); failure = classify_failure(",
        laws=("no breaker counts a shadow",),
    ),
    Mutant(
        "a request waits for its shadow",
        router.serving.RequestPipeline,
        "answer",
        "self.shadows.answered(request.intent)",
        "[await each for each in tuple(self.shadows._tasks)]; self.shadows.answered(request.intent)",
        laws=("a complete answer ends its request immediately",),
    ),
    Mutant(
        "a shadow stays behind",
        BESIDE,
        "__exit__",
        "self._handle.cancel()",
        "pass",
        laws=("no byte of a shadow is left",),
    ),
    Mutant(
        "shadows without a budget",
        admission.budgets.ShadowBudgets,
        "plan",
        "if self._reserve < _WHOLE:",
        "if False:",
        laws=("shadows stay within their budget",),
    ),
    Mutant(
        "unlimited shadows",
        admission.budgets.ShadowBudgets,
        "plan",
        "if self.num_inflight < self._max_inflight:",
        "if True:",
        laws=("shadows in flight stay within their limit",),
    ),
    Mutant(
        "a shadow is forgotten",
        router.quality.shadow_copy.OrderedShadow,
        "end",
        "self._counters.ended[ending, reason] += 1",
        'self._counters.ended[ending, reason] += ending != "answered"',
        laws=("every shadow's end is counted",),
    ),
    Mutant(
        "a shadow of the same lane",
        BESIDE,
        "_begun",
        "if self._plan.candidate(receipt.specialist).lane_id == shadow.order.candidate.lane_id:",
        "if False:",
        laws=("no lane shadows itself",),
    ),
    Mutant(
        "adapters that a caller names count",
        SHADOWING,
        "_candidate",
        "return Candidate(specialist, adapters, names, revision",
        "return Candidate(specialist, adapters, names, lane.lane_id, revision",
        laws=("a request that names adapters has no shadow",),
    ),
    Mutant(
        "shadowed to an unforced specialist",
        SHADOWING,
        "_shadow_reasons",
        "other = self._other_specialist(first)",
        "yield from [(1.0, self._candidate('debug'), 'low_confidence')] if self.request.force else []; "
        "other = self._other_specialist(first)",
        laws=("a request that forces specialists is shadowed to no other",),
    ),
    Mutant(
        "a shadow of what is sure",
        SHADOWING,
        "_is_below",
        "self.decision.confidence < threshold",
        "self.decision.confidence < 0.9",
        laws=("a shadow has a reason",),
    ),
    Mutant(
        "a shadow keeps its slot",
        admission.forecast.controller.AdmissionController,
        "_shadows_in_the_way",
        "if not self.bookings.num_shadows or request.booking.shadow:",
        "if True:",
        laws=("no shadow holds a slot that a caller could use",),
    ),
)
