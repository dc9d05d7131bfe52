"""Mistakes planted on purpose in correctness breakers and escalation: the simulation must notice."""

import admission.correctness
import admission.escalation
import router.between.between_wire
import router.between.plan
import router.between.stand_in
import router.dispatch.course
import router.dispatch.record
import router.service.answering
from tests.laws.mutants import Mutant

CORRECTNESS = admission.correctness
ESCALATION = admission.escalation

IN_THE_CORRECTNESS_BREAKER = (
    Mutant(
        "demoted on too few",
        CORRECTNESS,
        "step",
        "counts.total < rules.min_samples",
        "counts.total < 1",
        laws=("few samples never move a correctness breaker",),
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
        "back below the floor",
        CORRECTNESS,
        "_due",
        'return None if is_below else "recover"',
        'return "recover"',
        laws=("nobody comes back before the floor is reached, and has been for a window",),
    ),
    Mutant(
        "back without a trial",
        CORRECTNESS,
        "_moved",
        "after = _AFTER[what]",
        'after = "closed" if what == "recover" else _AFTER[what]',
        laws=("a correctness breaker moves along its edges",),
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
        laws=("only who was chosen answers",),
    ),
    Mutant(
        "a third is asked",
        router.between.plan,
        "plan",
        "for name in order if name)",
        "for name in order if name) + (Way('debug', ('what nobody has',)),)",
        laws=("only who was chosen is asked, and one other",),
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
        "two steps at once",
        ESCALATION,
        "_aim",
        "return ladder.level + 1,",
        "return min(ladder.level + 2, limit),",
        laws=("a ladder is climbed step by step",),
    ),
    Mutant(
        "back at the first calm",
        ESCALATION,
        "_patience",
        "return rules.relax * float(2**ladder.regrets)",
        "return 0.0",
        laws=("a step back comes after a calm that lasts",),
    ),
    Mutant(
        "no room, and nobody counts",
        router.service.answering.Answering,
        "_count",
        "self._control.refused(specialist, ask.intent)",
        "pass",
        laws=("whoever finds no room is counted",),
    ),
    Mutant(
        "turned away above the floor",
        router.between.plan,
        "plan",
        "if ask.priority < knobs.floor:",
        "if ask.priority < knobs.floor + 2:",
        laws=("nobody is turned away but below the floor",),
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
