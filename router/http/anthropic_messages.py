"""`POST /v1/messages` and its token count: from their bodies to an order."""

from collections.abc import Mapping
from typing import Any

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.anthropic_content import conversation
from router.http.anthropic_fields import check_keys
from router.http.anthropic_tools import NAMES, tool_choice_of, tools_of
from router.http.anthropic_unsupported import UNSUPPORTED, check_supported
from router.http.fault import Fault, unsupported, wrong
from router.http.fields import Fields, json_text
from router.http.octet_options import OctetOptions, octet_options
from router.http.order import Order

_PROMPT = ("model", "messages", "system", "tools", "tool_choice", "output_config", "octet")
_MESSAGE = (*_PROMPT, "max_tokens", "stream", "stop_sequences", "temperature", "top_k", "top_p", "metadata")
_MOST_TEMPERATURE = 1.0
_NAMES: Mapping[str, str] = {
    **{f"sampling.{key}": key for key in ("temperature", "top_k", "top_p")},
    "prompt": "messages",
    "messages.role": "messages",
    "stop": "stop_sequences",
    "user_id": "metadata.user_id",
}
"""By the name on Octet's wire, like those of the form."""
_FORM: Mapping[str, str] = {
    "structure": "output_config.format",
    "structure.json_schema": "output_config.format.schema",
}


def message_order(body: dict[str, Any], request_id: str) -> Order:
    """Raises Fault."""
    fields = Fields(body)
    _check(fields, _MESSAGE)
    own = octet_options(fields, "seed")
    request = _prompt(fields, own, request_id)
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
    return _order(fields, own, request, stream=fields.flag("stream"))


def count_order(body: dict[str, Any], request_id: str) -> Order:
    """Raises Fault."""
    fields = Fields(body)
    _check(fields, _PROMPT)
    own = octet_options(fields, "seed")
    return _order(fields, own, _prompt(fields, own, request_id), stream=False)


def _order(fields: Fields, own: OctetOptions, request: wire.InferRequest, *, stream: bool) -> Order:
    form = _FORM if fields.table("output_config").has("format") else {}
    return Order(
        model=own.model,
        requests=(request,),
        num_each=1,
        names=lambda: {**own.names, **_NAMES, **NAMES, **form},
        is_chat=True,
        stream=stream,
        receipt=own.receipt,
    )


def _check(fields: Fields, known: tuple[str, ...]) -> None:
    check_supported(fields)
    check_keys(fields, (*known, *UNSUPPORTED))


def _prompt(fields: Fields, own: OctetOptions, request_id: str) -> wire.InferRequest:
    """Everything but how the answer is drawn."""
    form = _structure(fields)
    if form is not None and own.has_structure:
        raise wrong("output_config.format", "left out beside octet.structure", "both")
    request = wire.InferRequest(
        request_id=request_id,
        messages=conversation(fields),
        tools=tools_of(fields),
        tool_choice=tool_choice_of(fields),
        structure=form,
    )
    request.MergeFrom(own.request)
    return request


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
