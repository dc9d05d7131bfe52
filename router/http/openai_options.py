"""What chat and plain completions have in common: everything but the prompt and the log probabilities."""

from collections.abc import Iterator, Mapping

from octet.v1 import inference_pb2 as wire
from router.http.fault import Fault, wrong
from router.http.fields import Fields, integer_of, number_of
from router.http.models import Model
from router.http.octet_options import octet_options

MOST_CHOICES = 8
_INT64 = 2**63
_NUMBERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "min_p", "repetition_penalty")
SAMPLING = (*_NUMBERS, "top_k")
"""Also what OpenAI has no names for: those that vLLM gave them."""
_GIVEN = frozenset(SAMPLING)
_NAMES: Mapping[str, str] = {
    **{f"sampling.{key}": key for key in SAMPLING},
    "sampling.logit_bias": "logit_bias",
    "sampling.logit_bias.token": "logit_bias",
    "sampling.logit_bias.bias": "logit_bias",
    "user_id": "user",
}
"""By the name on Octet's wire: those that are the same in every request."""
_ALL = -1
"""The `top_k` of vLLM that leaves nothing out."""


class Options:
    """Read from the body of a request. Raises Fault."""

    def __init__(self, fields: Fields) -> None:
        self._own = octet_options(fields)
        self.model: Model = self._own.model
        self.receipt = self._own.receipt
        self.stream = fields.flag("stream")
        self.include_usage = self._includes_usage(fields)
        self.n = self._choices(fields)
        self._length_key = _length_key(fields)
        self._session_key = _session_key(fields)
        self._request = self._read(fields)

    def requests(self, request_id: str, prompts: list[wire.InferRequest]) -> Iterator[wire.InferRequest]:
        """`prompts` say what is asked, and nothing else. Every choice has a seed of its own."""
        for index in range(len(prompts) * self.n):
            made = prompts[index // self.n]
            if self.n > 1:  # the last of a prompt's could have the prompt itself: a copy is simpler, and rare
                made = wire.InferRequest()
                made.CopyFrom(prompts[index // self.n])
            made.MergeFrom(self._request)
            made.request_id = f"{request_id}-{index}" if index else request_id
            if made.HasField("seed"):
                made.seed = (made.seed + index + _INT64) % (2 * _INT64) - _INT64
            yield made

    @property
    def has_structure(self) -> bool:
        return self._own.has_structure

    def names(self) -> Mapping[str, str]:
        """By the name on Octet's wire."""
        return {
            **self._own.names,
            **_NAMES,
            "max_tokens": self._length_key,
            "metadata": self._session_key,
            "metadata.value": self._session_key,
        }

    def _read(self, fields: Fields) -> wire.InferRequest:
        session = fields.table("metadata").text("session_id") or fields.text("prompt_cache_key")
        request = wire.InferRequest(
            sampling=_sampling(fields),
            seed=fields.integer("seed"),
            max_tokens=fields.integer(self._length_key),
            min_tokens=fields.integer("min_tokens"),
            ignore_eos=fields.flag("ignore_eos"),
            stop=_stops(fields),
            metadata={"session_id": session} if session else {},
            user_id=fields.text("user") or "",
        )
        request.MergeFrom(self._own.request)
        return request

    def _includes_usage(self, fields: Fields) -> bool:
        options = fields.table("stream_options")
        if fields.has("stream_options") and not self.stream:
            raise wrong("stream_options", "left out unless stream is true", "both")
        if options.flag("include_obfuscation"):
            raise wrong("stream_options.include_obfuscation", "false: chunks are not padded", "true")
        return options.flag("include_usage")

    def _choices(self, fields: Fields) -> int:
        n = fields.integer("n")
        if n is not None and not 1 <= n <= MOST_CHOICES:
            raise wrong("n", f"in [1, {MOST_CHOICES}]", str(n))
        return 1 if n is None else n


def _length_key(fields: Fields) -> str:
    if not fields.has("max_completion_tokens"):
        return "max_tokens"
    if fields.has("max_tokens"):
        raise wrong("max_tokens", "left out beside max_completion_tokens", "both")
    return "max_completion_tokens"


def _session_key(fields: Fields) -> str:
    own = fields.table("metadata").text("session_id")
    return "prompt_cache_key" if not own and fields.has("prompt_cache_key") else "metadata.session_id"


def _sampling(fields: Fields) -> wire.Sampling | None:
    """None where the caller leaves all of it to the kind of task."""
    biases = fields.table("logit_bias")
    if not biases.given() and _GIVEN.isdisjoint(fields.given()):
        return None
    numbers = {key: fields.number(key) for key in _NUMBERS if fields.has(key)}
    if numbers.get("top_p") == 0:  # the likeliest token alone, as OpenAI has it
        numbers |= {"top_p": None, "temperature": 0.0}
    top_k = fields.integer("top_k")
    sampling = wire.Sampling(
        top_k=0 if top_k == _ALL else top_k, logit_bias=[_bias(biases, key) for key in biases.given()]
    )
    for key, number in numbers.items():
        if number is not None:
            setattr(sampling, key, number)
    return sampling


def _bias(biases: Fields, key: str) -> wire.LogitBias:
    if not (key.isascii() and key.isdecimal() and len(key) < 19):
        raise wrong("logit_bias", "an object from token ids to numbers", repr(key[:40]))
    return wire.LogitBias(token=integer_of(int(key), "logit_bias"), bias=number_of(biases.raw(key), biases.name(key)))


def _stops(fields: Fields) -> list[str]:
    if not isinstance(fields.raw("stop"), str | list | None):
        raise wrong("stop", "text or a list of texts", type(fields.raw("stop")).__name__)
    return [fields.needed_text("stop")] if isinstance(fields.raw("stop"), str) else fields.texts("stop")


def too_many(num_prompts: int, n: int) -> Fault:
    return wrong("prompt", f"a list that makes at most {MOST_CHOICES} choices with n", f"{num_prompts} times {n}")
