"""Mistakes planted on purpose in correctness breakers, escalation and shadows: the simulation must notice."""

import admission.correctness
import admission.escalation
import admission.forecast.desk
import admission.shadow
import router.between.between_wire
import router.between.plan
import router.between.stand_in
import router.dispatch.course
import router.dispatch.record
import router.service.answering
import router.shadow.beside
import router.shadow.request
import router.shadow.sending
from tests.laws.mutants import Mutant

CORRECTNESS = admission.correctness
ESCALATION = admission.escalation
BESIDE = router.shadow.beside.Beside

IN_THE_CORRECTNESS_BREAKER = (
    Mutant(
        "demoted on too few",
        CORRECTNESS,
        "step",
        "counts.total < rules.min_samples",
        "counts.total < 1",
        laws=("few samples never move a correctness breaker", "nobody is demoted but for a breach that lasts"),
    ),
    Mutant(
        "flaps",
        CORRECTNESS,
        "_due",
        "if _dwell_left(standing, now, rules) > 0:",
        "if False:",
        laws=("a correctness breaker moves at most once a window",),
    ),
    Mutant(
        "demoted at once",
        CORRECTNESS,
        "_due",
        "now - standing.below_since >= rules.breach",
        "True",
        laws=("nobody is demoted but for a breach that lasts",),
    ),
    Mutant(
        "never demoted",
        CORRECTNESS,
        "_due",
        'return "trip" if standing.state == "closed" else "relapse"',
        "return None",
        laws=("a correctness breaker does what the verdicts ask for",),
    ),
    Mutant(
        "the demoted answers",
        router.between.stand_in,
        "lead_of",
        "if standing.of(decision.primary).serves:",
        "if True:",
        laws=("whoever only shadows answers nobody",),
    ),
    Mutant(
        "nobody stands in",
        router.between.stand_in,
        "lead_of",
        "if not objection:",
        "if False:",
        laws=("nobody is told that nobody serves while somebody does",),
    ),
)

IN_SHADOWS = (
    Mutant(
        "a copy that looks like a request",
        router.shadow.request,
        "as_shadow",
        "    request.shadow = True\n",
        "",
        laws=("a copy is treated as one",),
    ),
    Mutant(
        "a shadow's words are told",
        BESIDE,
        "_begun",
        "self._ticket = self._shadows.order(errand, receipt)",
        "self._ticket = self._shadows.order(errand, receipt); self._ticket and self._ticket.when_done(lambda answer: "
        "answer and answer.kept._ends and __import__('asyncio').create_task("
        "self.write(bytes(answer.kept._raw[: answer.kept._ends[0]]))))",
        laws=("the right answer",),
    ),
    Mutant(
        "a shadow's failure counts",
        router.shadow.sending.Sending,
        "listen",
        "failure = failure_of(",
        "attempt._breaker.failed(); failure = failure_of(",
        laws=("no breaker hears of a shadow",),
    ),
    Mutant(
        "somebody waits for a shadow",
        router.service.answering.Answering,
        "answer",
        "self._shadows.answered()",
        "[await each for each in tuple(self._shadows._tasks)]; self._shadows.answered()",
        laws=("whoever has everything waits for nothing else",),
    ),
    Mutant(
        "a shadow stays behind",
        BESIDE,
        "__exit__",
        "self._ticket.cancel()",
        "pass",
        laws=("no byte of a shadow is left",),
    ),
    Mutant(
        "shadows without a budget",
        admission.shadow.ShadowBudget,
        "take",
        "(counted and self._parts < _WHOLE)",
        "False",
        laws=("shadows stay in their budget",),
    ),
    Mutant(
        "a shadow keeps its seat",
        admission.forecast.desk.Desk,
        "_shadows_in_the_way",
        "if not self.books.num_shadows or entry.booking.shadow:",
        "if True:",
        laws=("no shadow sits where a caller could",),
    ),
)

IN_ESCALATION = (
    Mutant(
        "one replica speaks for all",
        router.dispatch.record.Record,
        "accepted",
        "self.full.discard(replica.specialist)",
        "pass",
        laws=("a specialist has room where one of its replicas has",),
    ),
    Mutant(
        "one replica is asked for all",
        router.dispatch.course.Course,
        "next",
        "self._tried.add(replica.name)",
        "self._tried.update(next(leg for leg in self._legs if leg.specialist == replica.specialist).lane.replicas)",
        laws=("nobody is refused while a replica is left to be asked",),
    ),
    Mutant(
        "asked again and again",
        router.dispatch.course.Course,
        "next",
        "self._tried.add(replica.name)",
        "pass",
        laws=("nobody is asked again who had no room",),
    ),
    Mutant(
        "one stands in for whoever stands in",
        router.between.stand_in,
        "_stand_ins",
        "fallback_of(decision.primary, ask, ensemble)",
        "fallback_of(fallback_of(decision.primary, ask, ensemble) or decision.primary, ask, ensemble)",
        laws=("only who was chosen is asked, and one other", "only who was chosen answers"),
    ),
    Mutant(
        "in another's place without a word",
        router.between.between_wire,
        "between_to_wire",
        'instead_of=clip(primary.name, _NAME) if first is not None and first.specialist != primary.name else "",',
        'instead_of="",',
        laws=("whoever answers in another's place is named, and nobody else",),
    ),
    Mutant(
        "a step before the last was felt",
        ESCALATION,
        "_is_settled",
        "return abs(now - ladder.since) >= rules.sustain + grain_of(rules.sustain)",
        "return True",
        laws=("a step is taken after the last one was felt",),
    ),
    Mutant(
        "relieved on a word",
        ESCALATION,
        "_is_hot",
        "counts.total >= rules.min_requests and counts.bad > rules.refused * counts.total",
        "counts.bad > 0",
        laws=("nobody is relieved but for refusals that last",),
    ),
    Mutant(
        "never relieved",
        ESCALATION,
        "_is_hot",
        "counts.total >= rules.min_requests",
        "False",
        laws=("whoever refuses too much for long is relieved",),
    ),
    Mutant(
        "all is taken off",
        router.between.plan,
        "_moves",
        "and decision.confidence < knobs.threshold",
        "",
        laws=("only what nobody is sure of is taken off, and only for refusals",),
    ),
    Mutant(
        "nothing is taken off",
        router.between.plan,
        "_moves",
        "lead == decision.primary",
        "False",
        laws=("what is taken off goes to the second choice",),
    ),
    Mutant(
        "a floor that nobody keeps",
        router.between.plan,
        "plan",
        "if ask.priority < knobs.floor:",
        "if False:",
        laws=("nobody below the floor is answered",),
    ),
)
