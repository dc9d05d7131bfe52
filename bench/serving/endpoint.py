"""Where to ask, and for which model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.serving.answer import Caller
from bench.serving.grpc_caller import GrpcCaller
from bench.serving.http import parse_origin
from bench.serving.openai_caller import OpenAICaller
from bench.serving.told import FieldsForClass
from bench.serving.usage import ServeMistake
from octet.sdk.api_key import is_local


@dataclass(frozen=True, slots=True)
class Endpoint:
    kind: str
    """http or grpc."""
    where: str
    model: str
    name: str
    told: FieldsForClass | None = None
    """None: as the model's name says whose it is."""


def named_apart(endpoints: Sequence[Endpoint]) -> list[Endpoint]:
    """The same name twice would be one system: they are told apart by their models, and then by number."""
    names = [each.name for each in endpoints]
    fuller = [each.name if names.count(each.name) == 1 else f"{each.name} {each.model}" for each in endpoints]
    counted = [
        name if fuller.count(name) == 1 else f"{name} ({fuller[: index + 1].count(name)})"
        for index, name in enumerate(fuller)
    ]
    return [replace(each, name=name) for each, name in zip(endpoints, counted, strict=True)]


def caller_of(endpoint: Endpoint, key: str | None, give_up: float) -> Caller:
    """Raises ServeMistake."""
    if endpoint.kind == "grpc":
        _check_key(key, endpoint.where, encrypted=False)
        return GrpcCaller(endpoint.where, endpoint.model, key, give_up)
    origin = parse_origin(endpoint.where)
    _check_key(key, origin.name, encrypted=origin.scheme == "https")
    return OpenAICaller(origin, endpoint.model, key, give_up, endpoint.told)


def _check_key(key: str | None, where: str, *, encrypted: bool) -> None:
    if key is not None and not encrypted and not is_local(where):
        raise ServeMistake(f"the key would be sent to {where} in the clear: use https")
