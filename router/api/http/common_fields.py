"""Request fields that several dialects share: the model name, sampling and length, structure, the `octet` object."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct

from octet.config.ensemble import Ensemble
from octet.limits import shorten
from octet.v1 import inference_pb2 as wire
from router.api.http import errors, fields
from router.control.adapters import is_generated_load_name
from router.dispatch.replicas.replica import Replica

ROUTED_MODEL = "octet"
MODEL_PATTERN = r"octet(?:/([a-z0-9._-]{1,64})(?::([a-z0-9._-]{1,64}))?)?"
_PINNED = re.compile(MODEL_PATTERN)
_MODEL_SCHEMA = {"pattern": f"^{MODEL_PATTERN}$", "examples": [ROUTED_MODEL]}
_MODEL_HELP = "octet lets the router choose; octet/SPECIALIST and octet/SPECIALIST:ADAPTER name the specialist"
ModelField = Annotated[str, Meta(description=_MODEL_HELP, extra_json_schema=_MODEL_SCHEMA)]
StopText = Annotated[str, fields.text_limits("stop", 1)]
StopTexts = Annotated[list[StopText], fields.list_limits("stop")]
MESSAGES = fields.never_missing("a list of at least one message", min_length=1)
IdText = Annotated[str, fields.text_limits("session_id")]
UserText = Annotated[str, fields.text_limits("user_id")]
NameText = Annotated[str, fields.text_limits("adapters", 1)]  # the name of a specialist or an adapter
_ChoiceText = Annotated[str, fields.text_limits("structure.choice.choices", 1)]


@dataclass(frozen=True, slots=True)
class ModelName:
    requested: str
    specialist: str = ""
    adapter: str = ""

    @classmethod
    def parse(cls, name: str) -> "ModelName":
        """Parse `octet`, `octet/SPECIALIST` or `octet/SPECIALIST:ADAPTER`. Raises ApiError for any other name."""
        found = _PINNED.fullmatch(name)
        if found is None:
            raise errors.unknown_model_error(name[:100])
        return cls(name, found[1] or "", found[2] or "")

    def answered_by(self, specialist: str) -> str:
        return self.requested if self.specialist else f"{ROUTED_MODEL}/{specialist}"


def list_model_names(ensemble: Ensemble, replicas: Iterable[Replica]) -> Iterator[str]:
    """Yield all model names, except those of adapters that the control plane loaded."""
    adapters = {each.name: set(each.adapters) for each in ensemble.specialists}
    for replica in replicas:
        adapters[replica.specialist] |= {name for name in replica.adapters if not is_generated_load_name(name)}
    yield ROUTED_MODEL
    for specialist, names in adapters.items():
        yield f"{ROUTED_MODEL}/{specialist}"
        yield from (f"{ROUTED_MODEL}/{specialist}:{name}" for name in sorted(names))


class GenerationOptions(Struct, kw_only=True):
    """Options for sampling and length that have the same names in OpenAI's dialect and in Octet's own."""

    temperature: Annotated[float, fields.number_limits("sampling.temperature")] | None = None
    top_p: Annotated[float, fields.number_limits("sampling.top_p")] | None = None
    presence_penalty: Annotated[float, fields.number_limits("sampling.presence_penalty")] | None = None
    frequency_penalty: Annotated[float, fields.number_limits("sampling.frequency_penalty")] | None = None
    min_p: Annotated[float, fields.number_limits("sampling.min_p")] | None = None
    repetition_penalty: Annotated[float, fields.number_limits("sampling.repetition_penalty")] | None = None
    top_k: Annotated[fields.Int64, fields.number_limits("sampling.top_k")] | None = None
    seed: fields.Int64 | None = None
    max_tokens: Annotated[fields.Int64, fields.number_limits("max_tokens")] | None = None
    min_tokens: Annotated[fields.Int64, fields.number_limits("min_tokens")] | None = None
    ignore_eos: bool | None = None
    stop: StopText | StopTexts | None = None


class StructureBody(Struct, forbid_unknown_fields=True):
    """The form that an answer must have. Exactly one field is set."""

    json_object: Annotated[bool, Meta(extra_json_schema={"const": True})] | None = None
    json_schema: fields.JsonSchemaObject | None = None
    regex: Annotated[str, fields.text_limits("structure.regex", 1)] | None = None
    choice: Annotated[list[_ChoiceText], fields.list_limits("structure.choice.choices", 1)] | None = None

    @classmethod
    def unknown_error(cls, where: str, got: str, known: Sequence[str]) -> errors.ApiError:
        keys = f"{', '.join(known[:-1])} and {known[-1]}"
        return errors.invalid_field(where, f"an object with exactly one of the keys {keys}", got)

    def to_wire(self, where: str) -> wire.Structure:
        kinds = self.__struct_fields__
        given = [kind for kind in kinds if getattr(self, kind) is not None]
        if len(given) != 1:
            raise self.unknown_error(where, " and ".join(given) or "no key", kinds)
        if self.json_object is False:
            raise errors.invalid_field(f"{where}.json_object", "true or left out", "false")
        if self.json_schema is not None:
            return wire.Structure(json_schema=fields.dump_json(self.json_schema, f"{where}.json_schema"))
        if self.choice is not None:
            return wire.Structure(choice=wire.Choices(choices=self.choice))
        return wire.Structure(json_object=self.json_object, regex=self.regex)


class OctetOptions(Struct, forbid_unknown_fields=True):
    """The `octet` object in a request of OpenAI's or Anthropic's dialect."""

    intent: Annotated[str, fields.text_limits("intent")] | None = None
    priority: Annotated[fields.Int64, fields.number_limits("priority")] | None = None
    timeout_ms: Annotated[fields.Int64, fields.number_limits("timeout_ms")] | None = None
    first_token_timeout_ms: Annotated[fields.Int64, fields.number_limits("first_token_timeout_ms")] | None = None
    exclude: Annotated[list[NameText], fields.list_limits("exclude_specialists")] | None = None
    adapters: Annotated[list[NameText], fields.list_limits("adapters")] | None = None
    session_id: IdText | None = None
    receipt: bool | None = None
    structure: StructureBody | None = None

    @classmethod
    def unknown_error(cls, where: str, got: str, known: Sequence[str]) -> errors.ApiError:
        param, limit = f"{where}.{got[:60]}", f"one of {', '.join(known)}"
        message = f"{param} is not a known key; it must be {limit}"
        return errors.ApiError(400, message, param=param, code="invalid_field", limit=limit)


def octet_request(model: ModelName, options: OctetOptions | None) -> wire.InferRequest:
    """Build a request from the model name and the `octet` object. Raises ApiError for an invalid option."""
    force, adapters = [model.specialist] if model.specialist else [], [model.adapter] if model.adapter else []
    if options is None:
        return wire.InferRequest(force_specialists=force, adapters=adapters)
    if adapters and options.adapters is not None:
        raise errors.invalid_field("octet.adapters", "left out if model names an adapter", shorten(options.adapters))
    same = ("intent", "session_id", "priority", "timeout_ms", "first_token_timeout_ms", "seed")
    return wire.InferRequest(
        force_specialists=force,
        exclude_specialists=options.exclude,
        adapters=options.adapters or adapters,
        structure=None if options.structure is None else options.structure.to_wire("octet.structure"),
        **{name: getattr(options, name, None) for name in same},
    )


def octet_field_names(model: ModelName, options: type[OctetOptions]) -> dict[str, str]:
    """Map the fields of an InferRequest to the names that the caller uses: `model`, or fields of the `octet` object."""
    same = set(options.__struct_fields__) - {"exclude", "adapters", "receipt"}
    return {
        **{name: f"octet.{name}" for name in same},
        **{f"structure.{kind}": f"octet.structure.{kind}" for kind in StructureBody.__struct_fields__},
        "structure.choice.choices": "octet.structure.choice",
        "force_specialists": "model",
        "exclude_specialists": "octet.exclude",
        "adapters": "model" if model.adapter else "octet.adapters",
    }
