"""Evaluate one answer: decode it, verify it, compare it with its shadow's answer."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from admission.collapse import DEGENERATE, cut_signal
from admission.similarity import similarity
from octet.config.ensemble import Ensemble
from octet.v1 import inference_pb2 as wire
from octet.v1 import operator_pb2 as operator_wire
from router.quality.answers import (
    CapturedAnswer,
    EvaluationListener,
    FinishedAnswer,
    JudgedAnswer,
    JudgementKind,
    ShadowAnswer,
    ShadowHandle,
)
from router.routing.classifier.base import sample_text
from router.routing.classifier.features import BUCKET_BITS, FAMILIES
from router.routing.classifier.reader import FEATURE_VERSION, encode_views, extract_view_features
from router.routing.dispatch_plan import Candidate, ShadowOrder
from router.verify.by_task import NON_EMPTY, NONE, AnswerPurpose, Judgement, VerifierSet
from router.verify.degenerate import (
    BLANK_TOKENS,
    SHORTEST,
    AnswerHistory,
    describe_degeneration,
    is_asked_to_repeat,
    is_checked,
)
from router.verify.same import FEWEST_SAME, SaidAnswer, SameAnswers
from router.verify.verdict import Outcome

MOST_FEATURES = 2000
LARGE_ANSWER_BYTES = 8 << 10  # answers with more raw bytes are decoded on another thread
_LONG_TEXT = 1024  # characters; a longer answer is checked on another thread
_LONG_PART = 400  # characters; of an answer that its caller abandoned, so much shows what it would have become
_CONCLUSIVE = ("passed", "failed")
_RUNAWAY_FACTOR = 2  # a shadow truncated after this many times the primary's tokens has failed
_RECEIPT_BYTES = 8192  # about the largest size of a receipt
_FAMILY_RANKS = tuple(FAMILIES.index(name) for name in ("word", "punctuation", "pair", "letters"))
"""The families of features, most informative first."""


@dataclass(frozen=True, slots=True)
class EvaluationRules:
    """The rules for evaluation. An answer is evaluated by the rules that applied when it was submitted."""

    verifiers: VerifierSet
    answer_bytes: int
    queue: int
    similar: float  # the least similarity at which two answers agree


def load_evaluation_rules(ensemble: Ensemble, verifiers: VerifierSet) -> EvaluationRules:
    correctness = ensemble.correctness
    return EvaluationRules(verifiers, correctness.answer_bytes, correctness.queue, ensemble.shadow.similar)


@dataclass(slots=True)
class EvaluationCounters:
    """Counts since the router started."""

    submitted: int = 0
    judged: int = 0  # answers that passed or failed
    undecided: int = 0  # inconclusive verdicts: nothing to verify, or no verifier available
    compared: int = 0
    unread: int = 0  # answers that were too long, or did not fit into the byte budget
    shed: int = 0  # answers dropped from the queue in favour of newer ones
    shed_shadows: int = 0  # dropped answers that also had a shadow's answer
    failed: int = 0


@dataclass(frozen=True, slots=True)
class TracedVerdict:
    """The verdict on an answer to a traced request. Times are on the monotonic clock."""

    receipt: wire.Receipt  # the request's receipt, even if the answer is its shadow's
    specialist: str
    verifier: str
    outcome: Outcome
    began: float
    ended: float
    is_shadow: bool


@dataclass(frozen=True, slots=True)
class LineKey:
    """Identifies the queue in which an answer waits. Each pair of verifier and specialist has its own queue."""

    verifier: str
    specialist: str


@dataclass(frozen=True, slots=True)
class DecodedAnswer:
    text: str
    finish: wire.FinishReason
    num_tokens: int
    is_at_stop: bool = False  # whether a stop sequence of the caller ended it

    @property
    def shows_nothing(self) -> bool:
        """Whether it is blank because it began with a stop sequence of the caller."""
        return self.is_at_stop and not self.text.strip()

    @property
    def has_stopped(self) -> bool:
        """Whether the model ended the answer."""
        return self.finish == wire.FINISH_REASON_STOP

    @property
    def is_judged(self) -> bool:
        """Whether it shows what the model does: it ended by itself, or was cut at its length or its deadline."""
        ends = (wire.FINISH_REASON_STOP, wire.FINISH_REASON_LENGTH, wire.FINISH_REASON_DEADLINE)
        return self.finish in ends


@dataclass(slots=True, eq=False)
class EvaluationTask:
    """One answer to evaluate, with its shadow's answer if there is one."""

    finished: FinishedAnswer
    shadow: ShadowHandle | None
    rules: EvaluationRules
    primary: DecodedAnswer | None = None
    shadow_answer: ShadowAnswer | None = None
    shadow_decoded: DecodedAnswer | None = None
    is_compared: bool = False  # whether the first of its turns has ended
    judgements: dict[tuple[str, str], Judgement] = field(default_factory=dict)  # by specialist and answer

    @property
    def num_bytes(self) -> int:
        """The size of the task without the captured answers."""
        return sys.getsizeof(self.finished.question) + _RECEIPT_BYTES

    async def verify(self, specialist: str, answer: str, *, is_cut: bool = False) -> Judgement:
        """Verify the answer as one of the specialist's. Each answer is verified at most once for each specialist."""
        key = (specialist, answer)
        if key not in self.judgements:
            purpose, question = self.purpose(specialist), self.finished.question
            self.judgements[key] = await self.rules.verifiers.verify(purpose, question, answer, is_cut=is_cut)
        return self.judgements[key]

    def purpose(self, specialist: str) -> AnswerPurpose:
        decision = self.finished.receipt.decision
        return AnswerPurpose(specialist, decision.task, decision.intent, self.finished.structure)

    @property
    def line(self) -> LineKey:
        specialist = self._shadow_specialist if self.is_compared else self.finished.candidate.specialist
        return LineKey(self.rules.verifiers.line(specialist), specialist)

    @property
    def needs_two_turns(self) -> bool:
        """Whether the shadow's answer is verified in a second turn, in the queue of the shadow's specialist. This is so
        if its verdict counts and a different specialist answered the caller."""
        counts = self.shadow_answer is not None and self.counts_for_shadow
        return counts and self._shadow_specialist != self.finished.candidate.specialist

    @property
    def _shadow_specialist(self) -> str:
        return "" if self.shadow is None else self.shadow.order.candidate.specialist

    @property
    def counts_for_shadow(self) -> bool:
        """Whether a verdict on the shadow's answer counts for the shadow's lane."""
        receipt = self.finished.receipt
        return self.shadow is not None and self._shadow_specialist in (receipt.specialist, receipt.decision.primary)

    @property
    def did_shadow_run_away(self) -> bool:
        """Whether the shadow's answer was cut off when it was far longer than the primary's complete answer."""
        if self.shadow_answer is None or self.shadow_answer.usage.finish_reason != wire.FINISH_REASON_LENGTH:
            return False
        primary = self.finished.receipt.usage
        has_stopped = primary.finish_reason == wire.FINISH_REASON_STOP
        limit = _RUNAWAY_FACTOR * max(1, primary.completion_tokens)
        return has_stopped and self.shadow_answer.usage.completion_tokens >= limit

    def drop(self) -> None:
        self.finished.captured.drop()
        if self.shadow_answer is not None:
            self.shadow_answer.captured.drop()


