"""Options of commands that send a request: routing, sampling, timeouts, the form of the answer."""

import argparse
import json
from typing import Any

from octet.client.options import Choice, Json, Options, Regex, Structure
from octet.terminal import STANDARD_INPUT, check_utf8, read_standard_input, read_text

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty")
FLOAT_OPTIONS = ("temperature", "top_p", "min_p", "typical_p", *_PENALTIES)
INTEGER_OPTIONS = ("max_tokens", "min_tokens", "top_k", "seed", "priority", "context_size", "max_experts")
TIMEOUT_OPTIONS = ("timeout", "first_token_timeout")
_ROUTING_OPTIONS = ("intent", "force", "exclude", "template", "max_experts")
_STRUCTURE_OPTIONS = ("json_object", "json_schema", "regex", "choice")
INT64 = 2**63


def option_name(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def add_request_options(parser: argparse.ArgumentParser, *, is_streamed: bool = True) -> None:
    about = "adapter to apply; repeatable, in order"
    parser.add_argument("--system", metavar="TEXT", help="system message before the prompt")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME", help=about)
    add_sampling_options(parser)
    group = parser.add_argument_group("form of the answer (at most one)")
    group.add_argument("--json-object", action="store_true", help="any JSON object")
    group.add_argument("--json-schema", metavar="FILE", help="JSON that matches this schema; - for standard input")
    group.add_argument("--regex", metavar="PATTERN", help="text that matches the pattern in full")
    group.add_argument("--choice", action="append", default=[], metavar="TEXT", help="one of these strings; repeatable")
    add_timing_options(parser, is_streamed=is_streamed)
    add_routing_options(parser.add_argument_group("routing"))
    parser.add_argument("--session", metavar="ID", help="conversation id; prefers a replica that holds its prefix")
    parser.add_argument("--user", metavar="ID", help="end user on whose behalf the request is made")
    about = "check the whole answer with its task's verifier; the receipt carries the result"
    parser.add_argument("--validate", action="store_true", default=None, help=about)


def add_routing_options(group: "argparse._ActionsContainer", *, has_prompt: bool = True) -> None:
    group.add_argument("--intent", metavar="NAME", help="an intent of the ensemble's configuration")
    for name, about in (("--force", "allow only this specialist"), ("--exclude", "exclude this specialist")):
        group.add_argument(name, action="append", default=[], metavar="NAME", help=f"{about}; repeatable")
    if has_prompt:
        group.add_argument("--template", metavar="TEXT", help="prompt template with {prompt} and {body}")
        group.add_argument("--body", metavar="FILE", help="text that the prompt is about; - for standard input")
    group.add_argument("--max-experts", type=int, metavar="N", help="at most N specialists and adapters in total")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    group.add_argument("--max-tokens", type=int, metavar="N", help="maximum tokens in the answer")
    group.add_argument("--min-tokens", type=int, metavar="N", help="minimum tokens in the answer")
    for name in FLOAT_OPTIONS:
        group.add_argument(option_name(name), type=float, metavar="X")
    group.add_argument("--top-k", type=int, metavar="N")
    group.add_argument("--seed", type=int, metavar="N")
    group.add_argument("--stop", action="append", default=[], metavar="TEXT", help="stop string; repeatable")
    group.add_argument("--ignore-eos", action="store_true", help="do not stop before --max-tokens")
    group.add_argument("--context-size", type=int, metavar="N", help="maximum tokens in prompt and answer together")


def add_timing_options(
    parser: argparse.ArgumentParser, subject: str = "the whole answer", *, is_streamed: bool = True
) -> None:
    """`is_streamed` means that the caller waits for the first token."""
    parser.add_argument("--priority", type=int, metavar="N", help="0 to 9; higher priorities are served first")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=f"time limit for {subject}")
    if is_streamed:
        about = "cancel if no token has arrived by then"
        parser.add_argument("--first-token-timeout", type=float, metavar="SECONDS", help=about)
    else:
        parser.set_defaults(first_token_timeout=None)


def check_request_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Check for options of `add_request_options` that exclude each other."""
    if arguments.system is not None and not (arguments.template is None and arguments.body is None):
        parser.error("--system makes the prompt a conversation, which takes neither --template nor --body")
    if arguments.prompt is None and arguments.body == STANDARD_INPUT:
        parser.error("--body - reads standard input: give the prompt as an argument")
    given = [option_name(name) for name in _STRUCTURE_OPTIONS if getattr(arguments, name) not in (None, False, [])]
    if len(given) > 1:
        parser.error(f"{given[0]} and {given[1]} cannot be combined: an answer has only one form")
    if arguments.json_schema == STANDARD_INPUT and (arguments.prompt is None or arguments.body == STANDARD_INPUT):
        parser.error("--json-schema - reads standard input: give prompt and body in another way")


def check_integers(arguments: argparse.Namespace) -> None:
    """Raises ValueError for numbers beyond int64; the server checks the ranges."""
    for name in INTEGER_OPTIONS:
        value = getattr(arguments, name)
        if value is not None and not -INT64 <= value < INT64:
            raise ValueError(f"{option_name(name)} must be in [{-INT64}, {INT64 - 1}], got {value!s:.40}")


def read_prompt(arguments: argparse.Namespace) -> str:
    """Return the argument, or standard input. Raises ValueError for options that cannot be sent."""
    check_integers(arguments)
    for name in ("prompt", "system", "stop", "adapter"):
        check_utf8(name, getattr(arguments, name))
    return read_standard_input() if arguments.prompt is None else arguments.prompt


def request_options(arguments: argparse.Namespace, text: str) -> tuple[str | None, Options]:
    """Return the prompt, or None if it is part of a conversation; and the options of `add_request_options`."""
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
    """Return None if no structure is requested. Raises ValueError or OSError for an option that cannot be used."""
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
        raise ValueError(f"--json-schema {source} must hold a JSON object, got {type(schema).__name__}")
    return Json(schema)
