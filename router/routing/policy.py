"""The routing policy: decision, adapters and generation parameters."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import floor
from typing import NamedTuple, Protocol

from octet.config.ensemble import REJECT, Ensemble, IntentConfig, SpecialistConfig, TaskConfig
from octet.config.fields import ensemble_digest
from octet.identity import digest_parts
from octet.rpc.messages import copy_message
from octet.v1 import inference_pb2 as wire
from octet.v1 import specialist_pb2 as specialist_wire
from router.refusals import no_embeddings, unknown_intent, unknown_specialist
from router.request import DecisionSource, MaxTokensSource, Request, RoutingDecision
from router.routing.classifier.base import ClassifierUnavailable, Distribution
from router.routing.rules.detectors import rule_detector
from router.routing.rules.small_talk import find_topics, is_small_talk
from router.routing.rules.text import ScannedText

DEFAULT_TASK = "default"
SYSTEM = "system"
_WORD_BYTES = b"abcdefghijklmnopqrstuvwxyz0123456789'"
_WORD_TABLE = bytes(byte if byte in _WORD_BYTES else 0x20 for byte in bytes(range(256)).lower())
_HEAD_CHARS, _TAIL_CHARS = 1024, 512
"""Characters of a text that are read: the task is usually stated at the beginning or at the end."""
_PHRASES = {  # by task, in order of precedence: a request to review a crash is a review
    "json_parsing": "as json, in json, into json, to json, valid json, json object, json schema",
    "review": "review, critique, feedback on, what do you think of",
    "debug": "debug, crash, crashes, crashed, segfault, segfaults, segmentation fault, core dumped, sigsegv, sigabrt, "
    "data race, deadlock, deadlocks, memory leak, fix this, what's wrong, what is wrong, doesn't work, does not work, "
    "doesn't compile, does not compile, undefined reference",
    "code_generation": "write a, write an, write me, write the, implement, generate, create a, complete the, "
    "complete this, refactor, rewrite, port this, add a",
    "creative_writing": "poem, haiku, limerick, short story, a story, song, creative, essay",
}
_TASK_ORDER = {task: place for place, task in enumerate(_PHRASES)}


def _index_phrases() -> dict[bytes, tuple[tuple[str, bytes], ...]]:
    """Index the phrases, with their tasks, by the longest word of each phrase, because few texts contain that word."""
    found: dict[bytes, list[tuple[str, bytes]]] = {}
    for task, phrases in _PHRASES.items():
        for phrase in phrases.encode().split(b", "):
            found.setdefault(max(phrase.split(), key=len), []).append((task, b" %b " % phrase))
    return {word: tuple(each) for word, each in found.items()}


_PHRASES_BY_WORD = _index_phrases()


def find_task(request: Request, ensemble: Ensemble) -> TaskConfig:
    """Return the task of the declared intent, else the task that the text asks for, else the default task."""
    declared = next((intent.task for intent in ensemble.intents if intent.name == request.intent), None)
    name = declared or _task_from_text(request.text, ensemble.tasks)
    return next((task for task in ensemble.tasks if task.name == name), None) or TaskConfig(DEFAULT_TASK)


def _task_from_text(text: str, tasks: Sequence[TaskConfig]) -> str:
    available = {task.name for task in tasks}
    is_short = len(text) <= _HEAD_CHARS + _TAIL_CHARS
    sample = text if is_short else f"{text[:_HEAD_CHARS]}\n{text[-_TAIL_CHARS:]}"
    words = sample.encode("utf-8", "replace").translate(_WORD_TABLE).split()
    joined = b" %b " % b" ".join(words)
    likely = (each for word in _PHRASES_BY_WORD.keys() & words for each in _PHRASES_BY_WORD[word])
    found = (task for task, phrase in likely if task in available and phrase in joined)
    return min(found, key=lambda task: _TASK_ORDER[task], default=DEFAULT_TASK)


def effective_sampling(request: Request, task: TaskConfig) -> wire.Sampling:
    """Return the caller's sampling parameters. Those not set come from the task. A temperature of 0 counts as set."""
    sampling = wire.Sampling() if request.sampling is None else copy_message(request.sampling)
    for field in ("temperature", "top_p", "repetition_penalty"):
        if not sampling.HasField(field):
            setattr(sampling, field, getattr(task, field))
    return sampling


