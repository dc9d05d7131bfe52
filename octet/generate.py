"""`octet generate`: ask a replica, and see its answer as it comes."""

import argparse
import asyncio
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import grpc
from google.protobuf.json_format import MessageToDict

from octet.client import DEFAULT_ADDRESS, SpecialistClient, SpecialistError
from octet.v1 import specialist_pb2 as wire

_DESCRIPTION = """\
Send a prompt to a replica and write its answer to standard output as it comes.
The prompt is taken as one message of a conversation, or as it is with --raw;
without a prompt it is read from standard input.

Exit status: 0 when the answer is complete, 2 when the request was wrong, 3 when
the replica could not be reached or takes nothing now (worth trying again), 4
when it failed or the deadline passed, 130 after Ctrl-C, which cancels.
"""
_WRONG, _BUSY, _FAILED, _INTERRUPTED = 2, 3, 4, 130
_EXIT = {
    grpc.StatusCode.INVALID_ARGUMENT: _WRONG,
    grpc.StatusCode.NOT_FOUND: _WRONG,
    grpc.StatusCode.UNIMPLEMENTED: _WRONG,
    grpc.StatusCode.UNAVAILABLE: _BUSY,
    grpc.StatusCode.RESOURCE_EXHAUSTED: _BUSY,
}
_INT64 = 2**63
_INTEGERS = ("max_tokens", "min_tokens", "top_k", "seed", "priority")
_NUMBERS = ("temperature", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def add_generate_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "generate",
        description=_DESCRIPTION,
        help="ask a specialist, and see its answer as it comes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    parser.add_argument("--address", default=DEFAULT_ADDRESS, metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="the replica must show a certificate it has signed")
    parser.add_argument("--tls-certificate", type=Path, metavar="FILE", help="yours, where the replica asks for one")
    parser.add_argument("--tls-key", type=Path, metavar="FILE")
    parser.add_argument("--raw", action="store_true", help="no chat template: continue the prompt as it is")
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME", help="repeatable, in order")
    _add_sampling(parser.add_argument_group("how the answer is drawn"))
    parser.add_argument("--priority", type=int)
    parser.add_argument("--timeout", type=float, metavar="SECONDS")
    parser.add_argument("--json", action="store_true", help="every event as a line of JSON instead of the text")
    parser.add_argument("--verbose", action="store_true", help="a receipt on standard error")
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


def _add_sampling(group: "argparse._ArgumentGroup") -> None:
    group.add_argument("--max-tokens", type=int, metavar="N")
    group.add_argument("--min-tokens", type=int, metavar="N")
    for name in _NUMBERS:
        group.add_argument(f"--{name.replace('_', '-')}", type=float, metavar="X")
    group.add_argument("--top-k", type=int, metavar="N")
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="repeatable")
    group.add_argument("--ignore-eos", action="store_true", help="go on to --max-tokens")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.raw and arguments.system is not None:
        parser.error("--system needs the chat template, which --raw leaves out")
    try:
        return asyncio.run(_generate(arguments, _request(arguments)))
    except SpecialistError as error:
        print(f"octet generate: {_advice(error, arguments.address)}", file=sys.stderr)
        return _EXIT.get(error.code, _FAILED)
    except (OSError, ValueError) as error:
        print(f"octet generate: {error}", file=sys.stderr)
        return _WRONG
    except KeyboardInterrupt:
        return _INTERRUPTED


def _request(arguments: argparse.Namespace) -> wire.GenerateRequest:
    """Raises ValueError for what no field can carry, and names it; the replica checks the rest."""
    for name in _INTEGERS:
        _check_integer(name, getattr(arguments, name))
    for name in ("prompt", "system", "stop", "adapter"):
        _check_text(name, getattr(arguments, name))
    text = _standard_input() if arguments.prompt is None else arguments.prompt
    sampling = wire.Sampling(top_k=arguments.top_k, **{name: getattr(arguments, name) for name in _NUMBERS})
    request = wire.GenerateRequest(
        adapters=arguments.adapter,
        sampling=sampling,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        min_tokens=arguments.min_tokens,
        stop=arguments.stop,
        ignore_eos=arguments.ignore_eos,
        priority=arguments.priority,
        timeout_ms=_milliseconds(arguments.timeout),
    )
    if arguments.raw:
        request.text = text
    else:
        request.chat.messages.extend(_messages(arguments.system, text))
    return request


def _check_integer(name: str, value: int | None) -> None:
    if value is not None and not -_INT64 <= value < _INT64:
        raise ValueError(f"--{name.replace('_', '-')} must be in [{-_INT64}, {_INT64 - 1}], got {value!s:.40}")


def _check_text(name: str, given: str | Sequence[str] | None) -> None:
    """An argument that is no UTF-8 comes with surrogates, which cannot be written."""
    try:
        "".join(given or ()).encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} must be valid UTF-8") from None


def _standard_input() -> str:
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input must be valid UTF-8: byte {error.start} is not") from None
    _check_text("standard input", text)
    return text


def _messages(system: str | None, text: str) -> Sequence[wire.Message]:
    before = [] if system is None else [wire.Message(role="system", content=system)]
    return [*before, wire.Message(role="user", content=text)]


def _milliseconds(seconds: float | None) -> int | None:
    if seconds is None:
        return None
    if not math.isfinite(seconds) or not -_INT64 <= seconds * 1000 < _INT64:
        raise ValueError(f"--timeout must be a number of seconds, got {seconds}")
    return math.ceil(seconds * 1000)


async def _generate(arguments: argparse.Namespace, request: wire.GenerateRequest) -> int:
    accepted, usage = wire.Accepted(), wire.Usage()
    async with SpecialistClient(
        arguments.address, ca=arguments.tls_ca, certificate=arguments.tls_certificate, key=arguments.tls_key
    ) as client:
        async for event in client.generate(request):
            _show(event, as_json=arguments.json)
            accepted = event.accepted if event.HasField("accepted") else accepted
            usage = event.usage if event.HasField("usage") else usage
    if not arguments.json:
        _write("\n")
    if arguments.verbose:
        print(_receipt(accepted, usage), file=sys.stderr)
    return 0


def _show(event: wire.GenerateEvent, *, as_json: bool) -> None:
    if as_json:
        _write(json.dumps(MessageToDict(event, preserving_proto_field_name=True), ensure_ascii=False) + "\n")
    elif event.HasField("chunk"):
        _write(event.chunk.text)


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has had enough; leave nothing for the interpreter to flush
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


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
        return f"nothing answers at {address}; start one with: octet specialist"
    if error.error is not None and error.error.HasField("retry_after_ms"):
        return f"{error}; try again in {error.error.retry_after_ms / 1000:.1f} s"
    return str(error) or f"the call ended with {error.code.name}"
