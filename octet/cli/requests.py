"""`octet generate`, `octet route` and `octet cancel`; and the options of all commands that send a request."""

import argparse
import asyncio
import json
import math
import sys
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict

from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_flag, add_option
from octet.cli.receipts import describe_cut, explain_decision, format_decision, format_receipt, format_tokens
from octet.client.errors import DeadlineExceeded, NoSpecialist, OctetError, describe_unreachable, error_class
from octet.client.options import Choice, Json, Options, Regex, Structure
from octet.client.receipts import Receipt, Usage
from octet.client.replica import SpecialistClient, SpecialistError
from octet.client.request import build_message
from octet.terminal import STANDARD_INPUT, check_utf8, read_standard_input, read_text, write_output
from octet.v1 import specialist_pb2 as wire

_GENERATE_HELP = """
The router chooses the specialist. Without a prompt argument, standard input is
the prompt."""
_ROUTE_HELP = """
Prints the specialist, its probability if the classifier decided, and the reason.
Nothing is generated."""
_ROUTER_ONLY = ("intent", "force", "exclude", "template", "body", "session", "user", "max_experts", "validate")
_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
FLOAT_OPTIONS = ("temperature", "top_p", "min_p", "typical_p", *_PENALTIES)
_LENGTHS = ("max_tokens", "min_tokens", "context_size", "draft_window")
INTEGER_OPTIONS = (*_LENGTHS, "top_k", "seed", "priority", "max_experts")
TIMEOUT_OPTIONS = ("timeout", "first_token_timeout")
_ROUTING_OPTIONS = ("intent", "force", "exclude", "template", "max_experts")
_STRUCTURE_OPTIONS = ("json_object", "json_schema", "regex", "choice")
_LISTED: dict[str, Any] = {"action": "append", "default": []}
_INT64 = 2**63


def option_name(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def add_request_options(parser: argparse.ArgumentParser, *, is_streamed: bool = True) -> None:
    option = partial(add_option, parser)
    option("--system", "TEXT", "system message before the prompt")
    option("--adapter", "NAME", "adapter to apply; repeatable, in order", **_LISTED)
    add_sampling_options(parser)
    form = parser.add_argument_group("form of the answer (at most one)")
    add_flag(form, "--json-object", "any JSON object")
    add_option(form, "--json-schema", "FILE", "JSON that matches this schema; - for standard input")
    add_option(form, "--regex", "PATTERN", "text that matches the pattern in full")
    add_option(form, "--choice", "TEXT", "one of these strings; repeatable", **_LISTED)
    add_timing_options(parser, is_streamed=is_streamed)
    add_routing_options(parser.add_argument_group("routing"))
    option("--session", "ID", "conversation id; the router prefers the replica that has the conversation cached")
    option("--user", "ID", "end user on whose behalf the request is made")
    about = "verify the whole answer and put the verdict on the receipt"
    parser.add_argument("--validate", action="store_true", default=None, help=about)


def add_routing_options(group: Any, *, has_prompt: bool = True) -> None:
    option = partial(add_option, group)
    option("--intent", "NAME", "an intent of the ensemble's configuration")
    option("--force", "NAME", "allow only this specialist; repeatable", **_LISTED)
    option("--exclude", "NAME", "exclude this specialist; repeatable", **_LISTED)
    if has_prompt:
        option("--template", "TEXT", "prompt template with {prompt} and {body}")
        option("--body", "FILE", "text that the prompt is about; - for standard input")
    option("--max-experts", "N", "at most N specialists and adapters in total", int)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    option = partial(add_option, group)
    option("--max-tokens", "N", "maximum tokens in the answer", int)
    option("--min-tokens", "N", "minimum tokens in the answer", int)
    for name in FLOAT_OPTIONS:
        option(option_name(name), "X", parse=float)
    option("--top-k", "N", parse=int)
    option("--seed", "N", parse=int)
    option("--stop", "TEXT", "stop string; repeatable", **_LISTED)
    add_flag(group, "--ignore-eos", "do not stop before --max-tokens")
    option("--context-size", "N", "maximum tokens in prompt and answer together", int)
    option("--draft-window", "N", "most tokens that a step guesses ahead; 0 for none", int)


def add_timing_options(parser: Any, subject: str = "the whole answer", *, is_streamed: bool = True) -> None:
    """Add options for priority and timeouts; `--first-token-timeout` only if the answer `is_streamed`."""
    add_option(parser, "--priority", "N", "0 to 9; higher priorities are served first", int)
    add_option(parser, "--timeout", "SECONDS", f"time limit for {subject}", float)
    if is_streamed:
        add_option(parser, "--first-token-timeout", "SECONDS", "cancel if the first token takes longer", float)
    else:
        parser.set_defaults(first_token_timeout=None)


def _check_exclusive(arguments: argparse.Namespace) -> None:
    """Raises ValueError for options of `add_request_options` that cannot be combined."""
    if arguments.system is not None and not (arguments.template is None and arguments.body is None):
        raise ValueError("--system turns the prompt into a conversation, which takes neither --template nor --body")
    if arguments.prompt is None and arguments.body == STANDARD_INPUT:
        raise ValueError("--body - reads standard input: give the prompt as an argument")
    given = [option_name(name) for name in _STRUCTURE_OPTIONS if getattr(arguments, name) not in (None, False, [])]
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} cannot be combined: an answer has only one form")
    if arguments.json_schema == STANDARD_INPUT and (arguments.prompt is None or arguments.body == STANDARD_INPUT):
        raise ValueError("--json-schema - reads standard input: give the prompt and the body in another way")


