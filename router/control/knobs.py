"""Knobs set by operators and by escalation, and their effective values."""

from collections.abc import Mapping
from functools import partial

from admission import knobs as knob_rules
from admission.budgets import Counts
from admission.escalation import EscalationLadder, EscalationRules, advance_ladder, count_levels, load_escalation_rules
from admission.knobs import ESCALATION, UNSPECIFIED_INTENT, ConfiguredKnobs, EffectiveKnobs, KnobError, KnobName
from admission.lanes import BY_CONFIGURATION
from octet.config.ensemble import IntentConfig
from octet.rpc.refusal import Refusal, invalid_field
from octet.v1 import operator_pb2 as wire
from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row, conflict, unknown_name
from router.control.state import KNOB, LADDER, SharedState
from router.routing.dispatch_plan import IntentKnobs, configured_knobs
from router.store.rows import DocumentBody

_OPERATOR = "operator"
_BOTTOM = EscalationLadder()


class EscalationLadders:
    def __init__(self, state: SharedState, audit: AuditWriter) -> None:
        self._state = state
        self._audit = audit
        # the stored ladder, and the same as advanced here since: changes of timers alone are not stored
        self._local: dict[str, tuple[EscalationLadder, EscalationLadder]] = {}

    def ladder(self, specialist: str) -> EscalationLadder:
        return self._advanced(specialist, self._stored(specialist))

    def rules(self) -> EscalationRules:
        return load_escalation_rules(self._state.ensemble.escalation)

    async def tick(self, now: float) -> None:
        rules = self.rules()
        for specialist in self._state.ensemble.names:
            counts = self._state.demand.counts(specialist, now)
            await self._advance(specialist, counts, now, rules, self.top_level(specialist, rules))

    def top_level(self, specialist: str, rules: EscalationRules) -> int:
        """Return the highest level that changes anything for an intent routed to this specialist."""
        intents = self._state.ensemble.intents
        elsewhere = {intent.name for intent in intents if intent.specialist not in (None, specialist)}
        return max(
            count_levels(knobs.threshold, knobs.floor, rules)
            for name, knobs in configured_knobs(intents).items()
            if name not in elsewhere or name == UNSPECIFIED_INTENT
        )

    async def _advance(self, specialist: str, counts: Counts, now: float, rules: EscalationRules, top: int) -> None:
        stored = self._stored(specialist)
        after, move = advance_ladder(self._advanced(specialist, stored), counts, now, rules, top)
        if move is None:
            self._local[specialist] = (stored, after)
            return

        def revise(body: DocumentBody | None) -> DocumentRevision | None:
            current = _BOTTOM if body is None else EscalationLadder.from_body(body)
            ladder, move = advance_ladder(self._advanced(specialist, current), counts, now, rules, top)
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
    def __init__(self, state: SharedState, audit: AuditWriter, ladders: EscalationLadders) -> None:
        self._state = state
        self._audit = audit
        self._ladders = ladders

    def set_by_operators(self) -> dict[KnobName, knob_rules.OperatorKnob]:
        documents = self._state.documents
        keys = [document.key for document in documents.of_kind(KNOB)]
        found = (documents.read(KNOB, key, partial(_decode, key)) for key in keys)
        return dict(knob for knob in found if knob is not None)

    def configured(self) -> dict[str, ConfiguredKnobs]:
        base = configured_knobs(self._state.ensemble.intents)
        return {intent: ConfiguredKnobs(knobs.threshold, knobs.floor) for intent, knobs in base.items()}

    def overrides(self) -> dict[tuple[str, str], IntentKnobs]:
        operators, rules = self.set_by_operators(), self._ladders.rules()
        names = self._state.ensemble.names
        ladders = {name: self._ladders.ladder(name) for name in names}
        touched = {name.intent for name in operators}
        escalated = [name for name in names if ladders[name].level]
        found = {}
        for intent, configured in self.configured().items():
            for name in names if intent in touched else escalated:
                knobs = knob_rules.effective_knobs(intent, name, configured, operators, ladders[name], rules)
                if (knobs.threshold, knobs.floor) != (configured.threshold, configured.floor) or knobs.by:
                    setters = (_anonymize(knobs.by), _anonymize(knobs.floor_turn.by))
                    found[(intent, name)] = IntentKnobs(knobs.threshold, knobs.floor, *setters, knobs.is_escalated)
        return found

    def infos(self) -> list[wire.KnobInfo]:
        """List both knobs of every intent, those of specialists that differ, and those no longer configured."""
        operators, rules = self.set_by_operators(), self._ladders.rules()
        found: list[wire.KnobInfo] = []
        for intent, configured in self.configured().items():
            general = self._effective(intent, None, configured, operators, rules)
            found.append(_info(KnobName(intent, None, "shadow_threshold"), general, configured))
            found.append(_info(KnobName(intent, None, "priority_floor"), general, configured))
            for specialist in self._state.ensemble.names:
                own = self._effective(intent, specialist, configured, operators, rules)
                if (own.threshold, own.threshold_turn.by) != (general.threshold, general.threshold_turn.by):
                    found.append(_info(KnobName(intent, specialist, "shadow_threshold"), own, configured))
                if (own.floor, own.floor_turn.by) != (general.floor, general.floor_turn.by):
                    found.append(_info(KnobName(intent, specialist, "priority_floor"), own, configured))
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
        """Release a knob, even one that is no longer configured. Raises Refusal."""
        knob = next((each for each in self.set_by_operators() if str(each) == name), None) or self._parse(name)

        def revise(body: DocumentBody | None) -> DocumentRevision:
            if body is None:
                raise conflict(f"{knob} is not set by an operator", "name")
            row = audit_row(now, author, "release_knob", str(knob), self._describe(knob, body), "released")
            return DocumentRevision(None, row)

        await self._audit.order(KNOB, str(knob), revise)
        return self.info(knob)

    def info(self, knob: KnobName) -> wire.KnobInfo:
        configured, rules = self._configured(knob.intent), self._ladders.rules()
        knobs = self._effective(knob.intent, knob.specialist, configured, self.set_by_operators(), rules)
        info = _info(knob, knobs, configured)
        if remark := self._why_without_effect(knob):
            info.why = f"{info.why} ({remark})" if info.why else remark
        return info

    def _configured(self, intent: str) -> ConfiguredKnobs:
        return self.configured().get(intent) or knob_rules.configured_knobs(IntentConfig(intent))

    def _why_without_effect(self, knob: KnobName) -> str:
        if knob.intent not in self.configured():
            return f"the intent {knob.intent} is no longer configured: the knob has no effect"
        if knob.specialist is not None and knob.specialist not in self._state.ensemble.names:
            return f"the specialist {knob.specialist} is no longer configured: the knob has no effect"
        return ""

    def _effective(
        self,
        intent: str,
        specialist: str | None,
        configured: ConfiguredKnobs,
        operators: Mapping[KnobName, knob_rules.OperatorKnob],
        rules: EscalationRules,
    ) -> EffectiveKnobs:
        """Without a specialist, return the values before any escalation."""
        is_known = specialist in self._state.ensemble.names
        ladder = self._ladders.ladder(specialist) if specialist is not None and is_known else _BOTTOM
        return knob_rules.effective_knobs(intent, specialist or "", configured, operators, ladder, rules)

    def _parse(self, name: str) -> KnobName:
        specialists, intents = self._state.ensemble.names, self.configured()
        try:
            knob = KnobName.parse(name)
        except KnobError as error:
            raise _refusal(error) from None
        try:
            return knob_rules.parse_knob(name, intents, specialists)
        except KnobError:
            own = [f"{knob.intent}/{specialist}" for specialist in specialists] if knob.specialist else []
            known = [*intents, *own]
            raise unknown_name("name", name, (f"{each}.{knob.knob}" for each in known)) from None

    def _describe(self, knob: KnobName, body: DocumentBody | None) -> str:
        if body is not None:
            setting = knob_rules.OperatorKnob.from_body(body)
            return f"{setting.value:g} by {setting.by}"
        configured = self._configured(knob.intent)
        value = configured.threshold if knob.knob == "shadow_threshold" else configured.floor
        return f"{value:g} as configured"


def _anonymize(by: str) -> str:
    return by if by in ("", ESCALATION) else _OPERATOR


def _info(name: KnobName, knobs: EffectiveKnobs, configured: ConfiguredKnobs) -> wire.KnobInfo:
    if name.knob == "shadow_threshold":
        value, turn, default = knobs.threshold, knobs.threshold_turn, configured.threshold
    else:
        value, turn, default = knobs.floor, knobs.floor_turn, configured.floor
    info = wire.KnobInfo(name=str(name), value=value, configured=default, set_by=turn.by or BY_CONFIGURATION)
    info.why, info.since_unix_ms = turn.why, round(turn.since * 1000)
    return info


def _decode(key: str, body: DocumentBody) -> tuple[KnobName, knob_rules.OperatorKnob]:
    return KnobName.parse(key), knob_rules.OperatorKnob.from_body(body)


def _refusal(error: KnobError) -> Refusal:
    return invalid_field(error.field, error.limit, error.value)
