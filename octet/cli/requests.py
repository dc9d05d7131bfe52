"""`octet generate`, `octet route` and `octet cancel`."""

import argparse
import asyncio
import json
import math
import sys
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from octet.cli import request_options as request
from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_parser
from octet.cli.receipts import explain_decision, format_decision, format_receipt
from octet.client.errors import NoSpecialist, OctetError, describe_unreachable
from octet.client.options import Options, structure_to_wire
from octet.client.receipts import Receipt
from octet.client.replica import SpecialistClient, SpecialistError
from octet.terminal import check_utf8, read_standard_input, write_output
from octet.v1 import specialist_pb2 as wire

_GENERATE_HELP = f"""\
Send a prompt to the router and print the answer of the chosen specialist as it
streams. Without a prompt argument, standard input is the prompt.

{cli.EXIT_STATUS_HELP}"""
_ROUTE_HELP = f"""
Prints the specialist, its probability if the classifier was asked, and what made
the decision. Nothing is generated.

{cli.EXIT_STATUS_HELP}"""
_CANCEL_HELP = f" Its caller receives a cancellation error.\n\n{cli.EXIT_STATUS_HELP}"
_ROUTER_ONLY = ("intent", "force", "exclude", "template", "body", "session", "user", "max_experts", "validate")
_EXIT_STATUS_BY_CODE = {
    grpc.StatusCode.INVALID_ARGUMENT: cli.EXIT_INVALID,
    grpc.StatusCode.NOT_FOUND: cli.EXIT_INVALID,
    grpc.StatusCode.UNIMPLEMENTED: cli.EXIT_INVALID,
    grpc.StatusCode.UNAVAILABLE: cli.EXIT_BUSY,
    grpc.StatusCode.RESOURCE_EXHAUSTED: cli.EXIT_BUSY,
}


def add_generate_command(commands: Commands) -> None:
    about = "send a prompt and print the answer as it streams"
    parser = add_parser(commands, "generate", about, description=_GENERATE_HELP)
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    cli.add_connection_options(parser)
    request.add_request_options(parser)
    parser.add_argument("--request-id", metavar="ID", help="your own id, to cancel the request or find its receipt")
    parser.add_argument("--json", action="store_true", help="print every event as a line of JSON")
    parser.add_argument("--verbose", action="store_true", help="print the receipt to standard error")
    replica = parser.add_argument_group("bypassing the router")
    replica.add_argument("--replica", metavar="HOST:PORT", help="send the prompt to this replica instead")
    replica.add_argument("--raw", action="store_true", help="continue the prompt without a chat template")
    parser.set_defaults(run=lambda arguments: _run_generate(parser, arguments))


