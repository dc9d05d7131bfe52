"""What is for operators: breakers, knobs, lanes, replicas, the audit, everybody's receipts."""

from collections.abc import Mapping
from typing import Any

from octet.telemetry.outcome import OUTCOMES
from octet.v1 import operator_pb2 as wire
from router.http.openapi.answers import ALWAYS, BODY, body, refusals, whole
from router.http.openapi.messages import schemas_of
from router.http.openapi.shapes import NUMBER, TEXT, Shape, asked, maybe, named, record, several, text, word
from router.operator.limits import MOST_AUDIT, MOST_RECEIPTS

_WHY, _WHO = "rehearsal", "ann"
_CHANGED = (*ALWAYS, *BODY, 404, 409, 422)
_MESSAGES = (
    *(wire.BreakerInfo, wire.KnobInfo, wire.LaneInfo, wire.ReplicaInfo, wire.AuditEntry, wire.Comparison),
    *(wire.ListBreakersResponse, wire.ListKnobsResponse, wire.ListLanesResponse, wire.ListReplicasResponse),
)
_SIGNATURE: Mapping[str, Shape] = {"who": text(256)}
_WHY_SHAPE: Mapping[str, Shape] = {"why": text(2048, 1)}


def paths() -> Mapping[str, Any]:
    return {
        **_looks(),
        "/v1/breakers/{specialist}/hold": _change(
            "holdBreaker", "open: it only shadows; closed: it serves; until released", "Hold", "BreakerInfo",
            {"hold": "open"}, "specialist",
        ),
        "/v1/breakers/{specialist}/release": _change(
            "releaseBreaker", "the breaker decides again", "Signature", "BreakerInfo", {}, "specialist"
        ),
        "/v1/knobs/set": _change(
            "setKnob", "for one intent, or one specialist of it", "KnobSetting", "KnobInfo",
            {"name": "unspecified.priority_floor", "value": 2},
        ),
        "/v1/knobs/release": _change(
            "releaseKnob", "back to the configuration", "KnobRelease", "KnobInfo",
            {"name": "unspecified.priority_floor"},
        ),
        "/v1/lanes/{specialist}/load": _change(
            "loadAdapter", "every replica loads it; it begins as a candidate", "LaneLoad", "LaneInfo",
            {"path": "adapters/newest", "name": "newest"}, "specialist",
        ),
        "/v1/lanes/{specialist}/promote": _change(
            "promoteLane", "the candidate serves from now on", "LanePromotion", "LaneInfo", {"name": "newest"},
            "specialist",
        ),
        "/v1/lanes/{specialist}/roll_back": _change(
            "rollBackLane", "the candidate goes, or the lane before serves again", "Signature", "LaneInfo", {},
            "specialist",
        ),
        "/v1/replicas/{replica}/drain": _change(
            "drainReplica", "it is sent nothing new", "Signature", "ReplicaInfo", {}, "replica"
        ),
        "/v1/replicas/{replica}/undrain": _change(
            "undrainReplica", "it is asked again", "Signature", "ReplicaInfo", {}, "replica"
        ),
    }  # fmt: skip


def _looks() -> Mapping[str, Any]:
    specialist = _given("specialist", TEXT)
    receipts = (
        _given("limit", _number(MOST_RECEIPTS)),
        specialist,
        _given("outcome", word(*OUTCOMES)),
        _given("before", _number(2**53), "Unix milliseconds: only older ones"),
        _given("tenant", TEXT, "default: everybody's"),
    )
    tenant = _given("tenant", TEXT, "whose request it was; default: the key's own tenant's")
    return {
        "/v1/breakers": _look("listBreakers", "what decides who serves", named("ListBreakersResponse")),
        "/v1/knobs": _look("listKnobs", "as they are in force", named("ListKnobsResponse")),
        "/v1/lanes": _look("listLanes", "newest first", named("ListLanesResponse"), specialist, wrong=(400, 404)),
        "/v1/replicas": _look("listReplicas", "as they were last seen", named("ListReplicasResponse")),
        "/v1/audit": _look(
            "listAudit",
            "who changed what, when and why, newest first",
            record({"entries": several(named("AuditEntry"))}),
            _given("most", _number(MOST_AUDIT)),
            _given("subject", TEXT, "a specialist, knob or replica, or `store`"),
            wrong=(400,),
        ),
        "/v1/receipts": _look(
            "listReceipts",
            "newest first, whosever they are",
            record({"receipts": several(named("Receipt"))}),
            *receipts,
            wrong=(400, 404),
        ),
        "/v1/receipts/{request_id}/story": _look(
            "explain",
            "everything that is known of one request",
            named("Story"),
            _placed("request_id"),
            tenant,
            wrong=(400, 404),
        ),
        "/v1/story": _look(
            "explainAny",
            "the same, of an id that is no part of a path, as one with a slash",
            named("Story"),
            {**_given("request_id", TEXT), "required": True},
            tenant,
            wrong=(400, 404),
        ),
    }


def schemas() -> Mapping[str, Shape]:
    messages = schemas_of(*(each.DESCRIPTOR for each in _MESSAGES))
    return {
        **messages,
        "Story": record(
            {
                "receipt": named("Receipt"),
                "comparison": maybe(named("Comparison")),
                "judged": word("passed", "failed", ""),
                "changes": several(named("AuditEntry")),
            }
        ),
        "Signature": _body({}),
        "Hold": _body({"hold": word("open", "closed")}),
        "KnobSetting": _body({"name": text(256, 1), "value": NUMBER}),
        "KnobRelease": _body({"name": text(256, 1)}),
        "LaneLoad": _body({"path": text(1024, 1)}, {"name": text(40)}),
        "LanePromotion": _body({}, {"name": text(40)}),
    }


def _body(needed: Mapping[str, Shape], further: Mapping[str, Shape] | None = None) -> Shape:
    return asked({**needed, **_WHY_SHAPE}, {**(further or {}), **_SIGNATURE}, more=False)


def _look(name: str, summary: str, shape: Shape, *given: Mapping[str, Any], wrong: tuple[int, ...] = ()) -> Any:
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "parameters": list(given),
            "responses": whole(shape, "as it is now") | refusals((*ALWAYS, *wrong)),
        }
    }


def _change(name: str, summary: str, schema: str, answer: str, example: Mapping[str, Any], placed: str = "") -> Any:
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "parameters": [_placed(placed)] if placed else [],
            "requestBody": body(schema, {**example, "why": _WHY, "who": _WHO}),
            "responses": whole(named(answer), "written down, and as it is then") | refusals(_CHANGED),
        }
    }


def _placed(name: str) -> Mapping[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": TEXT}


def _given(name: str, schema: Shape, description: str = "") -> Mapping[str, Any]:
    about = {"description": description} if description else {}
    return {"name": name, "in": "query", "schema": schema, **about}


def _number(most: int) -> Shape:
    return {"type": "integer", "minimum": 0, "maximum": most}
