"""Bodies of POST /v1/infer."""

from typing import Any

from octet.v1 import inference_pb2 as wire
from router.api.http import fields
from router.api.http.infer import JobRequest


def parse_infer_request(body: dict[str, Any]) -> wire.InferRequest:
    return fields.to_struct(body, JobRequest).to_wire()
