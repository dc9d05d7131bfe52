"""`octet chat` on the command line."""

import argparse
import sys
from typing import cast

from octet.chat.chat import Chat
from octet.chat.lines import history_file, piped, remembering, typed
from octet.chat.screen import JsonScreen, Screen, TextScreen
from octet.chat.slash import COMMANDS
from octet.command_line import EXIT_STATUS, add_address, client, ended
from octet.sampling_options import NUMBERS, add_sampling, check_integers
from octet.sdk.options import Options
from octet.text_io import check_text
from octet.timeout_options import TIMEOUTS, add_timeouts

_DESCRIPTION = f"""\
Talk with the ensemble, turn after turn. Each answer comes as it is generated;
one line after it says who gave it, how sure the router was and why, how much of
the prompt was still in memory, and how fast it came.

{chr(10).join(f"  {command.usage:<20} {command.about}" for command in COMMANDS.values())}

Ctrl-C cuts an answer short, and what came of it is kept; Ctrl-D leaves. A line
that ends in \\ goes on; one that is to begin with / begins with //.

When standard input is no terminal, each of its lines is a turn, and the first
that fails ends it. With --json every event is a line of JSON.

{EXIT_STATUS}"""
_INTEGERS = ("top_k", "seed", "max_tokens", "min_tokens", "context_size", "priority", "max_experts")


def add_chat_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "chat",
        description=_DESCRIPTION,
        help="talk, turn after turn, and see who answers",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_address(parser)
    parser.add_argument("--system", metavar="TEXT", help="a system message before everything")
    parser.add_argument("--session", metavar="ID", help="of the conversation; default: one is made")
    parser.add_argument("--adapter", action="append", default=[], metavar="NAME", help="repeatable, in order")
    parser.add_argument("--intent", metavar="NAME", help="what the requests are")
    parser.add_argument(
        "--force", action="append", default=[], metavar="NAME", help="only these may answer; repeatable"
    )
    parser.add_argument("--exclude", action="append", default=[], metavar="NAME", help="repeatable")
    parser.add_argument("--max-experts", type=int, metavar="N", help="specialist and adapters together, at most")
    add_sampling(parser)
    parser.add_argument("--priority", type=int, metavar="N", help="0 to 9, higher is served first")
    add_timeouts(parser, "each turn")
    parser.add_argument("--json", action="store_true", help="every event as a line of JSON instead of the text")
    parser.add_argument("--no-history", action="store_true", help="remember nothing of what is typed here")
    parser.set_defaults(run=lambda arguments: ended("chat", lambda: _chat(arguments)))


def _chat(arguments: argparse.Namespace) -> int:
    check_integers(arguments)
    for name in ("system", "session", "stop", "adapter", "intent", "force", "exclude"):
        check_text(name, getattr(arguments, name))
    is_watched = sys.stdin.isatty()
    at_prompt = is_watched and sys.stdout.isatty() and not arguments.json
    screen: Screen = JsonScreen() if arguments.json else TextScreen()
    with client(arguments) as router:
        conversation = router.conversation(arguments.session, arguments.system, **_options(arguments))
        chat = Chat(conversation, screen, goes_on=is_watched)
        if not at_prompt:
            return chat.run(piped())
        screen.say(f"octet chat with {arguments.address}: /help tells more, Ctrl-D leaves")
        with remembering(None if arguments.no_history else history_file()):
            return chat.run(typed())


def _options(arguments: argparse.Namespace) -> Options:
    given = {name: getattr(arguments, name) for name in (*NUMBERS, *_INTEGERS, *TIMEOUTS, "intent", "exclude", "stop")}
    given |= {"ignore_eos": arguments.ignore_eos, "adapters": arguments.adapter, "force": arguments.force or None}
    return cast(Options, given)
