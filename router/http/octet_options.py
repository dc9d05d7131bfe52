"""`model` and `octet` in the body of another vendor's dialect: what only Octet knows, read alike in all of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from octet.v1 import inference_pb2 as wire
from router.http.fault import wrong
from router.http.fields import Fields
from router.http.models import Model, model_of
from router.http.structure import KINDS, structure_of

NUMBERS = ("priority", "timeout_ms", "first_token_timeout_ms")
KEYS = ("intent", *NUMBERS, "exclude", "adapters", "session_id", "receipt", "structure")


@dataclass(frozen=True, slots=True)
class OctetOptions:
    model: Model
    request: wire.InferRequest
    """Nothing but what is said here."""
    names: Mapping[str, str]
    """Of those fields, by the name on Octet's wire."""
    receipt: bool

    @property
    def has_structure(self) -> bool:
        return bool(self.request.HasField("structure"))


def octet_options(fields: Fields, *more: str) -> OctetOptions:
    """`more` are whole numbers that the dialect has no field for. Raises Fault."""
    model = model_of(fields.needed_text("model"))
    own = fields.table("octet")
    request = _said(own, model, more) if own.given() else wire.InferRequest()
    if model.specialist:
        request.force_specialists.append(model.specialist)
    if model.adapter:
        request.adapters.append(model.adapter)
    return OctetOptions(model, request, _names(bool(model.adapter), more), own.flag("receipt"))


def _said(own: Fields, model: Model, more: tuple[str, ...]) -> wire.InferRequest:
    """Raises Fault."""
    known = (*KEYS, *more)
    for key in own.given():
        if key not in known:
            raise wrong(own.name(key[:60]), f"one of {', '.join(known)}", "a key that is none of them")
    if model.adapter and own.has("adapters"):
        raise wrong("octet.adapters", "left out where the model names one", model.adapter)
    request = wire.InferRequest(
        exclude_specialists=own.texts("exclude"),
        adapters=own.texts("adapters"),
        intent=own.text("intent") or "",
        session_id=own.text("session_id") or "",
        structure=structure_of(own),
    )
    for key in (*NUMBERS, *more):
        if own.has(key):
            setattr(request, key, own.integer(key))
    return request


@cache
def _names(has_adapter: bool, more: tuple[str, ...]) -> Mapping[str, str]:
    return {
        **{key: f"octet.{key}" for key in ("intent", *NUMBERS, "session_id", "structure", *more)},
        **{f"structure.{kind}": f"octet.structure.{kind}" for kind in KINDS},
        "structure.choice.choices": "octet.structure.choice",
        "force_specialists": "model",
        "exclude_specialists": "octet.exclude",
        "adapters": "model" if has_adapter else "octet.adapters",
    }