@dataclass(frozen=True, slots=True)
class Evaluator:
    """Verifies the answers of a task, counts the verdicts for the lanes, and compares the answers."""

    _listener: EvaluationListener
    _wall_ms: Callable[[], int]  # returns Unix milliseconds
    _counters: EvaluationCounters
    _clock: Callable[[], float]  # monotonic
    _on_traced: Callable[[TracedVerdict], None] | None = None  # receives verdicts on traced requests
    _history: AnswerHistory = field(default_factory=AnswerHistory)
    _same: SameAnswers = field(default_factory=SameAnswers)

    async def evaluate(self, task: EvaluationTask) -> bool:
        """Run the next turn of the task. The first turn verifies and compares the answers. Return whether a second turn
        is needed, in which the verifier of the shadow's specialist verifies the shadow's answer."""
        if task.is_compared:
            await self._judge_shadow(task)
            return False
        task.primary = await self._decode(task.finished.captured, task.finished.receipt.usage)
        if task.shadow_answer is not None:
            task.shadow_decoded = await self._decode(task.shadow_answer.captured, task.shadow_answer.usage)
        finished = task.finished
        if task.primary is not None and finished.is_sample:
            judged = await self._judge(task, task.primary, finished.candidate, finished.receipt.lane)
            if judged is not None:
                self._listener.answer_evaluated(finished.receipt, judged)
        if not task.needs_two_turns:
            await self._judge_shadow(task)
        await self._compare(task)
        task.is_compared = True
        return task.needs_two_turns

    async def _decode(self, captured: CapturedAnswer, usage: wire.Usage) -> DecodedAnswer | None:
        """Return the decoded answer; None if it was dropped, is malformed or too long."""
        is_large = captured.num_bytes > LARGE_ANSWER_BYTES
        text = await asyncio.to_thread(captured.text) if is_large else captured.text()
        if text is None:
            self._counters.unread += 1
            return None
        return DecodedAnswer(text, usage.finish_reason, usage.completion_tokens, usage.HasField("stop_string"))

    async def _judge_shadow(self, task: EvaluationTask) -> None:
        answer, decoded = task.shadow_answer, task.shadow_decoded
        if decoded is None or task.shadow is None or answer is None or not task.counts_for_shadow:
            return
        await self._judge(task, decoded, task.shadow.order.candidate, answer.lane)

    async def _judge(
        self, task: EvaluationTask, answer: DecodedAnswer, candidate: Candidate, lane: wire.Lane
    ) -> JudgedAnswer | None:
        """Judge the answer by its text and with the verifier of the candidate's specialist. Of an answer that was cut,
        the complete part is verified. Count the outcome for the candidate's lane. A degenerate answer fails, and counts
        for the verifier that judges such an answer; if none does, for no pass rate. Return what was found; None if that
        is nothing. Answers of other lanes and those that ended in an error are ignored."""
        verifier = task.rules.verifiers.line(candidate.specialist)
        is_abandoned = answer.finish == wire.FINISH_REASON_CANCELLED and len(answer.text) >= _LONG_PART
        if not (answer.is_judged or is_abandoned) or answer.shows_nothing or not _counts_for_lane(candidate, lane):
            return None
        began, receipt, is_shadow = self._clock(), task.finished.receipt, answer is task.shadow_decoded
        kind, why, signals = await self._check_text(task, answer, candidate, verifier)
        if is_abandoned:  # it has no verdict, because the caller did not wait for the rest
            judged = JudgedAnswer("skipped", "cut", why, receipt.tenant, task.finished.question, signals)
            self._listener.lane_judged(candidate.lane_id, candidate.specialist, judged)
            return None
        is_degenerate = kind == "degenerate"
        if not is_degenerate and is_shadow and task.primary is not None and task.did_shadow_run_away:
            verifier, verdict = await task.verify(candidate.specialist, task.primary.text)
            outcome: Outcome = "failed" if verdict.outcome == "passed" else "skipped"  # it fails if the primary passed
        else:
            verifier, verdict = await task.verify(candidate.specialist, answer.text, is_cut=not answer.has_stopped)
            outcome = verdict.outcome
        if verifier != NONE and not is_degenerate:
            why = self._check_same(
                task, answer, candidate, signals, is_right=outcome == "passed" and verifier != NON_EMPTY
            )
        is_counted = not is_degenerate or outcome in _CONCLUSIVE
        outcome = "failed" if is_degenerate else outcome
        if self._on_traced is not None and receipt.span_id:
            times = began, self._clock()
            self._on_traced(TracedVerdict(receipt, candidate.specialist, verifier, outcome, *times, is_shadow))
        is_conclusive = self._count(candidate, outcome if is_counted else "skipped", verifier)
        judged = JudgedAnswer(outcome, kind, why, receipt.tenant, task.finished.question, signals)
        self._listener.lane_judged(candidate.lane_id, candidate.specialist, judged)
        return judged if is_conclusive or kind != "verifier" else None

    async def _check_text(
        self, task: EvaluationTask, answer: DecodedAnswer, candidate: Candidate, verifier: str
    ) -> tuple[JudgementKind, str, dict[str, bool]]:
        """Return what gives the verdict, what is wrong with the text, and whether the answer is bad by each signal. If
        the verifier is turned off, the text is not checked. A repetition that the caller asked for or forced is no
        signal."""
        is_cut = not answer.has_stopped
        kind: JudgementKind = "cut" if is_cut else "verifier"
        if verifier in ("", NONE) or task.finished.is_forced(is_cut=is_cut):
            return kind, "", {}
        question, text = task.finished.question, answer.text
        usual = self._history.usual(candidate.specialist)
        find = partial(describe_degeneration, question, text, is_cut=is_cut, num_tokens=answer.num_tokens, usual=usual)
        why = await asyncio.to_thread(find) if len(text) > _LONG_TEXT else find()
        is_asked = bool(why) and await asyncio.to_thread(is_asked_to_repeat, question, text)
        if is_asked:
            return kind, "", {}
        if not why and not candidate.fresh:
            self._history.add(candidate.specialist, text)
        limit, signals = task.finished.receipt.decision.max_tokens, dict[str, bool]()
        if is_checked(text, is_cut=is_cut, num_tokens=answer.num_tokens, limit=limit):
            signals[DEGENERATE] = bool(why)
        if (answer.has_stopped or answer.finish == wire.FINISH_REASON_LENGTH) and (signal := cut_signal(limit)):
            signals[signal] = is_cut
        return ("degenerate" if why else kind), why, signals

    def _check_same(
        self,
        task: EvaluationTask,
        answer: DecodedAnswer,
        candidate: Candidate,
        signals: dict[str, bool],
        *,
        is_right: bool,
    ) -> str:
        """Add to the signals what the lane's newest answers to other questions show: whether they are this text, too.
        Return why the answer is bad by it; empty if it is not. Its verdict stays as it is."""
        question, limit = task.finished.question, task.finished.receipt.decision.max_tokens
        if task.finished.structure is not None:
            return ""
        is_short = (
            answer.has_stopped and 0 < len(answer.text.strip()) < SHORTEST and (not limit or limit >= BLANK_TOKENS)
        )
        said = SaidAnswer.read(question, answer.text)
        is_same = self._same.add(candidate.specialist, candidate.lane_id, said, is_trusted=not candidate.fresh)
        if is_same and not is_right and (is_short or DEGENERATE in signals):
            signals[DEGENERATE] = True
            return f"{FEWEST_SAME} different questions got the same text"
        if is_short and not is_same and (is_right or self._same.is_varied(candidate.lane_id, said)):
            signals[DEGENERATE] = False
        return ""

    def _count(self, candidate: Candidate, outcome: Outcome, verifier: str) -> bool:
        """Count the outcome. If it is conclusive, report it for the candidate's lane and return True."""
        if outcome not in _CONCLUSIVE:
            self._counters.undecided += 1
            return False
        self._counters.judged += 1
        self._listener.lane_evaluated(candidate.lane_id, candidate.specialist, outcome, verifier)
        return True

    async def _compare(self, task: EvaluationTask) -> None:
        """Compare the answers. A shadow that ran away fails. With any other truncation, both outcomes are `skipped`."""
        primary, shadow, answer = task.primary, task.shadow_decoded, task.shadow_answer
        if task.shadow is None or primary is None or shadow is None or answer is None:
            return
        if answer.lane == task.finished.receipt.lane:  # one lane gave both answers
            return
        own = task.finished.receipt.specialist
        outcomes: tuple[Outcome, Outcome] = ("skipped", "skipped")
        if primary.has_stopped and task.did_shadow_run_away:
            outcomes = ((await task.verify(own, primary.text)).verdict.outcome, "failed")
        elif primary.has_stopped and shadow.has_stopped:
            judged = [await task.verify(own, text) for text in (primary.text, shadow.text)]
            outcomes = judged[0].verdict.outcome, judged[1].verdict.outcome
        texts, similar, at_ms = (primary.text, shadow.text), task.rules.similar, self._wall_ms()
        case = (task.finished, task.shadow.order, texts, outcomes, similar, at_ms)
        comparison = await asyncio.to_thread(compare_answers, *case)
        self._counters.compared += 1
        self._listener.compared(comparison, task.finished.receipt.tenant, task.finished.question)