def check_integers(arguments: argparse.Namespace) -> None:
    """Raises ValueError for numbers beyond int64; the server checks the allowed ranges."""
    for name in INTEGER_OPTIONS:
        value = getattr(arguments, name)
        if value is not None and not -_INT64 <= value < _INT64:
            raise ValueError(f"{option_name(name)} must be in [{-_INT64}, {_INT64 - 1}], got {value!s:.40}")


def read_prompt(arguments: argparse.Namespace) -> str:
    """Check the options and return the prompt, from the argument or standard input. Raises ValueError."""
    _check_exclusive(arguments)
    check_integers(arguments)
    for name in ("prompt", "system", "stop", "adapter"):
        check_utf8(name, getattr(arguments, name))
    return read_standard_input() if arguments.prompt is None else arguments.prompt


def request_options(arguments: argparse.Namespace, text: str) -> tuple[str | None, Options]:
    """Return prompt and options. With `--system`, the prompt is None and its text is in the option `messages`."""
    names = (*FLOAT_OPTIONS, *INTEGER_OPTIONS, *TIMEOUT_OPTIONS, "validate", "stop", "ignore_eos", "session", "user")
    options = routing_options(arguments) | {name: getattr(arguments, name) for name in (*names, "request_id")}
    options |= {"adapters": arguments.adapter, "structure": read_structure(arguments)}
    if arguments.system is None:
        return text, Options(**options)  # type: ignore[typeddict-item]  # checked by the client
    messages = [{"role": "system", "content": arguments.system}, {"role": "user", "content": text}]
    return None, Options(**options, messages=messages)  # type: ignore[typeddict-item]


def routing_options(arguments: argparse.Namespace) -> dict[str, Any]:
    body = None if arguments.body is None else read_text(arguments.body)
    return {**{name: getattr(arguments, name) for name in _ROUTING_OPTIONS}, "body": body}


def read_structure(arguments: argparse.Namespace) -> Structure | None:
    """Return the requested form of the answer, or None. Raises ValueError or OSError for an unusable option."""
    for name in ("regex", "choice"):
        check_utf8(name, getattr(arguments, name))
    if arguments.json_object:
        return Json()
    if arguments.regex is not None:
        return Regex(arguments.regex)
    source = arguments.json_schema
    if source is None:
        return Choice(*arguments.choice) if arguments.choice else None
    try:
        schema = json.loads(read_text(source))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"--json-schema {source} is not valid JSON: {error}") from None
    if not isinstance(schema, dict):
        raise ValueError(f"--json-schema {source} must contain a JSON object, got {type(schema).__name__}")
    return Json(schema)


def add_generate_command(commands: Commands) -> None:
    about = "send a prompt and print the answer as it streams"
    parser = cli.add_command(commands, "generate", about, _run_generate, _GENERATE_HELP, json_help=cli.EVENTS_HELP)
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    add_request_options(parser)
    add_option(parser, "--request-id", "ID", "your own id, to cancel the request or find its receipt")
    add_flag(parser, "--verbose", "print the receipt to standard error")
    replica = parser.add_argument_group("bypassing the router")
    add_option(replica, "--replica", "HOST:PORT", "send the prompt to this replica instead")
    add_flag(replica, "--raw", "continue the prompt without a chat template")


def _run_generate(arguments: argparse.Namespace) -> int:
    if arguments.raw and arguments.system is not None:
        raise ValueError("--system needs the chat template, which --raw leaves out")
    if arguments.raw and arguments.replica is None:
        raise ValueError("--raw needs --replica: the router always applies the chat template")
    for name in _ROUTER_ONLY:
        if arguments.replica is not None and getattr(arguments, name) not in (None, []):
            raise ValueError(f"{option_name(name)} is for the router, which --replica bypasses")
    generate = _generate if arguments.replica is None else _generate_on_replica
    return generate(arguments, read_prompt(arguments))


