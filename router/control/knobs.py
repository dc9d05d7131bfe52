"""Knobs set by operators and by escalation, and their effective values."""

from collections.abc import Mapping
from functools import partial

from admission import knobs as knob_rules
from admission.escalation import EscalationLadder, EscalationMove, advance_ladder, count_levels
from admission.knobs import ESCALATION, KNOBS, UNSPECIFIED_INTENT, EffectiveKnobs, KnobError, KnobName
from admission.lanes import BY_CONFIGURATION
from octet.config.ensemble import EscalationConfig, IntentConfig
from octet.rpc.refusal import Refusal, invalid_field
from octet.v1 import operator_pb2 as wire
from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row, conflict, unknown_name
from router.control.state import KNOB, LADDER, SharedState
from router.routing.dispatch_plan import IntentKnobs, configured_knobs
from router.store.rows import DocumentBody

_OPERATOR = "operator"
_BOTTOM = EscalationLadder()


class EscalationController:
    def __init__(self, state: SharedState, audit: AuditWriter) -> None:
        self._state = state
        self._audit = audit
        # by specialist: the stored ladder, and the ladder after later ticks (changes of timers alone are not stored)
        self._local: dict[str, tuple[EscalationLadder, EscalationLadder]] = {}

    def ladder(self, specialist: str) -> EscalationLadder:
        return self._advanced(specialist, self._stored(specialist))

    @property
    def rules(self) -> EscalationConfig:
        return self._state.ensemble.escalation

    async def tick(self, now: float) -> None:
        for specialist in self._state.ensemble.names:
            await self._advance(specialist, now)

    def top_level(self, specialist: str) -> int:
        """Return the highest escalation level that changes a knob of an intent routed to this specialist."""
        intents = self._state.ensemble.intents
        elsewhere = {intent.name for intent in intents if intent.specialist not in (None, specialist)}
        return max(
            count_levels(knobs.threshold, knobs.floor, self.rules)
            for name, knobs in configured_knobs(intents).items()
            if name not in elsewhere or name == UNSPECIFIED_INTENT
        )

    async def _advance(self, specialist: str, now: float) -> None:
        counts, top = self._state.demand.counts(specialist, now), self.top_level(specialist)

        def advance(stored: EscalationLadder) -> tuple[EscalationLadder, EscalationMove | None]:
            return advance_ladder(self._advanced(specialist, stored), counts, now, self.rules, top)

        stored = self._stored(specialist)
        after, move = advance(stored)
        if move is None:
            self._local[specialist] = (stored, after)
            return

        def revise(body: DocumentBody | None) -> DocumentRevision | None:
            ladder, move = advance(_BOTTOM if body is None else EscalationLadder.from_body(body))
            if move is None:
                return None
            author = ChangeAuthor(ESCALATION, move.why)
            row = audit_row(now, author, move.what, specialist, f"level {move.before}", f"level {move.after}")
            return DocumentRevision(ladder.to_body(), row)

        await self._audit.act(LADDER, specialist, revise)

    def _stored(self, specialist: str) -> EscalationLadder:
        return self._state.documents.read(LADDER, specialist, EscalationLadder.from_body) or _BOTTOM

    def _advanced(self, specialist: str, stored: EscalationLadder) -> EscalationLadder:
        known, after = self._local.get(specialist, (None, stored))
        return after if known == stored else stored


