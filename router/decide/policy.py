"""One configuration made ready to decide. Same ask, same configuration, same opinion: same decision."""

from collections.abc import Iterator

from octet.config.digest import digest_of_ensemble
from octet.config.ensemble import Ensemble
from octet.identity import digest_of
from octet.v1 import inference_pb2 as wire
from router.classify.base import Distribution
from router.decide.choice import Choice, Reading, read
from router.decide.decision import Decision
from router.decide.tuning import adapters_for, max_tokens_for, sampling_for, task_of, wanted_adapters
from router.decide.weighing import by_default, weigh
from router.reception.ask import Ask
from router.rules.rule import ready

UNHEARD = "no rule matched and the classifier was unavailable"


class Policy:
    """Immutable: a new configuration is a new policy."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.digest = digest_of_ensemble(ensemble)
        self._rules = tuple(ready(rule) for rule in ensemble.rules)

    def decide(
        self, ask: Ask, opinion: Distribution | None, classifier_digest: str, notes: tuple[str, ...] = ()
    ) -> Decision:
        """Without an opinion the classifier was unavailable. Raises Refusal for names nobody knows."""
        return self.conclude(ask, self.read(ask), opinion, classifier_digest, notes)

    def read(self, ask: Ask) -> Reading:
        """Raises Refusal."""
        return read(ask, self.ensemble, self._rules)

    def conclude(
        self,
        ask: Ask,
        reading: Reading,
        opinion: Distribution | None,
        classifier_digest: str,
        notes: tuple[str, ...] = (),
    ) -> Decision:
        """The second half of `decide`, for whoever asks the classifier in between."""
        choice = reading.choice or self._heard(ask, opinion, classifier_digest)
        return self._decision(ask, choice, (*reading.notes, *notes))

    def _heard(self, ask: Ask, opinion: Distribution | None, classifier_digest: str) -> Choice:
        if opinion is None:
            return by_default(UNHEARD, ask, self.ensemble)
        return weigh(ask, self.ensemble, opinion, classifier_digest)

    def _decision(self, ask: Ask, choice: Choice, notes: tuple[str, ...]) -> Decision:
        task = task_of(ask, self.ensemble)
        specialist = self.ensemble.specialist(choice.primary) if choice.primary else None
        wanted, adapters = wanted_adapters(ask, specialist), adapters_for(ask, specialist)
        return Decision(
            source=choice.source,
            decided_by=choice.decided_by,
            why=choice.why,
            primary=choice.primary,
            second_choice=choice.second,
            distribution=choice.distribution,
            confidence=choice.confidence,
            intent=ask.intent,
            task=task.name,
            adapters=adapters,
            sampling=sampling_for(ask, task),
            max_tokens=max_tokens_for(ask, task, specialist),
            notes=(*notes, *_left_out(wanted, adapters)),
            request_digest=request_digest(ask),
            config_digest=self.digest,
            classifier_digest=choice.classifier_digest,
        )


def _left_out(wanted: tuple[str, ...], adapters: tuple[str, ...]) -> Iterator[str]:
    if len(adapters) < len(wanted):
        yield f"max_experts leaves room for {len(adapters)} of {len(wanted)} adapters"


def request_digest(ask: Ask) -> str:
    """sha256 of everything of a request that decides or is noted, hex."""
    sampling = b"" if ask.sampling is None else ask.sampling.SerializeToString(deterministic=True)
    names = (ask.intent, ask.force, ask.exclude, ask.adapters)
    numbers = (ask.max_experts, ask.max_tokens, ask.min_tokens, ask.priority)
    parts = [ask.text.encode(), repr((names, numbers)).encode(), sampling]
    if ask.structure is not None:
        parts.append(ask.structure.SerializeToString(deterministic=True))
    if ask.tools:
        offered = wire.InferRequest(tools=ask.tools, tool_choice=ask.tool_choice)
        parts.append(offered.SerializeToString(deterministic=True))
    return digest_of(parts).hex()
