"""The OpenAPI document served at /openapi.json. Its schemas come from msgspec structs, protobuf messages and
dataclasses, with the limits of the request validator."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from octet.client.receipts import Receipt
from octet.client.records import Validation
from octet.telemetry.outcomes import OUTCOMES
from octet.v1 import operator_pb2, overview_pb2
from router.api.http import anthropic, embeddings, errors, infer, openai_requests, openai_responses, responses
from router.api.http.common_fields import MODEL_PATTERN
from router.api.http.fields import RANGE_KEY
from router.api.http.operator_routes import OPERATOR_CHANGES
from router.api.http.responses_answers import ResponseObject
from router.api.http.responses_requests import ResponsesRequest
from router.api.operations import MAX_AUDIT, MAX_RECEIPTS

JsonSchema = Mapping[str, Any]
_DESCRIPTION = "One endpoint over many specialist models: OpenAI's and Anthropic's dialects, and Octet's own routes."
_KEY_ERRORS = (401, 403, 405, 429, 500, 503)  # errors of every route that requires a key
_OPEN_ERRORS = (405, 500)
_BODY_ERRORS = (400, 408, 413, 415)
_ANSWER_ERRORS = (400, 404, 408, 415, 422, 499, 504)
_CHANGE_ERRORS = (*_BODY_ERRORS, 404, 409, 422)
_ERROR_DESCRIPTIONS: Mapping[int, str] = {
    400: "a field is invalid or not supported, the prompt is too long, or the body is not a JSON object",
    401: "the key is missing or unknown",
    403: "the key may not do this",
    404: "no such model, adapter, receipt, response, job, route, specialist, knob or replica",
    405: "the path does not allow this method; `allow` lists the methods it allows",
    408: "the body did not arrive in time",
    409: "the idempotency key belongs to another request, or another change was made at the same time",
    413: "the body is too large",
    415: "the content type is not application/json, or the body is compressed",
    422: "no specialist should answer this request, or the state does not allow the change",
    429: "no capacity, or the key has reached a limit; retry-after is set if it could be estimated",
    499: "the request was cancelled",
    500: "the engine or the router failed",
    503: "no replica can answer now",
    504: "the deadline passed; the answer up to then is included",
}
_PREFIX = "#/components/schemas/"
_STRUCTS = (
    *(embeddings.EmbeddingRequest, embeddings.EmbeddingList),
    *(openai_requests.ChatRequest, openai_requests.CompletionRequest, openai_responses.ChatCompletion),
    *(openai_responses.ModelList, openai_responses.TextCompletion, anthropic.AnthropicModelList),
    *(ResponsesRequest, ResponseObject, responses.ResponseItemList, responses.DeletedResponse),
    *(anthropic.MessageRequest, anthropic.CountRequest, anthropic.AnthropicMessage, anthropic.InputTokenCount),
    *(infer.InferRequest, infer.JobRequest, infer.InferAnswer, infer.InferError, infer.JobBody),
    infer.Submission,
    *(errors.ErrorEnvelope, errors.AnthropicErrorEnvelope),
    *dict.fromkeys(change.body for change in OPERATOR_CHANGES.values()),
)
_MESSAGES = (
    *(operator_pb2.BreakerInfo, operator_pb2.KnobInfo, operator_pb2.LaneInfo, operator_pb2.ReplicaInfo),
    *(operator_pb2.ListBreakersResponse, operator_pb2.ListKnobsResponse, operator_pb2.ListLanesResponse),
    *(operator_pb2.ListReplicasResponse, operator_pb2.AuditEntry, operator_pb2.Comparison),
    *(operator_pb2.GetSloResponse, overview_pb2.Overview, overview_pb2.History),
)
_NAMES: Mapping[str, str] = {  # published names of structs, where they differ from the class names
    **{"ErrorEnvelope": "Error", "AnthropicErrorEnvelope": "AnthropicError", "BreakerHold": "Hold"},
    **{"InferAnswer": "Answer", "InferError": "PartialError", "InferMessage": "Turn", "InferTool": "Tool"},
    **{"InferToolCall": "ToolCall", "ChosenTokenLogprob": "TokenLogprobs", "JobBody": "Job"},
    **{"ModelList": "Models", "ModelObject": "Model", "OpenAIMessage": "ChatMessage", "OpenAIUsage": "Usage"},
    "AnthropicModelList": "AnthropicModels",
    **{"ResponseObject": "Response", "StructureBody": "Structure", "TextCompletion": "Completion"},
}
_REQUIRED: Mapping[str, list[str]] = {  # required fields that the operator API checks and the structs do not
    **{"Signature": ["why"], "Hold": ["hold", "why"], "LaneLoad": ["path", "why"], "LanePromotion": ["why"]},
    **{"KnobSetting": ["name", "value", "why"], "KnobRelease": ["name", "why"]},
}
_STRING: JsonSchema = {"type": "string"}
_PLAIN: Mapping[Any, JsonSchema] = {
    str: _STRING,
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    NoneType: {"type": "null"},
}
_NUMBERS = (FieldDescriptor.TYPE_DOUBLE, FieldDescriptor.TYPE_FLOAT)
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_CASES: Mapping[str, list[JsonSchema]] = {  # how the fields of a struct depend on its field `type`
    "AnthropicToolChoice": [
        {"properties": {"type": {"const": "tool"}, "name": _STRING}, "required": ["name"]},
        {"properties": {"type": {"enum": ["auto", "any", "none"]}, "name": _PLAIN[NoneType]}},
    ],
    "ResponseFormat": [
        {
            "properties": {"type": {"const": "json_schema"}, "json_schema": {"type": "object"}},
            "required": ["json_schema"],
        },
        {"properties": {"type": {"enum": ["text", "json_object"]}}},
    ],
    "TextFormat": [
        {"properties": {"type": {"const": "json_schema"}, "schema": {"type": "object"}}, "required": ["schema"]},
        {"properties": {"type": {"enum": ["text", "json_object"]}}},
    ],
}
_COUNT: JsonSchema = {"type": "integer", "minimum": 0}
_DIGITS: JsonSchema = {"type": "string", "pattern": "^[0-9]{1,18}$"}
_SECONDS: JsonSchema = {"type": "string", "pattern": "^[0-9]{1,8}([.][0-9]{1,6})?$"}
_MODEL: JsonSchema = {"type": "string", "pattern": f"^{MODEL_PATTERN}$"}
_REQUEST_ID = {"x-request-id": {"schema": _STRING, "description": "the id of the request and its receipt"}}
_SLO = {"octet-slo": {"schema": _STRING, "description": "the specialist's SLOs as structured fields (RFC 9651)"}}
_RETRY = {
    "retry-after": {"schema": _COUNT, "description": "seconds, rounded up"},
    "retry-after-ms": {"schema": _COUNT, "description": "milliseconds"},
}
_TICKET: JsonSchema = {"schema": _STRING, "description": "a place that is kept; send it with the retry"}
_TICKETS = tuple(
    {"name": name, "in": "header", "required": False, "schema": schema, "description": about}
    for name, schema, about in (
        (errors.TICKET_HEADER, _STRING, "the ticket of an earlier refusal of the same request"),
        (
            errors.WAIT_HEADER,
            _DIGITS,
            "asks for a ticket, and says for how many milliseconds a place may be waited for",
        ),
    )
)
_QUESTION = "undefined reference to vtable"
_MESSAGE_LIST = [{"role": "user", "content": _QUESTION}]
_CHAT = {"model": "octet", "messages": _MESSAGE_LIST, "max_tokens": 64}
_INFER = {"prompt": _QUESTION, "max_tokens": 64}
_KNOB = "unspecified.priority_floor"
_CALLS = operator_pb2.DESCRIPTOR.services_by_name["Operator"].methods
_HOLD = "holds the breaker until its release: open (only shadow traffic) or closed (the specialist serves)"
_LOAD = "every replica loads the adapter, which becomes a candidate"
_REFRESH = "replicas of other weights start beside the running ones and become a candidate"
_CHANGES: Mapping[str, tuple[str, Mapping[str, Any]]] = {  # summary, example
    "hold_breaker": (_HOLD, {"hold": "open"}),
    "release_breaker": ("the breaker decides again", {}),
    "relearn_floor": ("forgets the learned floors; new ones are learned from the next judged answers", {}),
    "set_knob": ("sets a knob of an intent, for all specialists or for one", {"name": _KNOB, "value": 2}),
    "release_knob": ("the knob returns to its configured value", {"name": _KNOB}),
    "load_adapter": (_LOAD, {"path": "adapters/newest", "name": "newest"}),
    "refresh": (_REFRESH, {"model": "/models/newest"}),
    "promote": ("the candidate serves", {"name": "newest"}),
    "roll_back": ("drops the candidate, or restores the previous lane", {}),
    "drain": ("the replica gets no new requests", {}),
    "undrain": ("the replica gets requests again", {}),
}


def openapi_document(version: str) -> Mapping[str, Any]:
    paths = _Paths()
    _add_inference(paths)
    _add_responses(paths)
    _add_jobs(paths)
    _add_router(paths)
    _add_operator(paths)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octet", "version": version, "description": _DESCRIPTION},
        "security": [{"bearer": []}, {"x-api-key": []}, {}],
        "paths": paths.found,
        "components": {
            "schemas": _component_schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


class _Paths:
    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}

    def add(
        self,
        route: str,
        name: str,
        summary: str,
        responses: Mapping[str, Any],
        *parameters: JsonSchema,
        errors: Iterable[int] = (),
        is_open: bool = False,
        body: tuple[str, Mapping[str, Any]] | None = None,
        envelope: str = "Error",
    ) -> None:
        """Add a route; an open route requires no key. `body` holds the name of a schema, and an example."""
        method, path = route.split()
        in_path = {"in": "path", "required": True}
        names = re.findall(r"{(\w+)}", path)
        placed = [{"name": each, **in_path, "schema": _MODEL if each == "model" else _STRING} for each in names]
        refused = _errors((*(_OPEN_ERRORS if is_open else _KEY_ERRORS), *errors), envelope)
        operation: dict[str, Any] = {"operationId": name, "summary": summary, "responses": {**refused, **responses}}
        operation["parameters"] = [*placed, *parameters]
        if is_open:
            operation["security"] = []
        if body is not None:
            content = {"application/json": {"schema": _ref(body[0]), "example": body[1]}}
            operation["requestBody"] = {"required": True, "content": content}
        self.found.setdefault(path, {})[method.lower()] = operation


def _errors(statuses: Iterable[int], envelope: str) -> dict[str, Any]:
    found = {}
    for status in sorted(statuses):
        found[str(status)] = _response(_ERROR_DESCRIPTIONS[status], {"application/json": {"schema": _ref(envelope)}})
        if status in (429, 503):
            found[str(status)]["headers"] = _REQUEST_ID | _RETRY
        if status == 429:
            found[str(status)]["headers"] |= {errors.TICKET_HEADER: _TICKET}
    return found


def _add_inference(paths: _Paths) -> None:
    def answer(path: str, name: str, body: str, example: Any, schema: str, envelope: str = "Error") -> None:
        """Add an inference route. Its event stream has no schema: OpenAPI 3.1 does not define schemas of streams."""
        found = _response("the answer", {"application/json": {"schema": _ref(schema)}, "text/event-stream": {}})
        responses = {"200": {**found, "headers": _REQUEST_ID | _SLO}}
        summary, what = "an answer, whole or as server-sent events", (body, example)
        paths.add(
            *(f"POST {path}", name, summary),
            responses,
            *_TICKETS,
            errors=_ANSWER_ERRORS,
            body=what,
            envelope=envelope,
        )

    prompt = {"model": "octet", "prompt": _QUESTION, "max_tokens": 64}
    answer("/v1/chat/completions", "chat", "ChatRequest", _CHAT, "ChatCompletion")
    answer("/v1/completions", "complete", "CompletionRequest", prompt, "Completion")
    paths.add(
        *("POST /v1/embeddings", "embed"),
        "the embeddings of texts, by a specialist that computes them",
        _json("EmbeddingList"),
        errors=_ANSWER_ERRORS,
        body=("EmbeddingRequest", {"model": "octet", "input": _QUESTION}),
    )
    asked = {"model": "octet", "input": _QUESTION, "max_output_tokens": 64}
    answer("/v1/responses", "createResponse", "ResponsesRequest", asked, "Response")
    answer("/v1/messages", "createMessage", "MessageRequest", _CHAT, "AnthropicMessage", "AnthropicError")
    answer("/v1/infer", "infer", "InferRequest", _INFER, "Answer", "PartialError")
    operation = paths.found["/v1/infer"]["post"]
    operation["responses"] |= _json("Submission", "preferred with respond-async: stored as a job, and will run", 202)
    operation["parameters"].append({"name": "prefer", "in": "header", "schema": {"type": "string"}})
    paths.add(
        *("POST /v1/messages/count_tokens", "countTokens"),
        "the number of prompt tokens for the specialist that would answer now",
        _json("InputTokenCount"),
        errors=_ANSWER_ERRORS,
        body=("CountRequest", {"model": "octet", "messages": _MESSAGE_LIST}),
        envelope="AnthropicError",
    )


def _add_responses(paths: _Paths) -> None:
    one = "/v1/responses/{response_id}"
    order = _query("order", {"type": "string", "enum": ["asc", "desc"]})
    page = (_query("limit", _DIGITS), order, _query("after", _STRING, "only items after this one"))
    stream = _query("stream", {"type": "string", "enum": ["false"]})
    listed, deleted = _json("ResponseItemList"), _json("DeletedResponse")
    add = paths.add
    add(f"GET {one}", "getResponse", "a stored response", _json("Response"), stream, errors=(400, 404))
    add(f"DELETE {one}", "deleteResponse", "deletes a stored response", deleted, errors=(404,))
    add(f"GET {one}/input_items", "listInput", "the input of a stored response", listed, *page, errors=(400, 404))
    add(f"POST {one}/cancel", "cancelResponse", "always refused: says how to cancel", {}, errors=(400,))


def _add_jobs(paths: _Paths) -> None:
    key = {"name": "idempotency-key", "in": "header", "schema": {"type": "string", "maxLength": 128}}
    last_event = {"name": "last-event-id", "in": "header", "schema": _DIGITS}
    tenant = _query("tenant", _STRING, "another tenant, for an operator's key")
    submitted = _json("Job", "submitted before with the same key") | _json("Job", "stored, and will run", 202)
    ended = {"204": {"description": "the job has ended, and the caller has its last event", "headers": _REQUEST_ID}}
    listed = _json(_object_schema({"jobs": _make_array(_ref("Job"))}))
    page = _query("limit", _DIGITS), _query("before", _STRING)
    receipt = "the receipt of a request, by its id or the id of its answer"
    events = "the job's events after the given number, and later events as they happen"
    add, job = paths.add, "/v1/jobs/{job_id}"
    submit = "stores a background job"
    add("POST /v1/jobs", "submitJob", submit, submitted, key, errors=_CHANGE_ERRORS, body=("JobRequest", _INFER))
    add("GET /v1/jobs", "listJobs", "the caller's jobs, newest first", listed, *page, tenant, errors=(400, 404))
    add(f"GET {job}", "getJob", "one job", _json("Job"), tenant, errors=(404,))
    add(f"POST {job}/cancel", "cancelJob", "cancels one job", _json("Job"), tenant, errors=(404,))
    watched = _events("until the job ends") | ended
    add(f"GET {job}/events", "watchJob", events, watched, _query("after", _DIGITS), last_event, errors=(400, 404))
    add("GET /v1/receipts/{request_id}", "getReceipt", receipt, _json("Receipt"), tenant, errors=(404,))


def _add_router(paths: _Paths) -> None:

    def status(*words: str) -> JsonSchema:
        return {"type": "string", "enum": list(words)}

    unready = _object_schema({"status": status("starting", "draining")}, {"waiting_for": _make_array(_STRING)})
    ready = _json(_object_schema({"status": status("ready")})) | _json(unready, "starting or draining", 503)
    healthy = _json(_object_schema({"status": status("ok")}))
    kinds = ("text/html", "text/css", "text/javascript")
    current = {"description": "the browser's copy is current"}
    page = {"200": {"description": "the file", "content": {kind: {} for kind in kinds}}, "304": current}
    file = page | {"307": {"description": "redirects an empty name to the page"}}
    slo, specialist = "the recent SLOs of every specialist, against their targets", "only this specialist"
    add = paths.add
    either = "objects as Anthropic's clients expect them if the header anthropic-version is set"
    page_of_models = _query("limit", _DIGITS), _query("after_id", _MODEL), _query("before_id", _MODEL)
    listed, one = ({"oneOf": [_ref(name), _ref(f"Anthropic{name}")]} for name in ("Models", "Model"))
    add("GET /v1/models", "listModels", f"all models; {either}", _json(listed), *page_of_models, errors=(400,))
    add("GET /v1/models/{model}", "getModel", f"one model; {either}", _json(one), errors=(404,))
    add("GET /v1/slo", "getSlo", slo, _json("GetSloResponse"), _query("specialist", _STRING, specialist), errors=(404,))
    add("GET /healthz", "health", "whether the process is alive", healthy, is_open=True)
    add("GET /readyz", "readiness", "whether every specialist has had a warm replica", ready, is_open=True)
    add("GET /ping", "ping", "the same as /healthz", healthy, is_open=True)
    add("GET /health", "vllmHealth", "the same as /readyz", ready, is_open=True)
    add("GET /version", "version", "Octet's version", _json(_object_schema({"version": _STRING})), is_open=True)
    add("GET /openapi.json", "openapi", "this document", _json({"type": "object"}), is_open=True)
    add("GET /", "root", "leads to the dashboard", {"307": {"description": "the dashboard"}}, is_open=True)
    add("GET /dashboard", "dashboard", "the operators' page, without data", page, is_open=True)
    add("GET /dashboard/{file}", "dashboardFile", "a file of the page", file, errors=(404,), is_open=True)


def _add_operator(paths: _Paths) -> None:
    metrics = {
        "200": _response("for Prometheus", {"text/plain": {"schema": _STRING}, "application/openmetrics-text": {}})
    }
    specialist = _query("specialist", _STRING)
    tenant = _query("tenant", _STRING, "the request's tenant; default: the key's own")
    subject = _query("subject", _STRING, "a specialist, knob or replica, or `store`")
    older = _query("before", _up_to(2**53), "Unix milliseconds; only older receipts")
    outcome = _query("outcome", {"type": "string", "enum": list(OUTCOMES)})
    any_tenant = _query("tenant", _STRING, "default: all tenants")
    page = (_query("limit", _up_to(MAX_RECEIPTS)), specialist, outcome, older, any_tenant)
    entries = _json(_object_schema({"entries": _make_array(_ref("AuditEntry"))}))
    found = _json(_object_schema({"receipts": _make_array(_ref("Receipt"))}))
    request_id = {**_query("request_id", _STRING), "required": True}
    overview = "current findings and the state of every specialist"
    events = "the history, then an overview for every change, at most twice a second"
    history = "the last hour of every specialist, as this router remembers it"
    changes = "the author, subject, time and reason of every change, newest first"
    any_id = "the timeline of a request whose id cannot be a part of a path"
    story, bad = "/v1/receipts/{request_id}/story", (400, 404)
    add = paths.add
    add("GET /v1/breakers", "listBreakers", "all correctness breakers", _json("ListBreakersResponse"))
    add("GET /v1/knobs", "listKnobs", "all knobs in force", _json("ListKnobsResponse"))
    add("GET /v1/lanes", "listLanes", "all lanes, newest first", _json("ListLanesResponse"), specialist, errors=bad)
    add("GET /v1/replicas", "listReplicas", "all replicas as last seen", _json("ListReplicasResponse"))
    add("GET /v1/audit", "listAudit", changes, entries, _query("most", _up_to(MAX_AUDIT)), subject, errors=(400,))
    add("GET /v1/receipts", "listReceipts", "receipts, newest first", found, *page, errors=bad)
    add(f"GET {story}", "explain", "the timeline of one request", _json("Story"), tenant, errors=bad)
    add("GET /v1/story", "explainAny", any_id, _json("Story"), request_id, tenant, errors=bad)
    add("GET /v1/overview", "getOverview", overview, _json("Overview"))
    add("GET /v1/overview/events", "watchOverview", events, _events("until the caller disconnects"))
    add("GET /v1/history", "getHistory", history, _json("History"), _query("last_seconds", _SECONDS), errors=(400,))
    add("GET /metrics", "metrics", "the router's metrics", metrics)
    add("GET /metrics/replicas", "replicaMetrics", "the metrics of all replicas, by name", metrics)
    for name, (summary, example) in _CHANGES.items():
        change = OPERATOR_CHANGES[name]
        call = next(call for call in _CALLS if call.input_type is change.message.DESCRIPTOR)
        changed = _json(call.output_type.name, "the state after the change, which is in the audit log")
        signed = {**example, "why": "rehearsal", "who": "ann"}
        body = (_NAMES.get(change.body.__name__, change.body.__name__), signed)
        operation = call.name[0].lower() + call.name[1:]
        add(f"POST {change.path}", operation, summary, changed, errors=_CHANGE_ERRORS, body=body)


def _json(schema: str | JsonSchema, description: str = "success", status: int = 200) -> dict[str, Any]:
    found = _ref(schema) if isinstance(schema, str) else schema
    return {str(status): _response(description, {"application/json": {"schema": found}})}


def _events(description: str) -> dict[str, Any]:
    return {"200": _response(description, {"text/event-stream": {}})}


def _response(description: str, content: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": description, "headers": _REQUEST_ID, "content": content}


def _query(name: str, schema: JsonSchema, description: str = "") -> Mapping[str, Any]:
    return {"name": name, "in": "query", "schema": schema, **({"description": description} if description else {})}


def _up_to(most: int) -> JsonSchema:
    return {"type": "integer", "minimum": 0, "maximum": most}


def _ref(name: str) -> JsonSchema:
    return {"$ref": f"{_PREFIX}{name}"}


def _make_array(schema: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": schema}


def _object_schema(required: Mapping[str, JsonSchema], optional: Mapping[str, JsonSchema] | None = None) -> JsonSchema:
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _nullable(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}]}


def _component_schemas() -> dict[str, JsonSchema]:
    structs = _struct_schemas()
    for name, required in _REQUIRED.items():
        structs[name]["required"] = required
        _remove_null(structs[name]["properties"], required)
    for name, cases in _CASES.items():
        structs[name]["anyOf"] = cases
    structs["Structure"] |= {"minProperties": 1, "maxProperties": 1}
    _remove_null(structs["Structure"]["properties"], list(structs["Structure"]["properties"]))
    story = {
        "receipt": _ref("Receipt"),
        "comparison": _nullable(_ref("Comparison")),
        "judged": {"type": "string", "enum": ["passed", "failed", "skipped", ""]},
        "judged_kind": {"type": "string", "enum": ["verifier", "cut", "degenerate", ""]},
        "judged_why": _STRING,
        "changes": _make_array(_ref("AuditEntry")),
        "stages": _ref("Stage"),
    }
    times = {name: {"type": "number", "minimum": 0} for name in ("start", "end")}
    stage = {"name": _STRING, **times, "has_failed": {"type": "boolean"}, "parts": _make_array(_ref("Stage"))}
    own = {"Receipt": _type_schema(Receipt), "Validation": _type_schema(Validation), "Story": _object_schema(story)}
    own["Stage"] = _object_schema(stage)
    return {**_message_schemas(each.DESCRIPTOR for each in _MESSAGES), **structs, **own}


def _struct_schemas() -> dict[str, Any]:
    _, components = msgspec.json.schema_components(_STRUCTS, ref_template=f"{_PREFIX}{{name}}")
    text = json.dumps(components)
    for name, published in _NAMES.items():
        text = text.replace(f'"{_PREFIX}{name}"', f'"{_PREFIX}{published}"')
    schemas = json.loads(text, object_hook=lambda schema: schema | schema.pop(RANGE_KEY, {}))
    found: dict[str, Any] = {_NAMES.get(name, name): schema for name, schema in schemas.items()}
    for name, schema in found.items():
        schema["title"] = name
        for field, each in schema["properties"].items():
            is_constant = each.get("default") is not None or each.get("type") == "null"
            if is_constant and field not in schema["required"]:
                schema["required"].append(field)
    return found


def _remove_null(properties: dict[str, Any], names: Iterable[str]) -> None:
    for name in names:
        options = properties[name].get("anyOf", [properties[name]])
        (properties[name],) = [each for each in options if each != _PLAIN[NoneType]]


def _message_schemas(kinds: Iterable[Descriptor]) -> dict[str, JsonSchema]:
    """Return schemas of the JSON that `message_to_json` writes for these messages and those nested in them."""
    found: dict[str, JsonSchema] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if kind.name not in found:
            found[kind.name] = _object_schema({field.name: _field_schema(field) for field in kind.fields})
            waiting += [field.message_type for field in kind.fields if field.message_type is not None]
    return found


def _field_schema(field: FieldDescriptor) -> JsonSchema:
    if field.message_type is not None:
        schema = _ref(field.message_type.name)
    elif field.type in _NUMBERS:
        schema = _PLAIN[float]
    elif field.type == FieldDescriptor.TYPE_BOOL:
        schema = _PLAIN[bool]
    elif field.enum_type is not None or field.type in _TEXTS:
        schema = _STRING
    else:
        schema = _PLAIN[int]
    if field.is_repeated:
        return _make_array(schema)
    return _nullable(schema) if field.has_presence or field.type in _NUMBERS else schema


def _type_schema(kind: Any) -> JsonSchema:
    """Return the schema of the object that a dataclass's `to_dict` returns, or of a field's type."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        names = [each.name for each in fields(kind) if each.name != "wire"]
        return _object_schema({name: _type_schema(hints[name]) for name in names})
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_type_schema(each) for each in inner]}
    if origin is tuple and inner[1:] == (Ellipsis,):
        return _make_array(_type_schema(inner[0]))
    if origin is Mapping and inner[0] is str:
        return {"type": "object", "additionalProperties": {} if inner[1] is Any else _type_schema(inner[1])}
    raise TypeError(f"{kind} has no JSON schema")
