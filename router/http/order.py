"""What a request asks for, in Octet's words, whatever dialect it came in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octet.v1 import inference_pb2 as wire
from router.http.models import Model


@dataclass(frozen=True, slots=True)
class Order:
    model: Model
    requests: tuple[wire.InferRequest, ...]
    """One for every choice, in order; the first has the id that was given, the others begin with it."""
    num_each: int
    """Choices for each prompt."""
    names: Callable[[], Mapping[str, str]]
    """What the fields of an InferRequest are called by whoever asks: put together for a fault, which is rare."""
    is_chat: bool
    stream: bool = False
    include_usage: bool = False
    receipt: bool = False
    """The answer tells who gave it and why."""
    logprobs: bool = False
