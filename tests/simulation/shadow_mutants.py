"""Mistakes planted on purpose in shadows: the simulation must notice."""

import admission.forecast.judge
import admission.shadow
import router.between.shadowing
import router.between.way
import router.service.answering
import router.shadow.beside
import router.shadow.request
import router.shadow.sending
import router.shadow.tally
from tests.laws.mutants import Mutant

SHADOWING = router.between.shadowing
BESIDE = router.shadow.beside.Beside

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
        "shadows without number",
        admission.shadow.ShadowBudget,
        "take",
        "self._num_inflight >= self._rules.most or ",
        "",
        laws=("so many shadows at once and no more",),
    ),
    Mutant(
        "a shadow is forgotten",
        router.shadow.tally.Tally,
        "end",
        'self.answered += ending == "answered"',
        "pass",
        laws=("of every shadow it is known what became of it",),
    ),
    Mutant(
        "a shadow of the same lane",
        BESIDE,
        "_begun",
        "if self._way_to(receipt).lane_id != errand.order.way.lane_id:",
        "if True:",
        laws=("nobody shadows itself",),
    ),
    Mutant(
        "adapters that a caller names count",
        router.between.way,
        "way_of",
        "return Way(specialist, loads, names, revision",
        "return Way(specialist, loads, names, lane.lane_id, revision",
        laws=("whoever names adapters has no shadow",),
    ),
    Mutant(
        "shown to who was not asked for",
        SHADOWING,
        "_reasons",
        "    other = _other(case)\n",
        "    if case.ask.force:\n"
        "        third = case.standing.of('debug')\n"
        "        yield 1.0, _way(case, third, third.lane), 'low_confidence'\n"
        "    other = _other(case)\n",
        laws=("whoever forces specialists shows the request to nobody else",),
    ),
    Mutant(
        "a shadow of what is sure",
        SHADOWING,
        "_is_unsure",
        "confidence < case.knobs.threshold",
        "confidence < 0.9",
        laws=("a shadow has a reason",),
    ),
    Mutant(
        "a shadow keeps its seat",
        admission.forecast.judge.Judge,
        "_shadows_in_the_way",
        "if not self.books.num_shadows or entry.booking.shadow:",
        "if True:",
        laws=("no shadow sits where a caller could",),
    ),
)