def _counts_for_lane(candidate: Candidate, lane: wire.Lane) -> bool:
    """Whether a verdict on an answer from `lane` counts for the candidate, whose revision must match if it has one."""
    return bool(candidate.lane_id) and (not candidate.revision or candidate.revision == lane.revision)


def answers_agree(outcomes: tuple[Outcome, Outcome], likeness: float, similar: float) -> bool:
    """Whether both answers passed, both failed or both are inconclusive, and their texts are similar."""
    is_inconclusive = not any(outcome in _CONCLUSIVE for outcome in outcomes)
    return (is_inconclusive or outcomes[0] == outcomes[1]) and likeness >= similar


def compare_answers(
    finished: FinishedAnswer,
    order: ShadowOrder,
    texts: tuple[str, str],
    outcomes: tuple[Outcome, Outcome],
    similar: float,
    at_ms: int,
) -> operator_wire.Comparison:
    """Return the comparison of the primary's answer with the shadow's; `texts` and `outcomes` are in this order. The
    primary's verifier gave both outcomes. Slow, because the texts are compared character by character."""
    decision = finished.receipt.decision
    likeness = similarity(*texts)
    agreed = answers_agree(outcomes, likeness, similar)
    indices, values = ([], []) if agreed else extract_features(finished.question)
    return operator_wire.Comparison(
        request_id=finished.receipt.request_id,
        at_unix_ms=at_ms,
        intent=decision.intent,
        primary=finished.receipt.specialist,
        shadow=shadow_label(order),
        why=order.why,
        confidence=decision.confidence if decision.HasField("confidence") else None,
        primary_outcome=outcomes[0],
        shadow_outcome=outcomes[1],
        similarity=likeness,
        agreed=agreed,
        feature_indices=indices,
        feature_values=values,
        classifier_digest=decision.classifier_digest,
        feature_version=FEATURE_VERSION if indices else 0,
    )


