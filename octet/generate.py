"""`octet generate`: ask, and see the answer as it comes."""

import argparse
import json
import sys
from typing import Any

from octet.ask_replica import ask_replica
from octet.command_line import EXIT_STATUS, add_address, client, ended
from octet.sampling_options import NUMBERS, add_sampling, check_integers
from octet.sdk.client import Stream
from octet.sdk.errors import OctetError
from octet.sdk.options import Options
from octet.sdk.receipt import Receipt
from octet.shown import shown
from octet.structure_options import add_structure, check_structure, structure_from
from octet.text_io import STANDARD_INPUT, check_text, standard_input, text_of, write
from octet.timeout_options import TIMEOUTS, add_timeouts

_DESCRIPTION = f"""\
Send a prompt to the router and write the answer of the specialist it picks to
standard output as it comes. Without a prompt it is read from standard input.

{EXIT_STATUS}"""
_FOR_THE_ROUTER = ("intent", "force", "exclude", "template", "body", "session", "user", "max_experts", "validate")


def add_generate_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "generate",
        description=_DESCRIPTION,
        help="ask, and see the answer as it comes",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("prompt", nargs="?", help="default: standard input")
    add_address(parser)
    add_request(parser)
    parser.add_argument("--request-id", metavar="ID", help="yours, to cancel it by or to find its receipt")
    parser.add_argument("--json", action="store_true", help="every event as a line of JSON instead of the text")
    parser.add_argument("--verbose", action="store_true", help="the receipt on standard error: who answered, and why")
    replica = parser.add_argument_group("past the router")
    replica.add_argument("--replica", metavar="HOST:PORT", help="ask this one replica instead")
    replica.add_argument("--raw", action="store_true", help="no chat template: continue the prompt as it is")
    parser.set_defaults(run=lambda arguments: _run(parser, arguments))


def add_request(parser: argparse.ArgumentParser, *, is_awaited: bool = True) -> None:
    """All that may be asked for beside the prompt."""
    parser.add_argument("--system", metavar="TEXT", help="a system message before the prompt")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME", help="repeatable, in order")
    add_sampling(parser)
    add_structure(parser)
    parser.add_argument("--priority", type=int, metavar="N", help="0 to 9, higher is served first")
    add_timeouts(parser, is_awaited=is_awaited)
    add_routing(parser)
    parser.add_argument("--session", metavar="ID", help="of a conversation: goes where its beginning is in memory")
    parser.add_argument("--user", metavar="ID", help="whoever the request is for")
    parser.add_argument(
        "--validate",
        action="store_true",
        default=None,
        help="have the whole answer checked by its task's verifier; the receipt says what came of it",
    )


def add_routing(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is asked, and who may answer")
    group.add_argument("--intent", metavar="NAME", help="what the request is, as the ensemble's configuration calls it")
    group.add_argument("--force", action="append", default=[], metavar="NAME", help="only these may answer; repeatable")
    group.add_argument("--exclude", action="append", default=[], metavar="NAME", help="repeatable")
    group.add_argument("--template", metavar="TEXT", help="with {prompt} and {body} in it")
    group.add_argument("--body", metavar="FILE", help="what the prompt is about; - for standard input")
    group.add_argument("--max-experts", type=int, metavar="N", help="specialist and adapters together, at most")


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    _check_combination(parser, arguments)
    return ended("generate", lambda: _ask(arguments))


def _check_combination(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if arguments.raw and arguments.system is not None:
        parser.error("--system needs the chat template, which --raw leaves out")
    if arguments.raw and arguments.replica is None:
        parser.error("--raw is for one replica: name it with --replica")
    for name in _FOR_THE_ROUTER:
        if arguments.replica is not None and getattr(arguments, name) not in (None, []):
            parser.error(f"--{name.replace('_', '-')} is for the router, which --replica leaves out")
    check_request(parser, arguments)


def check_request(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Options of `add_request` that do not go together."""
    if arguments.system is not None and not (arguments.template is None and arguments.body is None):
        parser.error("--system makes a conversation of the prompt, which takes neither --template nor --body")
    if arguments.prompt is None and arguments.body == STANDARD_INPUT:
        parser.error("--body - takes standard input: give the prompt as an argument")
    check_structure(parser, arguments)


def _ask(arguments: argparse.Namespace) -> int:
    text = prompt_of(arguments)
    return _ask_router(arguments, text) if arguments.replica is None else ask_replica(arguments, text)


def prompt_of(arguments: argparse.Namespace) -> str:
    """As it was given, or from standard input. Raises ValueError for what cannot be sent."""
    check_integers(arguments)
    for name in ("prompt", "system", "stop", "adapter"):
        check_text(name, getattr(arguments, name))
    return standard_input() if arguments.prompt is None else arguments.prompt


def _ask_router(arguments: argparse.Namespace, text: str) -> int:
    prompt, options = request_of(arguments, text)
    with client(arguments) as router, router.stream(prompt, **options) as answer:
        try:
            _show(answer, as_json=arguments.json)
        except OctetError as error:
            if answer.text and not arguments.json:
                write("\n")
            if error.receipt is not None:
                _conclude(arguments, error.receipt)
            raise
        if not arguments.json:
            write("\n")
        _conclude(arguments, answer.receipt)
    return 0


def request_of(arguments: argparse.Namespace, text: str) -> tuple[str | None, Options]:
    """The prompt, unless it is part of a conversation, and the options that `add_request` adds."""
    options = routing(arguments)
    for name in (*NUMBERS, "top_k", "seed", "max_tokens", "min_tokens", "context_size", "priority", *TIMEOUTS):
        options[name] = getattr(arguments, name)
    options["validate"] = arguments.validate
    options |= {"stop": arguments.stop, "ignore_eos": arguments.ignore_eos, "adapters": arguments.adapter}
    options["structure"] = structure_from(arguments)
    options |= {"session": arguments.session, "user": arguments.user, "request_id": arguments.request_id}
    if arguments.system is None:
        return text, Options(**options)  # type: ignore[typeddict-item]  # as they come from the command line
    messages = [{"role": "system", "content": arguments.system}, {"role": "user", "content": text}]
    return None, Options(**options, messages=messages)  # type: ignore[typeddict-item]


def routing(arguments: argparse.Namespace) -> dict[str, Any]:
    """Options that `add_routing` adds."""
    body = None if arguments.body is None else text_of(arguments.body)
    given = {name: getattr(arguments, name) for name in ("intent", "force", "exclude", "template", "max_experts")}
    return {**given, "body": body}


def _show(answer: Stream, *, as_json: bool) -> None:
    is_first = True
    for chunk in answer:
        if not as_json:
            write(chunk.text)
            continue
        if is_first:
            _write_json({"routed": answer.receipt.to_dict()})
            is_first = False
        _write_json({"chunk": {"text": chunk.text, "token_ids": chunk.token_ids}})


def _conclude(arguments: argparse.Namespace, receipt: Receipt) -> None:
    if arguments.json:
        _write_json({"receipt": receipt.to_dict()})
    if arguments.verbose:
        print(shown(receipt), file=sys.stderr)


def _write_json(event: dict[str, Any]) -> None:
    write(json.dumps(event, ensure_ascii=False) + "\n")
