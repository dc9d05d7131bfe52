"""Deliberate bugs in correctness breakers and escalation, which the simulation must detect."""

import admission.breakers
import admission.escalation
import router.dispatch.attempts
import router.dispatch.dispatcher
import router.routing.dispatch_plan
import router.serving
from tests.laws.mutants import Mutant

CORRECTNESS = admission.breakers
ESCALATION = admission.escalation

IN_THE_CORRECTNESS_BREAKER = (
    Mutant(
        "demoted on too few",
        CORRECTNESS,
        "_is_below",
        "counts.total >= rules.min_samples",
        "counts.total >= 1",
        laws=("few samples never move a correctness breaker",),
    ),
    Mutant(
        "flaps",
        CORRECTNESS,
        "_due",
        "if _dwell_left(record, now, rules) > 0:",
        "if False:",
        laws=("a correctness breaker moves at most once a window",),
    ),
    Mutant(
        "demoted at once",
        CORRECTNESS,
        "_due",
        "now - record.below_since >= rules.breach",
        "True",
        laws=("only a lasting breach demotes a specialist",),
    ),
    Mutant(
        "never demoted",
        CORRECTNESS,
        "_due",
        'return "trip" if record.state == "closed" else "relapse"',
        "return None",
        laws=("a correctness breaker follows its verdicts",),
    ),
    Mutant(
        "back below the floor",
        CORRECTNESS,
        "_due",
        'return None if is_below else "recover"',
        'return "recover"',
        laws=("a specialist returns only after a whole window at its floor",),
    ),
    Mutant(
        "back without a trial",
        CORRECTNESS,
        "_moved",
        "after = _TRANSITIONS[what][0]",
        'after = "closed" if what == "recover" else _TRANSITIONS[what][0]',
        laws=("a correctness breaker moves along its edges",),
    ),
    Mutant(
        "a demoted specialist answers",
        router.routing.dispatch_plan._Planning,
        "_first_specialist",
        "if primary.serves:",
        "if True:",
        laws=("a demoted specialist answers no request",),
    ),
    Mutant(
        "no fallback is used",
        router.routing.dispatch_plan._Planning,
        "_first_specialist",
        "if not objection:",
        "if False:",
        laws=("no request is refused as unserved while a specialist serves",),
    ),
)

IN_ESCALATION = (
    Mutant(
        "one full replica counts for all",
        router.dispatch.dispatcher.DispatchRecorder,
        "accepted",
        "self._request.full.discard(replica.specialist)",
        "pass",
        laws=("a specialist has room while one of its replicas has",),
    ),
    Mutant(
        "only one replica is tried",
        router.dispatch.attempts.AttemptSequence,
        "next",
        "self._tried.add(replica.name)",
        "self._tried.update(next(t for t in self._targets if t.specialist == replica.specialist).replica_set.replicas)",
        laws=("no request is refused while an untried replica is left",),
    ),
    Mutant(
        "a full replica is tried again",
        router.dispatch.attempts.AttemptSequence,
        "next",
        "self._tried.add(replica.name)",
        "pass",
        laws=("a replica that had no room is not asked again",),
    ),
    Mutant(
        "a fallback has a fallback",
        router.routing.dispatch_plan._Planning,
        "_first_specialist",
        "*self._fallbacks(primary.name)",
        "*(far for near in self._fallbacks(primary.name) for far in self._fallbacks(near) or (near,))",
        laws=("only a chosen specialist answers",),
    ),
    Mutant(
        "a third specialist is tried",
        router.routing.dispatch_plan._Planning,
        "_dispatch",
        "for name in order if name)",
        "for name in order if name) + (Candidate('debug', ('missing adapter',)),)",
        laws=("only the chosen specialist and one fallback are asked",),
    ),
    Mutant(
        "a fallback is not named",
        router.routing.dispatch_plan._Planning,
        "_between",
        "if asked is not None and asked.specialist != primary.name",
        "if False",
        laws=("the receipt names a fallback if and only if one answered",),
    ),
    Mutant(
        "a step before the last was felt",
        ESCALATION,
        "_is_settled",
        "return all(abs(now - moved) >= wait for moved in (ladder.since, view.moved_at))",
        "return True",
        laws=("a level changes only after the last change has taken effect",),
    ),
    Mutant(
        "a floor that withholds too much",
        ESCALATION.EscalationView,
        "step_up",
        "if withheld > self.excess + 1e-9:",
        "if False:",
        laws=("no floor withholds more requests than are refused",),
    ),
    Mutant(
        "relaxes at the first calm",
        ESCALATION,
        "_patience",
        "return rules.relax * float(2**ladder.regrets)",
        "return 0.0",
        laws=("withheld requests return only if they fit or after a lasting calm",),
    ),
    Mutant(
        "a full replica is not counted",
        router.serving.RequestPipeline,
        "_record_demand",
        'record(plan.lead, request.intent, plan.demand, "refused")',
        "pass",
        laws=("every request that finds no room is counted",),
    ),
    Mutant(
        "turned away above the floor",
        router.routing.dispatch_plan._Planning,
        "plan",
        "if request.priority < knobs.floor:",
        "if request.priority < knobs.floor + 2:",
        laws=("only requests below the priority floor are turned away",),
    ),
    Mutant(
        "escalates on one refusal",
        ESCALATION,
        "_due_move",
        "_has_lasted(ladder.hot_since, rules.sustain, now)",
        "total.refused > 0",
        laws=("only lasting refusals escalate a specialist",),
    ),
    Mutant(
        "never escalates",
        ESCALATION,
        "_due_move",
        "_has_lasted(ladder.hot_since, rules.sustain, now)",
        "False",
        laws=("lasting refusals escalate a specialist",),
    ),
    Mutant(
        "escalation moves every request",
        router.routing.dispatch_plan._Planning,
        "plan",
        "and self._is_below(knobs.threshold)",
        "and self.decision.confidence is not None",
        laws=("escalation moves only uncertain requests, and only after refusals",),
    ),
    Mutant(
        "escalation moves no request",
        router.routing.dispatch_plan._Planning,
        "plan",
        "self._can_move(first, second) and",
        "False and",
        laws=("escalation moves requests to the second choice",),
    ),
    Mutant(
        "a floor without effect",
        router.routing.dispatch_plan._Planning,
        "plan",
        "if request.priority < knobs.floor:",
        "if False:",
        laws=("no request below the floor is answered",),
    ),
)
