"""`octet chat`: a conversation in a terminal, or through a pipe."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from octet.cli import requests as request
from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_flag, add_option
from octet.cli.receipts import format_receipt
from octet.client.answer import Chunk
from octet.client.clients import Stream
from octet.client.conversation import Conversation
from octet.client.errors import NoSpecialist, OctetError
from octet.client.options import Options
from octet.client.receipts import Receipt
from octet.limits import MAX_PROMPT_BYTES
from octet.terminal import check_utf8, format_error, write_output

PROMPT, _CONTINUATION_PROMPT = "> ", "… "
_MAX_HISTORY = 1000
_NONE_WORD = "-"
_KEY_HELP = (
    "Ctrl-C cuts an answer short, Ctrl-D exits. A line that ends in \\ continues; // sends a line that begins with /."
)
_CONTROL_CHARACTERS = {
    code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"
}
_DIM, _RESET = "\033[2m", "\033[0m"


class ChatTextOutput:
    """Prints the answer to standard output, and everything else to standard error."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        is_plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._is_dim = sys.stderr.isatty() and not is_plain

    def routed(self, receipt: Receipt) -> None:
        """Called before the first chunk; the text output prints nothing."""

    def chunk(self, chunk: Chunk) -> None:
        write_output(chunk.text.translate(_CONTROL_CHARACTERS) if self._is_terminal else chunk.text)

    def completed(self, receipt: Receipt) -> None:
        self._print_dim(format_answer_line(receipt))
        request.print_cut(receipt)

    def cut_short(self, *, is_kept: bool) -> None:
        """Report that the user has interrupted the answer."""
        self._print_dim("Cut short; the text so far is kept." if is_kept else "Cancelled before any text; not kept.")

    def failed(self, error: OctetError, *, has_text: bool) -> None:
        if has_text:
            write_output("\n")
        hint = "; in a chat, use /specialist NAME" if isinstance(error, NoSpecialist) else ""
        cli.print_error("chat", f"{error}{hint}" + ("; this turn is not kept" if has_text else ""))

    def explain(self, receipt: Receipt) -> None:
        self.say(format_receipt(receipt))

    def say(self, message: str) -> None:
        """Print any text that is not an answer."""
        print(message.translate(_CONTROL_CHARACTERS), file=sys.stderr)

    def _print_dim(self, message: str) -> None:
        """Print a line about the answer below the answer."""
        write_output("\n")
        line = message.translate(_CONTROL_CHARACTERS).replace("\n", " ")
        print(f"{_DIM}{line}{_RESET}" if self._is_dim else line, file=sys.stderr)


class ChatJsonOutput(ChatTextOutput):
    """Prints the same events as `octet generate --json`, each with the number of its turn."""

    _turn = 1

    def routed(self, receipt: Receipt) -> None:
        self._print({"routed": receipt.to_dict()})

    def chunk(self, chunk: Chunk) -> None:
        self._print({"chunk": {"text": chunk.text, "token_ids": chunk.token_ids}})

    def completed(self, receipt: Receipt) -> None:
        self._print({"receipt": receipt.to_dict()}, ends_turn=True)

    def cut_short(self, *, is_kept: bool) -> None:
        self._print({"cut": {"kept": is_kept}}, ends_turn=True)

    def failed(self, error: OctetError, *, has_text: bool) -> None:
        fields = {"kind": type(error).__name__, "message": str(error), "reason": error.reason}
        self._print({"error": {**fields, "status": cli.exit_status(type(error))}}, ends_turn=True)
        cli.print_error("chat", str(error))

    def explain(self, receipt: Receipt) -> None:
        cli.print_json({"why": receipt.to_dict()})

    def say(self, message: str) -> None:
        print(message, file=sys.stderr)

    def _print(self, event: dict[str, Any], *, ends_turn: bool = False) -> None:
        cli.print_json({"turn": self._turn, **event})
        self._turn += ends_turn


def format_answer_line(receipt: Receipt) -> str:
    confidence = "" if receipt.decision.confidence is None else f" {receipt.decision.confidence:.2f}"
    parts = [f"{receipt.specialist or 'no specialist'}{confidence}: {receipt.why}"]
    usage = receipt.usage
    if usage is not None:
        parts.append(f"{usage.cache_hit_tokens} of {usage.prompt_tokens} prompt tokens cached")
        parts += [] if usage.tokens_per_second is None else [f"{usage.tokens_per_second:.1f} tok/s"]
    return " · ".join(parts)