def _run_generate(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if arguments.raw and arguments.system is not None:
        parser.error("--system needs the chat template, which --raw leaves out")
    if arguments.raw and arguments.replica is None:
        parser.error("--raw needs --replica: the router always applies the chat template")
    for name in _ROUTER_ONLY:
        if arguments.replica is not None and getattr(arguments, name) not in (None, []):
            parser.error(f"{request.option_name(name)} is for the router, which --replica bypasses")
    request.check_request_options(parser, arguments)
    generate = _generate if arguments.replica is None else _generate_on_replica
    return cli.run_command("generate", lambda: generate(arguments, request.read_prompt(arguments)))


def _generate(arguments: argparse.Namespace, text: str) -> int:
    prompt, options = request.request_options(arguments, text)
    with cli.open_client(arguments) as router, router.stream(prompt, **options) as answer:
        try:
            for number, chunk in enumerate(answer):
                if not arguments.json:
                    write_output(chunk.text)
                    continue
                if number == 0:
                    cli.print_json({"routed": answer.receipt.to_dict()})
                cli.print_json({"chunk": {"text": chunk.text, "token_ids": chunk.token_ids}})
        except OctetError as error:
            if answer.text and not arguments.json:
                write_output("\n")
            if error.receipt is not None:
                _print_receipt(arguments, error.receipt)
            raise
        if not arguments.json:
            write_output("\n")
        _print_receipt(arguments, answer.receipt)
    return 0


def _print_receipt(arguments: argparse.Namespace, receipt: Receipt) -> None:
    if arguments.json:
        cli.print_json({"receipt": receipt.to_dict()})
    if arguments.verbose:
        print(format_receipt(receipt), file=sys.stderr)


def _generate_on_replica(arguments: argparse.Namespace, text: str) -> int:
    cli.silence_grpc()
    try:
        return asyncio.run(_stream_from_replica(arguments, _replica_request(arguments, text)))
    except SpecialistError as error:
        cli.print_error("generate", _explain_replica_error(error, arguments.replica))
        return _EXIT_STATUS_BY_CODE.get(error.code, cli.EXIT_FAILED)


def _replica_request(arguments: argparse.Namespace, text: str) -> wire.GenerateRequest:
    names = ("request_id", "seed", "max_tokens", "min_tokens", "stop", "ignore_eos", "context_size", "priority")
    fields: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    fields |= {f"{name}_ms": _milliseconds(arguments, name) for name in request.TIMEOUT_OPTIONS}
    sampling = {name: getattr(arguments, name) for name in ("top_k", *request.FLOAT_OPTIONS)}
    replica_request = wire.GenerateRequest(adapters=arguments.adapter, sampling=wire.Sampling(**sampling), **fields)
    structure = request.read_structure(arguments)
    if structure is not None:
        replica_request.structure.CopyFrom(structure_to_wire(structure))
    if arguments.raw:
        replica_request.text = text
        return replica_request
    if arguments.system is not None:
        replica_request.chat.messages.add(role="system", content=arguments.system)
    replica_request.chat.messages.add(role="user", content=text)
    return replica_request


def _milliseconds(arguments: argparse.Namespace, name: str) -> int | None:
    seconds: float | None = getattr(arguments, name)
    if seconds is None:
        return None
    if not math.isfinite(seconds) or not -request.INT64 <= seconds * 1000 < request.INT64:
        raise ValueError(f"{request.option_name(name)} must be a number of seconds, got {seconds}")
    return math.ceil(seconds * 1000)


async def _stream_from_replica(arguments: argparse.Namespace, replica_request: wire.GenerateRequest) -> int:
    accepted, usage = wire.Accepted(), wire.Usage()
    tls = {"ca": arguments.tls_ca, "certificate": arguments.tls_certificate, "key": arguments.tls_key}
    async with SpecialistClient(arguments.replica, **tls) as client:
        async for event in client.generate(replica_request):
            if arguments.json:
                message = MessageToDict(event, preserving_proto_field_name=True)
                write_output(json.dumps(message, ensure_ascii=False) + "\n")
            elif event.HasField("chunk"):
                write_output(event.chunk.text)
            accepted = event.accepted if event.HasField("accepted") else accepted
            usage = event.usage if event.HasField("usage") else usage
    if not arguments.json:
        write_output("\n")
    if arguments.verbose:
        print(_format_usage(accepted, usage), file=sys.stderr)
    return 0


def _format_usage(accepted: wire.Accepted, usage: wire.Usage) -> str:
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


def _explain_replica_error(error: SpecialistError, address: str) -> str:
    if error.error is None and error.code == grpc.StatusCode.UNAVAILABLE:
        return describe_unreachable(address, str(error), "start one with: octet specialist")
    if error.error is None and error.code == grpc.StatusCode.UNIMPLEMENTED:
        return f"the server at {address} is not a replica; for a router, use --address instead of --replica"
    if error.error is not None and error.error.HasField("retry_after_ms"):
        return f"{error}; retry in {error.error.retry_after_ms / 1000:.1f} s"
    return str(error) or f"the call ended with {error.code.name}"


def add_route_command(commands: Commands) -> None:
    parser = add_parser(commands, "route", "show which specialist would answer a prompt, and why", _ROUTE_HELP)
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    parser.add_argument("--explain", action="store_true", help="print everything that led to the decision")
    parser.add_argument("--json", action="store_true", help="print the receipt as JSON")
    parser.add_argument("--timeout", type=float, default=10.0, metavar="SECONDS", help="default: %(default)s")
    cli.add_connection_options(parser)
    request.add_routing_options(parser.add_argument_group("routing"))
    parser.set_defaults(run=lambda arguments: cli.run_command("route", lambda: _route(arguments)))


def _route(arguments: argparse.Namespace) -> int:
    check_utf8("prompt", arguments.prompt)
    text = read_standard_input() if arguments.prompt is None else arguments.prompt
    options = Options(**request.routing_options(arguments), timeout=arguments.timeout)  # type: ignore[typeddict-item]
    with cli.open_client(arguments) as router:
        try:
            receipt = router.route(text, **options)
        except NoSpecialist as error:
            if error.receipt is not None:
                _print_decision(arguments, error.receipt)
            raise
    _print_decision(arguments, receipt)
    if receipt.decision.primary:
        return 0
    cli.print_error("route", f"no specialist should answer this: {receipt.why}")
    return cli.EXIT_NO_SPECIALIST


def _print_decision(arguments: argparse.Namespace, receipt: Receipt) -> None:
    text = explain_decision(receipt) if arguments.explain else format_decision(receipt.decision)
    cli.print_result(arguments, receipt.to_dict(), text)


def add_cancel_command(commands: Commands) -> None:
    parser = add_parser(commands, "cancel", "cancel a running request", _CANCEL_HELP)
    parser.add_argument("request_id", metavar="ID", help="id of the request")
    parser.add_argument("--json", action="store_true", help="print the id of the cancelled request as JSON")
    cli.add_connection_options(parser)
    parser.set_defaults(run=lambda arguments: cli.run_command("cancel", lambda: _cancel(arguments)))


def _cancel(arguments: argparse.Namespace) -> int:
    with cli.open_client(arguments) as router:
        router.cancel(arguments.request_id)
    if arguments.json:
        cli.print_json({"request_id": arguments.request_id, "cancelled": True})
    return 0
