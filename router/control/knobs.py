"""The knobs that operators have set, and what all of them come to."""

from collections.abc import Iterator, Mapping
from functools import partial

from admission.escalation import Ladder, Rules
from admission.knobs import (
    ESCALATION,
    Configured,
    KnobError,
    KnobName,
    Knobs,
    SetKnob,
    checked,
    configured_of,
    effective,
    parse,
)
from admission.lanes import CONFIGURATION
from octet.config.ensemble import IntentConfig
from octet.rpc.refusal import Refusal, invalid
from octet.store import Body
from octet.v1 import operator_pb2 as wire
from router.between import standing as between
from router.control.change import Signed
from router.control.known import KNOB, Known
from router.control.ladders import Ladders
from router.control.pen import Pen, Revision
from router.control.refusals import conflict, unknown_name
from router.control.rows import row

_OPERATOR = "operator"
_NO_LADDER = Ladder()


class KnobBoard:
    def __init__(self, known: Known, pen: Pen, ladders: Ladders) -> None:
        self._known = known
        self._pen = pen
        self._ladders = ladders

    def operators(self) -> dict[KnobName, SetKnob]:
        """Also those of intents and specialists that are not there any more: they wait until they are again."""
        found = {}
        for document in list(self._known.shelf.of_kind(KNOB)):
            held = self._known.shelf.read(KNOB, document.key, partial(_named, document.key))
            if held is not None:
                found[held[0]] = held[1]
        return found

    def configured(self) -> dict[str, Configured]:
        base = between.configured_knobs(self._known.ensemble.intents)
        return {intent: Configured(knobs.threshold, knobs.floor) for intent, knobs in base.items()}

    def turned(self) -> dict[tuple[str, str], between.Knobs]:
        """Wherever they are not as configured."""
        operators, rules = self.operators(), self._ladders.rules()
        names = self._known.ensemble.names
        ladders = {name: self._ladders.ladder(name) for name in names}
        touched = {name.intent for name in operators}
        pressed = [name for name in names if ladders[name].level]
        found = {}
        for intent, configured in self.configured().items():
            for name in names if intent in touched else pressed:
                knobs = effective(intent, name, configured, operators, ladders[name], rules)
                if (knobs.threshold, knobs.floor) != (configured.threshold, configured.floor) or knobs.by:
                    found[(intent, name)] = between.Knobs(
                        knobs.threshold,
                        knobs.floor,
                        _for_callers(knobs.by),
                        _for_callers(knobs.floor_turn.by),
                        knobs.is_escalated,
                    )
        return found

    def infos(self) -> list[wire.KnobInfo]:
        """Both of every intent, and those of a single specialist where they differ; at the end those that operators
        have set for what is not configured any more."""
        operators, rules = self.operators(), self._ladders.rules()
        found = [
            info
            for intent, configured in self.configured().items()
            for info in self._of_intent(intent, configured, operators, rules)
        ]
        return found + [self.info(knob) for knob in sorted(operators, key=str) if self._gone(knob)]

    async def set(self, name: str, value: float, signed: Signed, now: float) -> wire.KnobInfo:
        """Raises Refusal."""
        knob = self._parsed(name)
        try:
            held = SetKnob(checked(knob, value), signed.who, signed.why, now)
        except KnobError as error:
            raise _refusal(error) from None

        def revise(body: Body | None) -> Revision:
            before = self._described(knob, body)
            return Revision(
                held.to_body(), row(now, signed.who, signed.why, "set_knob", str(knob), before, f"{value:g}")
            )

        await self._pen.order(KNOB, str(knob), revise)
        return self.info(knob)

    async def release(self, name: str, signed: Signed, now: float) -> wire.KnobInfo:
        """Also of what is not configured any more. Raises Refusal."""
        knob = self._held(name) or self._parsed(name)

        def revise(body: Body | None) -> Revision:
            if body is None:
                raise conflict(f"nobody has set {knob}", "name")
            before = self._described(knob, body)
            return Revision(None, row(now, signed.who, signed.why, "release_knob", str(knob), before, "released"))

        await self._pen.order(KNOB, str(knob), revise)
        return self.info(knob)

    def info(self, knob: KnobName) -> wire.KnobInfo:
        """As it is now, for its intent, or for its intent and specialist."""
        configured, rules = self._configured(knob.intent), self._ladders.rules()
        knobs = self._effective(knob.intent, knob.specialist, configured, self.operators(), rules)
        info = _info(knob, knobs, configured)
        if gone := self._gone(knob):
            info.why = f"{info.why} ({gone})" if info.why else gone
        return info

    def _configured(self, intent: str) -> Configured:
        """What a new intent would have, of one that there is not any more."""
        return self.configured().get(intent) or configured_of(IntentConfig(intent))

    def _gone(self, knob: KnobName) -> str:
        """Why it changes nothing; empty where it may."""
        if knob.intent not in self.configured():
            return f"there is no intent {knob.intent} any more: it changes nothing"
        if knob.specialist is not None and knob.specialist not in self._known.ensemble.names:
            return f"there is no specialist {knob.specialist} any more: it changes nothing"
        return ""

    def _held(self, name: str) -> KnobName | None:
        """One that an operator has set."""
        return next((knob for knob in self.operators() if str(knob) == name), None)

    def _of_intent(
        self, intent: str, configured: Configured, operators: Mapping[KnobName, SetKnob], rules: Rules
    ) -> Iterator[wire.KnobInfo]:
        general = self._effective(intent, None, configured, operators, rules)
        yield _info(KnobName(intent, None, "shadow_threshold"), general, configured)
        yield _info(KnobName(intent, None, "priority_floor"), general, configured)
        for specialist in self._known.ensemble.names:
            own = self._effective(intent, specialist, configured, operators, rules)
            if (own.threshold, own.threshold_turn.by) != (general.threshold, general.threshold_turn.by):
                yield _info(KnobName(intent, specialist, "shadow_threshold"), own, configured)
            if (own.floor, own.floor_turn.by) != (general.floor, general.floor_turn.by):
                yield _info(KnobName(intent, specialist, "priority_floor"), own, configured)

    def _effective(
        self,
        intent: str,
        specialist: str | None,
        configured: Configured,
        operators: Mapping[KnobName, SetKnob],
        rules: Rules,
    ) -> Knobs:
        """Without a specialist: before anybody's escalation."""
        is_known = specialist in self._known.ensemble.names
        ladder = self._ladders.ladder(specialist) if specialist is not None and is_known else _NO_LADDER
        return effective(intent, specialist or "", configured, operators, ladder, rules)

    def _parsed(self, name: str) -> KnobName:
        """Raises Refusal."""
        ensemble = self._known.ensemble
        intents = self.configured()
        try:
            knob = KnobName.parse(name)
        except KnobError as error:
            raise _refusal(error) from None
        try:
            return parse(name, intents, ensemble.names)
        except KnobError:
            whose = [*intents, *(f"{knob.intent}/{specialist}" for specialist in ensemble.names)]
            known = whose if knob.specialist else list(intents)
            raise unknown_name("name", name, (f"{each}.{knob.knob}" for each in known)) from None

    def _described(self, knob: KnobName, body: Body | None) -> str:
        if body is not None:
            held = SetKnob.from_body(body)
            return f"{held.value:g} by {held.by}"
        configured = self._configured(knob.intent)
        value = configured.threshold if knob.knob == "shadow_threshold" else configured.floor
        return f"{value:g} as configured"


def _for_callers(by: str) -> str:
    """Who an operator is, and why, is for operators."""
    return by if by in ("", ESCALATION) else _OPERATOR


def _info(name: KnobName, knobs: Knobs, configured: Configured) -> wire.KnobInfo:
    is_threshold = name.knob == "shadow_threshold"
    turn = knobs.threshold_turn if is_threshold else knobs.floor_turn
    return wire.KnobInfo(
        name=str(name),
        value=knobs.threshold if is_threshold else knobs.floor,
        configured=configured.threshold if is_threshold else configured.floor,
        set_by=turn.by or CONFIGURATION,
        why=turn.why,
        since_unix_ms=round(turn.since * 1000),
    )


def _named(key: str, body: Body) -> tuple[KnobName, SetKnob]:
    """Raises ValueError."""
    return KnobName.parse(key), SetKnob.from_body(body)


def _refusal(error: KnobError) -> Refusal:
    return invalid(error.field, error.limit, error.value)
