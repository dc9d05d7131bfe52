"""`POST /v1/messages` and its token count: from their bodies to an order."""

from collections.abc import Mapping
from typing import Any

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.anthropic_content import conversation
from router.http.anthropic_fields import check_keys, json_text
from router.http.anthropic_tools import NAMES, tool_choice_of, tools_of
from router.http.anthropic_unsupported import UNSUPPORTED, check_supported
from router.http.fault import Fault, unsupported, wrong
from router.http.fields import Fields
from router.http.models import Model, model_of
from router.http.order import Order

_PROMPT = ("model", "messages", "system", "tools", "tool_choice", "output_config", "octet")
_MESSAGE = (*_PROMPT, "max_tokens", "stream", "stop_sequences", "temperature", "top_k", "top_p", "metadata")
_OWN = ("intent", "priority", "timeout_ms", "exclude", "adapters", "receipt", "seed", "session_id")
_MOST_TEMPERATURE = 1.0


def message_order(body: dict[str, Any], request_id: str) -> Order:
    """Raises Fault."""
    fields = Fields(body)
    _check(fields, _MESSAGE)
    request = _prompt(fields, request_id)
    metadata = fields.table("metadata")
    check_keys(metadata, ("user_id",))
    request.MergeFrom(
        wire.InferRequest(
            max_tokens=_longest(fields),
            stop=fields.texts("stop_sequences"),
            sampling=_sampling(fields),
            user_id=metadata.text("user_id") or "",
        )
    )
    return _order(fields, request, stream=fields.flag("stream"))


def count_order(body: dict[str, Any], request_id: str) -> Order:
    """Raises Fault."""
    fields = Fields(body)
    _check(fields, _PROMPT)
    return _order(fields, _prompt(fields, request_id), stream=False)


def _order(fields: Fields, request: wire.InferRequest, *, stream: bool) -> Order:
    model = model_of(fields.needed_text("model"))
    return Order(
        model=model,
        requests=(request,),
        num_each=1,
        names=_names(model),
        is_chat=True,
        stream=stream,
        receipt=fields.table("octet").flag("receipt"),
    )


def _names(model: Model) -> Mapping[str, str]:
    """By the name on Octet's wire."""
    return {
        **{key: f"octet.{key}" for key in ("intent", "priority", "timeout_ms", "seed", "session_id")},
        **{f"sampling.{key}": key for key in ("temperature", "top_k", "top_p")},
        "prompt": "messages",
        "messages.role": "messages",
        "force_specialists": "model",
        "exclude_specialists": "octet.exclude",
        "adapters": "model" if model.adapter else "octet.adapters",
        "stop": "stop_sequences",
        "user_id": "metadata.user_id",
        "structure": "output_config.format",
        "structure.json_schema": "output_config.format.schema",
        **NAMES,
    }


def _check(fields: Fields, known: tuple[str, ...]) -> None:
    check_supported(fields)
    check_keys(fields, (*known, *UNSUPPORTED))
    own = fields.table("octet")
    for key in own.given():
        if key not in _OWN:
            raise wrong(own.name(key[:60]), f"one of {', '.join(_OWN)}", "a key that is none of them")


def _prompt(fields: Fields, request_id: str) -> wire.InferRequest:
    """Everything but how the answer is drawn."""
    model = model_of(fields.needed_text("model"))
    own = fields.table("octet")
    if model.adapter and own.has("adapters"):
        raise wrong("octet.adapters", "left out where the model names one", model.adapter)
    return wire.InferRequest(
        request_id=request_id,
        messages=conversation(fields),
        tools=tools_of(fields),
        tool_choice=tool_choice_of(fields),
        structure=_structure(fields),
        force_specialists=[model.specialist] if model.specialist else [],
        exclude_specialists=own.texts("exclude"),
        adapters=[model.adapter] if model.adapter else own.texts("adapters"),
        intent=own.text("intent") or "",
        priority=own.integer("priority"),
        timeout_ms=own.integer("timeout_ms"),
        seed=own.integer("seed"),
        session_id=own.text("session_id") or "",
    )


def _longest(fields: Fields) -> int:
    longest = fields.integer("max_tokens")
    if longest is None:
        raise Fault(400, "max_tokens is missing", param="max_tokens", code="missing_field")
    return longest


def _sampling(fields: Fields) -> wire.Sampling | None:
    """None where the caller leaves all of it to the kind of task."""
    if not any(fields.has(key) for key in ("temperature", "top_k", "top_p")):
        return None
    temperature = fields.number("temperature")
    if temperature is not None and not 0 <= temperature <= _MOST_TEMPERATURE:
        raise wrong("temperature", f"in [0, {_MOST_TEMPERATURE:g}]", f"{temperature:g}")
    return wire.Sampling(temperature=temperature, top_k=fields.integer("top_k"), top_p=fields.number("top_p"))


def _structure(fields: Fields) -> wire.Structure | None:
    config = fields.table("output_config")
    check_keys(config, ("format", "effort"))
    if config.has("effort"):
        raise unsupported(config.name("effort"), "the specialists know no efforts; max_tokens bounds an answer")
    if not config.has("format"):
        return None
    form = config.table("format")
    check_keys(form, ("type", "schema"))
    if form.needed_text("type") != "json_schema":
        raise wrong(form.name("type"), "json_schema", shorten(form.raw("type")))
    if not form.has("schema"):
        raise Fault(400, f"{form.name('schema')} is missing", param=form.name("schema"), code="missing_field")
    return wire.Structure(json_schema=json_text(form.table("schema").values(), form.name("schema")))