def effective_max_tokens(
    request: Request, task: TaskConfig, specialist: SpecialistConfig | None
) -> tuple[int, MaxTokensSource]:
    """Return the caller's limit; without one, the lower of the task's and the specialist's own, if it has one, but at
    least `min_tokens`. Also return what set it."""
    if request.max_tokens is not None:
        return request.max_tokens, "caller"
    source: MaxTokensSource = "task"
    limit = task.max_tokens
    if specialist is not None and specialist.max_tokens is not None and specialist.max_tokens < limit:
        limit, source = specialist.max_tokens, "specialist"
    least = request.min_tokens or 0
    return (least, "caller") if least > limit else (limit, source)


def requested_adapters(request: Request, specialist: SpecialistConfig | None) -> tuple[str, ...]:
    """Return the caller's adapters, else the specialist's own, in order."""
    return () if specialist is None else request.adapters or specialist.use_adapters


def limit_adapters(adapters: tuple[str, ...], max_experts: int | None) -> tuple[str, ...]:
    """Return the adapters that `max_experts` allows; the specialist itself counts as the first expert."""
    return adapters if max_experts is None else adapters[: max_experts - 1]


def build_replica_request(
    request: Request, specialist: SpecialistConfig, adapters: Sequence[str], seconds_left: float
) -> specialist_wire.GenerateRequest:
    """Return the message for a replica. `adapters` are the names that replicas use."""
    max_tokens, first_token_ms = request.decision.max_tokens, None
    if request.max_tokens is None and specialist.max_tokens is not None:
        max_tokens = min(max_tokens, max(specialist.max_tokens, request.min_tokens or 0))
    if specialist.context is not None:
        max_tokens = min(max_tokens, specialist.context)
    if request.first_deadline is not None:
        first_token_ms = max(1, floor((seconds_left - (request.deadline - request.first_deadline)) * 1000))
    timeout_ms = max(1, floor(seconds_left * 1000))
    if request.embed:
        return specialist_wire.GenerateRequest(
            request_id=request.request_id,
            text=request.messages[0].content,
            adapters=adapters,
            priority=request.priority,
            timeout_ms=timeout_ms,
            first_token_timeout_ms=first_token_ms,
            tenant_salt=request.tenant_salt,
            embed=True,
        )
    return specialist_wire.GenerateRequest(
        request_id=request.request_id,
        chat=specialist_wire.Chat(
            messages=_messages(request, specialist), tools=request.tools, tool_choice=request.tool_choice
        ),
        adapters=adapters,
        sampling=request.decision.sampling,
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=None if request.min_tokens is None else min(request.min_tokens, max_tokens),
        stop=request.stop,
        ignore_eos=request.ignore_eos,
        priority=request.priority,
        timeout_ms=timeout_ms,
        first_token_timeout_ms=first_token_ms,
        tenant_salt=request.tenant_salt,
        context_size=request.context_size,
        draft_window=request.draft_window,
        session_key=request.session.key,
        structure=request.structure,
    )


def _messages(request: Request, specialist: SpecialistConfig) -> Sequence[wire.Message]:
    """Return the messages with the specialist's system prompt first, unless its bare model answers. A caller's system
    message is appended to it, because many chat templates accept only one."""
    messages = request.messages
    if not specialist.system or request.decision.is_bare:
        return messages
    if messages[0].role == SYSTEM:
        return [wire.Message(role=SYSTEM, content=f"{specialist.system}\n\n{messages[0].content}"), *messages[1:]]
    return [wire.Message(role=SYSTEM, content=specialist.system), *messages]


Scores = tuple[tuple[str, float], ...]
CLASSIFIER_UNAVAILABLE = "no rule matched and the classifier was unavailable"
NO_CLASSIFIER_NOTE = "the classifier did not answer: "  # starts the note on a decision without the classifier
SURE = 0.8  # a text for which a specialist is so likely is not small talk; this saves the check
_NUM_SHOWN = 3  # maximum number of scores named in an explanation


class RuleResult(NamedTuple):
    """The result of the rules. The decision's task, adapters and sampling are filled in later."""

    decision: RoutingDecision | None  # None if the classifier must be asked
    notes: tuple[str, ...] = ()


class ClassifierClient(Protocol):
    """Access to the classifier off the event loop, with a cache and a breaker."""

    @property
    def digest(self) -> str:
        """The sha256 of the classifier, in hex."""

    def cached(self, text: str, tenant: str = "") -> Distribution | None: ...

    async def classify(self, text: str, tenant: str = "") -> Distribution:
        """Return the distribution, or raise ClassifierUnavailable, within the time limit."""