@dataclass(slots=True)
class ChatSession:
    """A chat: runs turns and slash commands on one conversation."""

    conversation: Conversation
    output: ChatTextOutput
    goes_on: bool  # whether the chat continues after a failed or interrupted turn, because a person can try again
    is_over: bool = False

    def run(self, lines: Iterable[str]) -> int:
        """Run each line as a turn or command; return the exit status. Unless `goes_on`, stop at an error or Ctrl-C."""
        for line in lines:
            if line.startswith("/") and not line.startswith("//"):
                status = 0 if run_slash_command(self, line) else cli.EXIT_INVALID
            else:
                status = self._run_turn(line.removeprefix("/") if line.startswith("//") else line)
            if self.is_over:
                return 0
            if status != 0 and not self.goes_on:
                return status
        return 0

    def _run_turn(self, text: str) -> int:
        if not text.strip():
            return 0
        try:
            answer = self.conversation.stream(text)
            with cli.cancel_on_interrupt(answer.cancel) as interrupt, answer:
                return self._print_answer(text, answer, interrupt)
        except OctetError as error:  # raised before the request was sent
            self.output.failed(error, has_text=False)
            return cli.exit_status(type(error))

    def _print_answer(self, text: str, answer: Stream, interrupt: cli.Interrupt) -> int:
        try:
            for number, chunk in enumerate(answer):
                if number == 0:
                    self.output.routed(answer.receipt)
                self.output.chunk(chunk)
        except OctetError as error:
            if interrupt.pressed:
                return self._cut_short(text, answer.text)
            self.output.failed(error, has_text=bool(answer.text))
            return cli.exit_status(type(error))
        self.output.completed(answer.receipt)
        return 0

    def _cut_short(self, text: str, received: str) -> int:
        """Handle Ctrl-C: keep the text received so far. Unless `goes_on`, raise KeyboardInterrupt instead."""
        if not self.goes_on:
            raise KeyboardInterrupt
        if received:
            self.conversation.add(text, received)
        self.output.cut_short(is_kept=bool(received))
        return 0


class SlashCommand(NamedTuple):
    usage: str
    about: str
    run: Callable[[ChatSession, str], str]  # returns a message, or "" for none


def run_slash_command(session: ChatSession, line: str) -> bool:
    """Run the command if it exists. Return whether it exists."""
    name, _, rest = line[1:].partition(" ")
    command = SLASH_COMMANDS.get(name)
    unknown = f"There is no /{name[:40]}. /help lists the commands; // sends a line that begins with /."
    message = unknown if command is None else command.run(session, rest.strip())
    if message:
        session.output.say(message)
    return command is not None


def _format_slash_commands(indent: str = "") -> str:
    width = max(len(command.usage) for command in SLASH_COMMANDS.values())
    return "\n".join(f"{indent}{each.usage:<{width}}  {each.about}" for each in SLASH_COMMANDS.values())


def _reset(session: ChatSession, _: str) -> str:
    session.conversation.reset()
    return "Started a new conversation."


def _system(session: ChatSession, text: str) -> str:
    if text:
        session.conversation.system = None if text == _NONE_WORD else text
    system = session.conversation.system
    return "No system message." if system is None else f"System message: {system}"


def _why(session: ChatSession, _: str) -> str:
    if session.conversation.receipt is None:
        return "There is no answer yet."
    session.output.explain(session.conversation.receipt)
    return ""


def _save(session: ChatSession, name: str) -> str:
    if not name:
        return "Usage: /save FILE"
    conversation = session.conversation
    saved = {"session_id": conversation.session_id, "messages": list(conversation.messages)}
    try:
        with Path(name).expanduser().open("x", encoding="utf-8") as file:
            file.write(json.dumps(saved, ensure_ascii=False, indent=2) + "\n")
    except FileExistsError:
        return f"{name} exists already: choose another name."
    except (OSError, RuntimeError, ValueError) as error:
        return f"Could not save the conversation: {format_error(error)}"
    return f"Saved {conversation.num_turns} turns to {name}."


def _specialist(session: ChatSession, name: str) -> str:
    options = session.conversation.options
    if name:
        options["force"] = None if name == _NONE_WORD else name.split()
    forced = options.get("force") or ()
    names = [forced] if isinstance(forced, str) else list(forced)
    return f"Only {' or '.join(names)} may answer." if names else "The router chooses the specialist."


def _exit(session: ChatSession, _: str) -> str:
    session.is_over = True
    return ""


