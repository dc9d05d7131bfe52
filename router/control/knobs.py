"""Knobs set by operators and by escalation, and their effective values."""

from collections.abc import Mapping
from functools import partial

from admission import knobs as knob_rules
from admission.escalation import EscalationLadder, EscalationMove, EscalationView, KnobSteps, advance_ladder, find_stuck
from admission.knobs import ESCALATION, KNOBS, EffectiveKnobs, KnobError, KnobName
from admission.lanes import BY_CONFIGURATION
from octet.config.ensemble import EscalationConfig, IntentConfig
from octet.rpc.refusal import Refusal, invalid_field
from octet.v1 import operator_pb2 as wire
from router.control.audit import AuditWriter, ChangeAuthor, DocumentRevision, audit_row, conflict, unknown_name
from router.control.state import KNOB, LADDER, SharedState
from router.routing.dispatch_plan import IntentKnobs
from router.store.rows import DocumentBody

_OPERATOR = "operator"
_BOTTOM = EscalationLadder()


class EscalationController:
    """Advances the ladder of each intent at each specialist."""

    def __init__(self, state: SharedState, audit: AuditWriter) -> None:
        self._state = state
        self._audit = audit
        # by key: the stored ladder, and the ladder after later ticks (changes of timers alone are not stored)
        self._local: dict[str, tuple[EscalationLadder, EscalationLadder]] = {}
        self._stuck: dict[str, str] = {}  # by key: why an intent that overloads the specialist does not move

    def ladder(self, intent: str, specialist: str) -> EscalationLadder:
        key = _ladder_key(intent, specialist)
        return self._advanced(key, self._stored(key))

    def why_stuck(self, intent: str, specialist: str) -> str:
        """Return why an intent that keeps overloading the specialist does not move; empty if it does not overload."""
        return self._stuck.get(_ladder_key(intent, specialist), "")

    def ladders(self) -> dict[tuple[str, str], EscalationLadder]:
        """Return the ladders by intent and specialist, of configured ones that were ever escalated. Documents by an
        older version, which had one ladder for each specialist, are ignored."""
        intents, names = self._state.intents(), self._state.ensemble.names
        keys = (document.key.partition("/") for document in self._state.documents.of_kind(LADDER))
        places = sorted((intent, name) for intent, _, name in keys if intent in intents and name in names)
        return {place: self.ladder(*place) for place in places}

    @property
    def rules(self) -> EscalationConfig:
        return self._state.ensemble.escalation

    async def tick(self, now: float) -> None:
        ladders, operators = self.ladders(), operator_knobs(self._state)
        for specialist in self._state.ensemble.names:
            raised = {intent: ladder for (intent, name), ladder in ladders.items() if name == specialist}
            await self._tick(specialist, raised, operators, now)

    async def _tick(
        self,
        specialist: str,
        ladders: Mapping[str, EscalationLadder],
        operators: Mapping[KnobName, knob_rules.OperatorKnob],
        now: float,
    ) -> None:
        demand, intents = self._state.demand.view(specialist, now), self._state.intents()
        self._stuck = {key: why for key, why in self._stuck.items() if not key.endswith(f"/{specialist}")}
        moved_at = max((ladder.since for ladder in ladders.values()), default=0.0)
        reserved = 0
        for name in sorted({*demand, *ladders} & intents.keys()):
            base = knob_rules.knob_base(intents[name], specialist, operators)
            view = EscalationView(name, demand, base, self.rules, moved_at, reserved)
            move = await self._advance(specialist, view, now)
            reserved += move.returning if move is not None else 0

    async def _advance(self, specialist: str, view: EscalationView, now: float) -> EscalationMove | None:
        key = _ladder_key(view.intent, specialist)
        stored = self._stored(key)
        after, move = advance_ladder(self._advanced(key, stored), view, now)
        if move is None:
            self._local[key] = (stored, after)
            if stuck := find_stuck(after, view, now):
                self._stuck[key] = stuck
            return None

        def revise(body: DocumentBody | None) -> DocumentRevision | None:
            found = _BOTTOM if body is None else EscalationLadder.from_body(body)
            ladder, move = advance_ladder(self._advanced(key, found), view, now)
            if move is None:
                return None
            before, after = (_describe_steps(view, steps) for steps in (move.before, move.after))
            row = audit_row(now, ChangeAuthor(ESCALATION, move.why), move.what, specialist, before, after)
            return DocumentRevision(ladder.to_body(), row)

        await self._audit.act(LADDER, key, revise)
        return move

    def _stored(self, key: str) -> EscalationLadder:
        return self._state.documents.read(LADDER, key, EscalationLadder.from_body) or _BOTTOM

    def _advanced(self, key: str, stored: EscalationLadder) -> EscalationLadder:
        known, after = self._local.get(key, (None, stored))
        return after if known == stored else stored


