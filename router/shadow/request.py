"""The same question once more, marked as a copy."""

from octet.v1 import inference_pb2 as wire
from router.between.way import Way
from router.receipts.clip import clip

SUFFIX = "~shadow"
"""Of its id, for whoever reads logs."""
_ID_BYTES = 128
"""A replica takes no longer ones."""


def as_shadow(request: wire.GenerateRequest, way: Way, seed: int) -> wire.GenerateRequest:
    """Changes `request`: on the shadow's lane, with the seed that the primary got, so that the answers can be
    compared. Log probabilities are nobody's to read, the conversation goes on from the primary's answer, and nobody
    waits for its first token."""
    request.request_id = clip(request.request_id, _ID_BYTES - len(SUFFIX)) + SUFFIX
    request.adapters[:] = way.adapters
    request.seed = seed
    request.shadow = True
    request.ClearField("session_key")
    request.ClearField("first_token_timeout_ms")
    request.sampling.ClearField("num_logprobs")
    return request
