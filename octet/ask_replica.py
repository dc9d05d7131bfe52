"""Ask one replica directly, past the router."""

import argparse
import asyncio
import json
import math
import sys
from collections.abc import Sequence

import grpc
from google.protobuf.json_format import MessageToDict

from octet.client import SpecialistClient, SpecialistError
from octet.command_line import BUSY, FAILED, WRONG, complain, quieten_grpc
from octet.sampling_options import NUMBERS
from octet.sdk.structure import structure_of
from octet.sdk.unreachable import unreachable
from octet.structure_options import structure_from
from octet.text_io import write
from octet.v1 import specialist_pb2 as wire

_EXIT = {
    grpc.StatusCode.INVALID_ARGUMENT: WRONG,
    grpc.StatusCode.NOT_FOUND: WRONG,
    grpc.StatusCode.UNIMPLEMENTED: WRONG,
    grpc.StatusCode.UNAVAILABLE: BUSY,
    grpc.StatusCode.RESOURCE_EXHAUSTED: BUSY,
}
_INT64 = 2**63


def ask_replica(arguments: argparse.Namespace, text: str) -> int:
    quieten_grpc()
    try:
        return asyncio.run(_generate(arguments, _request(arguments, text)))
    except SpecialistError as error:
        complain("generate", _advice(error, arguments.replica))
        return _EXIT.get(error.code, FAILED)


def _request(arguments: argparse.Namespace, text: str) -> wire.GenerateRequest:
    sampling = wire.Sampling(top_k=arguments.top_k, **{name: getattr(arguments, name) for name in NUMBERS})
    request = wire.GenerateRequest(
        request_id=arguments.request_id,
        adapters=arguments.adapter,
        sampling=sampling,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        min_tokens=arguments.min_tokens,
        stop=arguments.stop,
        ignore_eos=arguments.ignore_eos,
        context_size=arguments.context_size,
        priority=arguments.priority,
        timeout_ms=_milliseconds("--timeout", arguments.timeout),
        first_token_timeout_ms=_milliseconds("--first-token-timeout", arguments.first_token_timeout),
    )
    form = structure_from(arguments)
    if form is not None:
        request.structure.CopyFrom(structure_of(form))
    if arguments.raw:
        request.text = text
    else:
        request.chat.messages.extend(_messages(arguments.system, text))
    return request


def _messages(system: str | None, text: str) -> Sequence[wire.Message]:
    before = [] if system is None else [wire.Message(role="system", content=system)]
    return [*before, wire.Message(role="user", content=text)]


def _milliseconds(name: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not math.isfinite(seconds) or not -_INT64 <= seconds * 1000 < _INT64:
        raise ValueError(f"{name} must be a number of seconds, got {seconds}")
    return math.ceil(seconds * 1000)


async def _generate(arguments: argparse.Namespace, request: wire.GenerateRequest) -> int:
    accepted, usage = wire.Accepted(), wire.Usage()
    async with SpecialistClient(
        arguments.replica, ca=arguments.tls_ca, certificate=arguments.tls_certificate, key=arguments.tls_key
    ) as client:
        async for event in client.generate(request):
            _show(event, as_json=arguments.json)
            accepted = event.accepted if event.HasField("accepted") else accepted
            usage = event.usage if event.HasField("usage") else usage
    if not arguments.json:
        write("\n")
    if arguments.verbose:
        print(_receipt(accepted, usage), file=sys.stderr)
    return 0


def _show(event: wire.GenerateEvent, *, as_json: bool) -> None:
    if as_json:
        write(json.dumps(MessageToDict(event, preserving_proto_field_name=True), ensure_ascii=False) + "\n")
    elif event.HasField("chunk"):
        write(event.chunk.text)


def _receipt(accepted: wire.Accepted, usage: wire.Usage) -> str:
    lane, timings = accepted.lane, usage.timings
    reason = wire.FinishReason.Name(usage.finish_reason).removeprefix("FINISH_REASON_").lower()
    adapters = "".join(f" + {digest[:12]}" for digest in lane.adapter_digests)
    speed = ""
    if usage.completion_tokens > 1 and timings.decode > 0:
        speed = f", {(usage.completion_tokens - 1) / timings.decode:.1f} tok/s"
    return (
        f"{accepted.request_id}: {lane.specialist} {lane.revision[:12]}{adapters}; {reason}; "
        f"{usage.prompt_tokens} prompt tokens ({usage.cache_hit_tokens} cached), "
        f"{usage.completion_tokens} generated{speed}; first token after {timings.queued + timings.prefill:.3f} s, "
        f"preempted {usage.times_preempted} times"
    )


def _advice(error: SpecialistError, address: str) -> str:
    if error.error is None and error.code == grpc.StatusCode.UNAVAILABLE:
        return unreachable(address, str(error), "start one with: octet specialist")
    if error.error is None and error.code == grpc.StatusCode.UNIMPLEMENTED:
        return f"what answers at {address} is no replica; a router is asked with --address instead of --replica"
    if error.error is not None and error.error.HasField("retry_after_ms"):
        return f"{error}; try again in {error.error.retry_after_ms / 1000:.1f} s"
    return str(error) or f"the call ended with {error.code.name}"