_SPECIALIST_ABOUT = "show or set the only specialist that may answer; `-` allows all"
SLASH_COMMANDS: Mapping[str, SlashCommand] = {
    "help": SlashCommand("/help", "list these commands", lambda *_: f"{_format_slash_commands()}\n{_KEY_HELP}"),
    "reset": SlashCommand("/reset", "start a new conversation", _reset),
    "system": SlashCommand("/system [TEXT]", "show or set the system message; `-` removes it", _system),
    "why": SlashCommand("/why", "show the receipt of the last answer", _why),
    "save": SlashCommand("/save FILE", "save the conversation as JSON", _save),
    "specialist": SlashCommand("/specialist [NAME]", _SPECIALIST_ABOUT, _specialist),
    "exit": SlashCommand("/exit", "end the chat", _exit),
}
_HELP = f"""
Each answer is printed as it streams. The line after it shows the specialist, its
confidence, the reason, how much of the prompt was cached, and the speed.

{_format_slash_commands("  ")}

Ctrl-C cuts an answer short and keeps the text so far; Ctrl-D exits. A line that
ends in \\ continues; // sends a line that begins with /.

If standard input is not a terminal, each of its lines is a turn, and the first
failure ends the chat. With --json every event is a line of JSON."""


def add_chat_command(commands: Commands) -> None:
    parser = cli.add_command(commands, "chat", "chat with the ensemble", _chat, _HELP, json_help=cli.EVENTS_HELP)
    option = partial(add_option, parser)
    option("--system", "TEXT", "system message before the conversation")
    option("--session", "ID", "conversation id; default: a new one")
    option("--adapter", "NAME", "adapter; repeatable, in order", action="append", default=[])
    request.add_routing_options(parser, has_prompt=False)
    request.add_sampling_options(parser)
    request.add_timing_options(parser, "each turn")
    add_flag(parser, "--no-history", "do not save typed lines")


def _chat(arguments: argparse.Namespace) -> int:
    request.check_integers(arguments)
    for name in ("system", "session", "stop", "adapter", "intent", "force", "exclude"):
        check_utf8(name, getattr(arguments, name))
    numbers = (*request.FLOAT_OPTIONS, *request.INTEGER_OPTIONS, *request.TIMEOUT_OPTIONS)
    options = {name: getattr(arguments, name) for name in (*numbers, "intent", "exclude", "stop", "ignore_eos")}
    options |= {"adapters": arguments.adapter, "force": arguments.force or None}
    is_typed = sys.stdin.isatty()
    output = ChatJsonOutput() if arguments.json else ChatTextOutput()
    with cli.open_client(arguments) as router:
        conversation = router.conversation(arguments.session, arguments.system, **cast(Options, options))
        session = ChatSession(conversation, output, goes_on=is_typed)
        if not is_typed or not sys.stdout.isatty() or arguments.json:
            return session.run(read_piped_lines())
        output.say(f"octet chat with {arguments.address}: /help for help, Ctrl-D exits")
        with readline_history(None if arguments.no_history else history_file()):
            return session.run(read_typed_lines())


def read_piped_lines() -> Iterator[str]:
    """Yield the lines of standard input. Raises ValueError for a line that is too long or not UTF-8."""
    try:
        while line := sys.stdin.readline(MAX_PROMPT_BYTES + 2):
            if len(line.rstrip("\n")) > MAX_PROMPT_BYTES:
                raise ValueError(f"a line of standard input must have at most {MAX_PROMPT_BYTES:,} bytes")
            check_utf8("standard input", line)
            yield line.rstrip("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input must be valid UTF-8: the byte at offset {error.start} is not") from None


def read_typed_lines() -> Iterator[str]:
    """Yield lines typed at a prompt, until Ctrl-D. Ctrl-C discards the line; a trailing backslash continues it."""
    text = ""
    while True:
        try:
            line = input(_CONTINUATION_PROMPT if text else PROMPT)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("  (Ctrl-D exits)")
            text = ""
            continue
        if line.endswith("\\"):
            text += line[:-1] + "\n"
            continue
        yield text + line
        text = ""


@contextmanager
def readline_history(file: Path | None) -> Iterator[None]:
    """Load the lines of earlier chats from the file, and save all lines to it on exit. Without a file, do neither."""
    try:
        import readline  # also enables line editing; some Pythons lack it
    except ImportError:
        file = None
    if file is None:
        yield
        return
    with suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        with suppress(OSError):  # losing the history is not an error
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))  # libedit would make the file readable by others
            readline.set_history_length(_MAX_HISTORY)
            readline.write_history_file(file)


def history_file() -> Path | None:
    """Return the path of the chat history, or None if there is no home directory."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(state) / "octet" / "chat_history"