def shadow_label(order: ShadowOrder) -> str:
    """Return the name of the shadow's specialist, such as `legal`. For a fresh lane (one with little history), append
    the names that callers use for its adapters: `legal+style`."""
    candidate = order.candidate
    return "+".join((candidate.specialist, *candidate.names)) if candidate.fresh else candidate.specialist


def extract_features(question: str) -> tuple[list[int], list[float]]:
    """Return the classifier's features of a question, for offline training: ascending indices, and the count of each.
    An index combines the number of the feature's family and its hash bucket. If there are more than MOST_FEATURES,
    those of the most informative families are kept."""
    found = extract_view_features([encode_views(sample_text(question))])
    indices = (found.family.astype(np.uint32) << np.uint32(BUCKET_BITS)) | found.bucket
    known, times = np.unique(indices, return_counts=True)
    if len(known) > MOST_FEATURES:
        # Within a family the lowest buckets are kept: an arbitrary choice, because a bucket is a hash.
        rank = np.argsort(_FAMILY_RANKS)[(known >> BUCKET_BITS) % len(FAMILIES)]
        chosen = np.sort(np.argsort(rank, kind="stable")[:MOST_FEATURES])
        known, times = known[chosen], times[chosen]
    return known.tolist(), times.astype(float).tolist()