def _generate(arguments: argparse.Namespace, text: str) -> int:
    prompt, options = request_options(arguments, text)
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
            if not answer.text or arguments.json:
                raise
            more = "; --timeout SECONDS allows more time" if isinstance(error, DeadlineExceeded) else ""
            raise cli.reword_error(
                error, f"{error}; the answer above is incomplete{more}", retry_after=error.retry_after
            ) from None
        if not arguments.json:
            write_output("\n")
            print_cut(answer.receipt)
        _print_receipt(arguments, answer.receipt)
    return 0


def print_cut(receipt: Receipt | None) -> None:
    """Tell the user on standard error, so that standard output holds only the answer."""
    if receipt is not None and (cut := describe_cut(receipt)):
        print(cut, file=sys.stderr)


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
        return cli.exit_status(error_class(error.code, error.error.reason if error.error else 0))


def _replica_request(arguments: argparse.Namespace, text: str) -> wire.GenerateRequest:
    names = ("request_id", "seed", "max_tokens", "min_tokens", "stop", "ignore_eos", "context_size", "draft_window")
    fields: dict[str, Any] = {name: getattr(arguments, name) for name in (*names, "priority")}
    fields |= {f"{name}_ms": _milliseconds(arguments, name) for name in TIMEOUT_OPTIONS}
    sampling = {name: getattr(arguments, name) for name in ("top_k", *FLOAT_OPTIONS)}
    fields |= {"adapters": arguments.adapter, "sampling": wire.Sampling(**sampling)}
    turns = {"system": arguments.system, "user": text}
    messages = [wire.Message(role=role, content=content) for role, content in turns.items() if content is not None]
    fields |= {"text": text} if arguments.raw else {"chat": wire.Chat(messages=messages)}
    fields["structure"] = read_structure(arguments)
    message: wire.GenerateRequest = build_message(wire.GenerateRequest, fields)
    return message


def _milliseconds(arguments: argparse.Namespace, name: str) -> int | None:
    seconds: float | None = getattr(arguments, name)
    if seconds is None:
        return None
    if not math.isfinite(seconds) or not -_INT64 <= seconds * 1000 < _INT64:
        raise ValueError(f"{option_name(name)} must be a number of seconds below {_INT64 // 1000:,}, got {seconds}")
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
    if usage.finish_reason == wire.FINISH_REASON_LENGTH and not arguments.json:
        limit = f"max_tokens {accepted.max_tokens:,}; --max-tokens N raises it, up to the end of the context"
        print(f"The answer was cut at its length: {limit}.", file=sys.stderr)
    if arguments.verbose:
        print(_format_usage(accepted, usage), file=sys.stderr)
    return 0


def _format_usage(accepted: wire.Accepted, usage: wire.Usage) -> str:
    lane, timings = accepted.lane, usage.timings
    adapters = "".join(f" + {digest[:12]}" for digest in lane.adapter_digests)
    answered_by = f"{accepted.request_id}: {lane.specialist} {lane.revision[:12]}{adapters}"
    first = f"first token after {timings.queued + timings.prefill:.3f} s"
    return f"{answered_by}; {format_tokens(Usage.from_wire(usage))}; {first}"


def _explain_replica_error(error: SpecialistError, address: str) -> str:
    if error.error is None and error.code == grpc.StatusCode.UNAVAILABLE:
        return describe_unreachable(address, str(error), "start one with: octet specialist")
    if error.error is None and error.code == grpc.StatusCode.UNIMPLEMENTED:
        return f"the server at {address} is not a replica; for a router, use --address instead of --replica"
    if error.error is not None and error.error.HasField("retry_after_ms"):
        return f"{error}; retry in {error.error.retry_after_ms / 1000:.1f} s"
    return str(error) or f"the call ended with {error.code.name}"


def add_route_command(commands: Commands) -> None:
    about = "show which specialist would answer a prompt, and why"
    parser = cli.add_command(commands, "route", about, _route, _ROUTE_HELP)
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    add_flag(parser, "--explain", "print everything that led to the decision")
    add_option(parser, "--timeout", "SECONDS", "default: %(default)s", float, default=10.0)
    add_routing_options(parser.add_argument_group("routing"))


def _route(arguments: argparse.Namespace) -> int:
    text = read_standard_input() if arguments.prompt is None else arguments.prompt
    options = Options(**routing_options(arguments), timeout=arguments.timeout)  # type: ignore[typeddict-item]
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
    more = "\nIts caller receives a cancellation error."
    parser = cli.add_command(commands, "cancel", "cancel a running request", _cancel, more)
    add_option(parser, "request_id", "ID", "id of the request")


def _cancel(arguments: argparse.Namespace) -> int:
    with cli.open_client(arguments) as router:
        router.cancel(arguments.request_id)
    if arguments.json:
        cli.print_json({"request_id": arguments.request_id, "cancelled": True})
    return 0