def _ladder_key(intent: str, specialist: str) -> str:
    return f"{intent}/{specialist}"


def _describe_steps(view: EscalationView, steps: KnobSteps) -> str:
    threshold, floor = view.base.raised(steps, view.rules)
    return f"{view.intent}: shadow_threshold {threshold:g}, priority_floor {floor}"


def operator_knobs(state: SharedState) -> dict[KnobName, knob_rules.OperatorKnob]:
    keys = [document.key for document in state.documents.of_kind(KNOB)]
    found = (state.documents.read(KNOB, key, partial(_decode, key)) for key in keys)
    return dict(knob for knob in found if knob is not None)


class KnobController:
    def __init__(self, state: SharedState, audit: AuditWriter, escalation: EscalationController) -> None:
        self._state = state
        self._audit = audit
        self._escalation = escalation

    def overrides(self) -> dict[tuple[str, str], IntentKnobs]:
        operators, names = operator_knobs(self._state), self._state.ensemble.names
        touched = {name.intent for name in operators}
        escalated = [place for place, ladder in self._escalation.ladders().items() if ladder.level]
        found = {}
        for intent in self._state.intents().values():
            own = [name for owner, name in escalated if owner == intent.name]
            for name in names if intent.name in touched else own:
                knobs = self._effective(intent, name, operators)
                if (knobs.threshold, knobs.floor) != (intent.shadow_threshold, intent.priority_floor) or knobs.by:
                    setters = (_anonymize(knobs.by), _anonymize(knobs.floor_turn.by))
                    found[(intent.name, name)] = IntentKnobs(knobs.threshold, knobs.floor, *setters, knobs.is_escalated)
        return found

    def infos(self) -> list[wire.KnobInfo]:
        """List intents' knobs, per-specialist knobs that differ from these or that escalation can raise no further, and
        operators' knobs without effect."""
        operators = operator_knobs(self._state)
        found: list[wire.KnobInfo] = []
        for intent in self._state.intents().values():
            general = self._effective(intent, None, operators)
            infos = {knob: _info(KnobName(intent.name, None, knob), general, intent) for knob in KNOBS}
            found += infos.values()
            for specialist in self._state.ensemble.names:
                own = self._effective(intent, specialist, operators)
                for knob in KNOBS:
                    info = _info(KnobName(intent.name, specialist, knob), own, intent)
                    stuck = self._escalation.why_stuck(intent.name, specialist) if knob == "priority_floor" else ""
                    if stuck or (info.value, info.set_by) != (infos[knob].value, infos[knob].set_by):
                        info.why = "; ".join(each for each in (info.why, stuck) if each)
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
        knob = next((each for each in operator_knobs(self._state) if str(each) == name), None) or self._parse(name)

        def revise(body: DocumentBody | None) -> DocumentRevision:
            if body is None:
                raise conflict(f"{knob} is not set by an operator", "name")
            row = audit_row(now, author, "release_knob", str(knob), self._describe(knob, body), "released")
            return DocumentRevision(None, row)

        await self._audit.order(KNOB, str(knob), revise)
        return self.info(knob)

    def info(self, knob: KnobName) -> wire.KnobInfo:
        intent = self._intent(knob)
        info = _info(knob, self._effective(intent, knob.specialist, operator_knobs(self._state)), intent)
        if remark := self._why_without_effect(knob):
            info.why = f"{info.why} ({remark})" if info.why else remark
        return info

    def _intent(self, knob: KnobName) -> IntentConfig:
        return self._state.intents().get(knob.intent) or IntentConfig(knob.intent)

    def _why_without_effect(self, knob: KnobName) -> str:
        if knob.intent not in self._state.intents():
            return f"the intent {knob.intent} is no longer configured: the knob has no effect"
        if knob.specialist is not None and knob.specialist not in self._state.ensemble.names:
            return f"the specialist {knob.specialist} is no longer configured: the knob has no effect"
        return ""

    def _effective(
        self, intent: IntentConfig, specialist: str | None, operators: Mapping[KnobName, knob_rules.OperatorKnob]
    ) -> EffectiveKnobs:
        """Return the effective knobs of an intent at `specialist`. If `specialist` is None, escalation is ignored."""
        is_known = specialist in self._state.ensemble.names
        ladder = self._escalation.ladder(intent.name, specialist) if specialist is not None and is_known else _BOTTOM
        return knob_rules.effective_knobs(intent, specialist or "", operators, ladder, self._escalation.rules)

    def _parse(self, name: str) -> KnobName:
        try:
            knob = KnobName.parse(name)
        except KnobError as error:
            raise _refusal(error) from None
        specialists, intents = self._state.ensemble.names, self._state.intents()
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