class KnobController:
    def __init__(self, state: SharedState, audit: AuditWriter, escalation: EscalationController) -> None:
        self._state = state
        self._audit = audit
        self._escalation = escalation

    def set_by_operators(self) -> dict[KnobName, knob_rules.OperatorKnob]:
        documents = self._state.documents
        keys = [document.key for document in documents.of_kind(KNOB)]
        found = (documents.read(KNOB, key, partial(_decode, key)) for key in keys)
        return dict(knob for knob in found if knob is not None)

    def intents(self) -> dict[str, IntentConfig]:
        intents = (IntentConfig(UNSPECIFIED_INTENT), *self._state.ensemble.intents)
        return {intent.name: intent for intent in intents}

    def overrides(self) -> dict[tuple[str, str], IntentKnobs]:
        operators, names = self.set_by_operators(), self._state.ensemble.names
        touched = {name.intent for name in operators}
        escalated = [name for name in names if self._escalation.ladder(name).level]
        found = {}
        for intent in self.intents().values():
            for name in names if intent.name in touched else escalated:
                knobs = self._effective(intent, name, operators)
                if (knobs.threshold, knobs.floor) != (intent.shadow_threshold, intent.priority_floor) or knobs.by:
                    setters = (_anonymize(knobs.by), _anonymize(knobs.floor_turn.by))
                    found[(intent.name, name)] = IntentKnobs(knobs.threshold, knobs.floor, *setters, knobs.is_escalated)
        return found

    def infos(self) -> list[wire.KnobInfo]:
        """List intents' knobs, per-specialist knobs that differ from these, and operators' knobs without effect."""
        operators = self.set_by_operators()
        found: list[wire.KnobInfo] = []
        for intent in self.intents().values():
            general = self._effective(intent, None, operators)
            infos = {knob: _info(KnobName(intent.name, None, knob), general, intent) for knob in KNOBS}
            found += infos.values()
            for specialist in self._state.ensemble.names:
                own = self._effective(intent, specialist, operators)
                for knob in KNOBS:
                    info = _info(KnobName(intent.name, specialist, knob), own, intent)
                    if (info.value, info.set_by) != (infos[knob].value, infos[knob].set_by):
                        found.append(info)
        return found + [self.info(knob) for knob in sorted(operators, key=str) if self._why_without_effect(knob)]

    async def set(self, name: str, value: float, author: ChangeAuthor, now: float) -> wire.KnobInfo:
        knob = self._parse(name)
        try:
            setting = knob_rules.OperatorKnob(knob_rules.check_knob_value(knob, value), author.who, author.why, now)
        except KnobError as error:
            raise _refusal(error) from None

        def revise(body: DocumentBody | None) -> DocumentRevision:
            row = audit_row(now, author, "set_knob", str(knob), self._describe(knob, body), f"{value:g}")
            return DocumentRevision(setting.to_body(), row)

        await self._audit.order(KNOB, str(knob), revise)
        return self.info(knob)

    async def release(self, name: str, author: ChangeAuthor, now: float) -> wire.KnobInfo:
        """Release a knob, even one that is no longer configured. Raises Refusal if it is unknown or not set."""
        knob = next((each for each in self.set_by_operators() if str(each) == name), None) or self._parse(name)

        def revise(body: DocumentBody | None) -> DocumentRevision:
            if body is None:
                raise conflict(f"{knob} is not set by an operator", "name")
            row = audit_row(now, author, "release_knob", str(knob), self._describe(knob, body), "released")
            return DocumentRevision(None, row)

        await self._audit.order(KNOB, str(knob), revise)
        return self.info(knob)

    def info(self, knob: KnobName) -> wire.KnobInfo:
        intent = self._intent(knob)
        info = _info(knob, self._effective(intent, knob.specialist, self.set_by_operators()), intent)
        if remark := self._why_without_effect(knob):
            info.why = f"{info.why} ({remark})" if info.why else remark
        return info

    def _intent(self, knob: KnobName) -> IntentConfig:
        return self.intents().get(knob.intent) or IntentConfig(knob.intent)

    def _why_without_effect(self, knob: KnobName) -> str:
        if knob.intent not in self.intents():
            return f"the intent {knob.intent} is no longer configured: the knob has no effect"
        if knob.specialist is not None and knob.specialist not in self._state.ensemble.names:
            return f"the specialist {knob.specialist} is no longer configured: the knob has no effect"
        return ""

    def _effective(
        self, intent: IntentConfig, specialist: str | None, operators: Mapping[KnobName, knob_rules.OperatorKnob]
    ) -> EffectiveKnobs:
        """Return the effective knobs of an intent at `specialist`. If `specialist` is None, escalation is ignored."""
        is_known = specialist in self._state.ensemble.names
        ladder = self._escalation.ladder(specialist) if specialist is not None and is_known else _BOTTOM
        return knob_rules.effective_knobs(intent, specialist or "", operators, ladder, self._escalation.rules)

    def _parse(self, name: str) -> KnobName:
        try:
            knob = KnobName.parse(name)
        except KnobError as error:
            raise _refusal(error) from None
        specialists, intents = self._state.ensemble.names, self.intents()
        if knob.intent in intents and knob.specialist in (None, *specialists):
            return knob
        own = [f"{knob.intent}/{specialist}" for specialist in specialists] if knob.specialist else []
        raise unknown_name("name", name, (f"{each}.{knob.knob}" for each in (*intents, *own)))

    def _describe(self, knob: KnobName, body: DocumentBody | None) -> str:
        if body is not None:
            setting = knob_rules.OperatorKnob.from_body(body)
            return f"{setting.value:g} by {setting.by}"
        return f"{getattr(self._intent(knob), knob.knob):g} as configured"


def _anonymize(by: str) -> str:
    return by if by in ("", ESCALATION) else _OPERATOR


def _info(name: KnobName, knobs: EffectiveKnobs, intent: IntentConfig) -> wire.KnobInfo:
    value, source = knobs.setting(name.knob)
    return wire.KnobInfo(
        name=str(name),
        value=value,
        configured=getattr(intent, name.knob),
        set_by=source.by or BY_CONFIGURATION,
        why=source.why,
        since_unix_ms=round(source.since * 1000),
    )


def _decode(key: str, body: DocumentBody) -> tuple[KnobName, knob_rules.OperatorKnob]:
    return KnobName.parse(key), knob_rules.OperatorKnob.from_body(body)


def _refusal(error: KnobError) -> Refusal:
    return invalid_field(error.field, error.limit, error.value)
