"""`POST /v1/completions`: from its body to an order. The prompt is what a user says: specialists chat."""

from typing import Any

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.fault import unsupported, wrong
from router.http.fields import Fields
from router.http.openai_options import MOST_CHOICES, Options, too_many
from router.http.openai_unsupported import check_completion
from router.http.order import Order


def completion_order(body: dict[str, Any], request_id: str) -> Order:
    """Raises Fault."""
    fields = Fields(body)
    options = Options(fields)
    check_completion(fields)
    if fields.has("best_of") and fields.integer("best_of") != options.n:
        raise unsupported("best_of", "every choice is returned; ask for n of them")
    logprobs = fields.integer("logprobs")
    prompts = [_prompt(text, logprobs) for text in _texts(fields)]
    if len(prompts) * options.n > MOST_CHOICES:
        raise too_many(len(prompts), options.n)
    return Order(
        model=options.model,
        requests=tuple(options.requests(request_id, prompts)),
        num_each=options.n,
        names=lambda: {**options.names(), "sampling.num_logprobs": "logprobs"},
        is_chat=False,
        stream=options.stream,
        include_usage=options.include_usage,
        receipt=options.receipt,
        logprobs=logprobs is not None,
    )


def _texts(fields: Fields) -> list[str]:
    value = fields.raw("prompt")
    if isinstance(value, list) and any(isinstance(each, int | list) for each in value):
        raise unsupported("prompt", "token ids belong to one model, and which one answers is decided by the text")
    texts = fields.texts("prompt") if isinstance(value, list) else [fields.needed_text("prompt")]
    if not texts:
        raise wrong("prompt", "text, or a list of texts", shorten(value))
    return texts


def _prompt(text: str, logprobs: int | None) -> wire.InferRequest:
    sampling = None if logprobs is None else wire.Sampling(num_logprobs=logprobs)
    return wire.InferRequest(prompt=text, sampling=sampling)