class RoutingPolicy:
    """The routing rules of one configuration. Immutable."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.digest = ensemble_digest(ensemble)
        self.specialists = {each.name: each for each in ensemble.specialists}
        self._topics = find_topics(f"{each.name} {each.describe}" for each in ensemble.specialists)
        self._rules = tuple((rule, rule_detector(rule)) for rule in ensemble.rules)

    async def classify_and_decide(self, request: Request, classifier: ClassifierClient) -> RoutingDecision:
        """Return the decision. The classifier is asked only if no rule decides. Raises Refusal for unknown names."""
        result, scores, digest = self.apply_rules(request), None, ""
        notes: tuple[str, ...] = ()
        if result.decision is None:
            tenant, digest = request.caller.tenant, classifier.digest
            try:
                scores = classifier.cached(request.text, tenant) or await classifier.classify(request.text, tenant)
            except ClassifierUnavailable as unavailable:
                digest, notes = "", (f"{NO_CLASSIFIER_NOTE}{unavailable}",)
        return self._conclude(request, result, scores, digest, notes)

    def decide(
        self, request: Request, scores: Distribution | None, classifier_digest: str, notes: tuple[str, ...] = ()
    ) -> RoutingDecision:
        """Return the decision. `scores` is None if the classifier was unavailable. Raises Refusal for unknown names."""
        return self._conclude(request, self.apply_rules(request), scores, classifier_digest, notes)

    def apply_rules(self, request: Request) -> RuleResult:
        """Decide by forced specialists, else by intent, else by rules. Raises Refusal for unknown names."""
        intent = self._check_names(request)
        if request.embed:
            return RuleResult(self._choose_embedder(request))
        if request.force:
            return _choose_forced(request, intent)
        if request.exclude and set(request.exclude).issuperset(self.specialists):
            why = "the caller excluded every specialist"
            return RuleResult(RoutingDecision("unrouted", "exclude_specialists", why))
        notes: list[str] = []
        if intent is not None and intent.specialist is not None:
            if intent.specialist not in request.exclude:
                why = f"the declared intent {intent.name!r} belongs to {intent.specialist}"
                return RuleResult(self._choose("intent", intent.name, why, intent.specialist, request))
            notes.append(f"intent {intent.name!r} belongs to {intent.specialist}, which the caller excluded")
        scanned = ScannedText(request.text)
        for rule, detect in self._rules:
            match = detect(scanned)
            if match is None:
                continue
            why = f"rule {rule.name!r} matched {match}"
            if rule.specialist not in request.exclude:
                return RuleResult(self._choose("rule", rule.name, why, rule.specialist, request), tuple(notes))
            notes.append(f"{why}; it belongs to {rule.specialist}, which the caller excluded")
        return RuleResult(None, tuple(notes))

    def _choose_embedder(self, request: Request) -> RoutingDecision:
        """Choose the forced specialist, or the only one that computes embeddings. There is no second choice. Raises
        Refusal if the choice is not clear."""
        known = [each.name for each in self.ensemble.specialists if each.embeddings]
        allowed = [name for name in request.force[:1] or known if name in known and name not in request.exclude]
        if len(allowed) != 1:
            raise no_embeddings(request.force[:1], known)
        if request.force:
            return RoutingDecision("forced", "force_specialists", f"the caller asked for {allowed[0]}", allowed[0])
        why = f"{allowed[0]} is the only specialist that computes embeddings"
        return RoutingDecision("rule", "embeddings", why, allowed[0])

    def _conclude(
        self, request: Request, result: RuleResult, scores: Distribution | None, digest: str, notes: tuple[str, ...]
    ) -> RoutingDecision:
        ensemble = self.ensemble
        if result.decision is not None:
            decision = result.decision
        elif scores is None:
            decision = choose_default(CLASSIFIER_UNAVAILABLE, request, ensemble)
        else:
            decision = choose_by_classifier(request, ensemble, scores, digest, self._topics)
        if not decision.primary:
            decision = choose_bare(decision, request, ensemble)
        task = find_task(request, ensemble)
        specialist = self.specialists[decision.primary] if decision.primary else None
        requested = () if decision.is_bare else requested_adapters(request, specialist)
        adapters = limit_adapters(requested, request.max_experts)
        max_tokens, max_tokens_from = effective_max_tokens(request, task, specialist)
        notes = (*result.notes, *notes)
        if len(adapters) < len(requested):
            notes = (*notes, f"max_experts allows {len(adapters)} of {len(requested)} adapters")
        return replace(
            decision,
            intent=request.intent,
            task=task.name,
            adapters=adapters,
            sampling=effective_sampling(request, task),
            max_tokens=max_tokens,
            max_tokens_from=max_tokens_from,
            notes=notes,
            request_digest=request_digest(request),
            config_digest=self.digest,
        )

    def _check_names(self, request: Request) -> IntentConfig | None:
        ensemble = self.ensemble
        for field, names in (("force_specialists", request.force), ("exclude_specialists", request.exclude)):
            for name in names:
                if name not in self.specialists:
                    raise unknown_specialist(field, name, self.specialists)
        if not request.intent:
            return None
        intent = next((intent for intent in ensemble.intents if intent.name == request.intent), None)
        if intent is None:
            raise unknown_intent(request.intent, (intent.name for intent in ensemble.intents))
        return intent

    def _choose(
        self, source: DecisionSource, decided_by: str, why: str, primary: str, request: Request
    ) -> RoutingDecision:
        return RoutingDecision(source, decided_by, why, primary, configured_fallback(primary, request, self.ensemble))


def configured_fallback(specialist: str, request: Request, ensemble: Ensemble) -> str:
    """Return the first of `configured_fallbacks`; "" if there is none."""
    return next(iter(configured_fallbacks(specialist, request, ensemble)), "")


def configured_fallbacks(specialist: str, request: Request, ensemble: Ensemble) -> tuple[str, ...]:
    """Return the fallback of the request's intent, then that of the specialist, without those that the caller
    excluded."""
    intent = next((each.fallback for each in ensemble.intents if each.name == request.intent), None)
    names = dict.fromkeys((intent, ensemble.specialist(specialist).fallback))
    return tuple(name for name in names if name is not None and name not in (specialist, *request.exclude))


def _choose_forced(request: Request, intent: IntentConfig | None) -> RuleResult:
    """Choose the first forced specialist as primary and the second as second choice; others are never used."""
    primary, second, *rest = (*request.force, "") if len(request.force) == 1 else request.force
    notes = []
    if intent is not None and intent.specialist not in (None, primary):
        notes.append(f"intent {intent.name!r} belongs to {intent.specialist}; force_specialists takes precedence")
    if rest:
        notes.append(f"only {primary} and {second} of the forced specialists are asked")
    why = f"the caller asked for {primary}" + (f", else {second}" if second else "")
    return RuleResult(RoutingDecision("forced", "force_specialists", why, primary, second), tuple(notes))


def choose_by_classifier(
    request: Request, ensemble: Ensemble, distribution: Distribution, digest: str, topics: frozenset[str]
) -> RoutingDecision:
    """Reject the text or choose a specialist. A rejection ignores the caller's exclusions; the choice respects them.
    `topics` are words for what the specialists do."""
    exclude, thresholds = request.exclude, ensemble.classifier
    scores = ensemble_scores(distribution, ensemble)
    allowed = exclude_scores(scores, exclude)
    excluded = ", ".join(name for name, _ in scores if name in exclude)
    shown = _format_scores(scores)
    if excluded:
        shown = f"{shown}; without {excluded}: {_format_scores(allowed)}"
    is_unsure = dict(scores)[REJECT] > 1 - SURE or scores[0][1] < SURE
    if thresholds.path is not None and is_unsure and is_small_talk(request.text, topics):
        return choose_default(f"it is small talk; {shown}", request, ensemble, allowed, digest)
    top, reject = _top_specialist(scores), dict(scores)[REJECT]
    if top is None or reject >= thresholds.reject_threshold or reject >= dict(scores)[top]:
        why = f"the classifier rejects the text: {shown}"
        if thresholds.path is None:  # descriptions and examples cannot tell an unknown subject from an unsuitable one
            return choose_default(why, request, ensemble, allowed, digest)
        return RoutingDecision("unrouted", digest, why, distribution=allowed, classifier_digest=digest)

    def choice(primary: str, second: str, why: str) -> RoutingDecision:
        confidence = dict(allowed).get(primary, 0.0)
        return RoutingDecision("classifier", digest, why, primary, second, allowed, confidence, digest)

    best = _top_specialist(allowed)
    allowed_share = sum(share for name, share in scores if name != REJECT and name not in exclude)
    if best is not None and min(dict(allowed)[best], allowed_share) >= thresholds.min_confidence:
        return choice(best, _second_choice(best, allowed, request, ensemble), f"classifier: {shown}")
    fallback = configured_fallback(top, request, ensemble) if top in exclude else ""
    if fallback:
        why = f"fallback {fallback} is used because the caller excluded {top}; classifier: {shown}"
        return choice(fallback, configured_fallback(fallback, request, ensemble), why)
    why = f"the classifier's confidence is too low ({shown}; {thresholds.min_confidence:g} is required)"
    return choose_default(why, request, ensemble, allowed, digest)


def choose_default(
    why: str, request: Request, ensemble: Ensemble, scores: Scores = (), digest: str = ""
) -> RoutingDecision:
    """Choose the default specialist; the request is unrouted if there is none or the caller excluded it."""
    default = ensemble.default_name
    if default is None or default in request.exclude:
        return RoutingDecision("unrouted", digest, why, distribution=scores, classifier_digest=digest)
    decided_by, because = "default", f"default specialist {default} is used because {why}"
    if ensemble.default is None:
        decided_by, because = "only specialist", f"{default} is the only specialist; {why}"
    return RoutingDecision(
        "default",
        decided_by,
        because,
        default,
        _second_choice(default, scores, request, ensemble),
        scores,
        dict(scores).get(default, 0.0) if scores else None,
        digest,
    )


def choose_bare(unrouted: RoutingDecision, request: Request, ensemble: Ensemble) -> RoutingDecision:
    """Choose the bare model for a request that no specialist fits. The request stays unrouted if none is configured, if
    the caller excluded its specialist, or if the caller named adapters, which the bare model does without."""
    bare = ensemble.bare
    if bare is None or bare in request.exclude or request.adapters:
        return unrouted
    why = f"the bare model of {bare} answers, without system prompt and adapters, because {unrouted.why}"
    return replace(unrouted, source="bare", decided_by="bare", why=why, primary=bare)


def ensemble_scores(distribution: Distribution, ensemble: Ensemble) -> Scores:
    """Return the scores of specialists and `reject`, the highest first. Unknown labels count as `reject`."""
    known = set(ensemble.names)
    scores = {REJECT: 0.0}
    for name, probability in distribution.scores:
        if name in known:
            scores[name] = probability
        else:
            scores[REJECT] += probability
    return _sort_scores(scores)


def exclude_scores(scores: Scores, exclude: tuple[str, ...]) -> Scores:
    """Divide the shares of excluded specialists among the others, in proportion to the others' shares. `reject` keeps
    its share, or gets everything if no specialist is left."""
    rest = {name: share for name, share in scores if name != REJECT and name not in exclude}
    if len(rest) + 1 == len(scores):
        return scores
    if not rest:
        return ((REJECT, 1.0),)
    reject, weight = dict(scores)[REJECT], sum(rest.values())
    even = 1.0 / len(rest)
    shared = {name: (1.0 - reject) * (share / weight if weight > 0 else even) for name, share in rest.items()}
    return _sort_scores({REJECT: reject, **shared})


def _sort_scores(scores: Mapping[str, float]) -> Scores:
    return tuple(sorted(scores.items(), key=lambda score: (-score[1], score[0])))


def _top_specialist(scores: Scores) -> str | None:
    return next((name for name, _ in scores if name != REJECT), None)


def _second_choice(primary: str, scores: Scores, request: Request, ensemble: Ensemble) -> str:
    """Return the runner-up if it is likely enough, else the configured fallback."""
    for name, probability in scores:
        if name not in (primary, REJECT) and probability >= ensemble.classifier.second_threshold:
            return name
    return configured_fallback(primary, request, ensemble)


def _format_scores(scores: Scores) -> str:
    return ", ".join(f"{name} {probability:.2f}" for name, probability in scores[:_NUM_SHOWN])


def request_digest(request: Request) -> str:
    """Return the sha256, in hex, of every field that a decision depends on or records."""
    sampling = b"" if request.sampling is None else request.sampling.SerializeToString(deterministic=True)
    names = (request.intent, request.force, request.exclude, request.adapters)
    numbers = (request.max_experts, request.max_tokens, request.min_tokens, request.priority)
    parts = [request.text.encode(), repr((names, numbers)).encode(), sampling]
    if request.embed:
        parts.append(b"embed")
    if request.structure is not None:
        parts.append(request.structure.SerializeToString(deterministic=True))
    if request.tools:
        tools = wire.InferRequest(tools=request.tools, tool_choice=request.tool_choice)
        parts.append(tools.SerializeToString(deterministic=True))
    return digest_parts(parts).hex()
