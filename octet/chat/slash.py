"""What begins with a slash: commands to the conversation, never sent to anybody."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octet.chat.screen import Screen
from octet.sdk.conversation import Conversation
from octet.text_io import file_words

NOTHING = "-"
"""In the place of a text or a name: none."""

_KEYS = "Ctrl-C cuts an answer short, Ctrl-D leaves. A line that ends in \\ goes on; // begins one that is sent as /."


@dataclass(slots=True)
class Desk:
    """What a command may change."""

    conversation: Conversation
    screen: Screen
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    about: str
    do: Callable[[Desk, str], None]


def obey(desk: Desk, line: str) -> bool:
    """`line` begins with one slash. Whether there is such a command."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        desk.screen.say(f"there is no /{name[:40]}; /help lists what there is, and // begins a line that is sent as /")
        return False
    command.do(desk, rest.strip())
    return True


def _help(desk: Desk, _: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    rows = [f"{command.usage:<{width}}  {command.about}" for command in COMMANDS.values()]
    desk.screen.say("\n".join([*rows, _KEYS]))


def _reset(desk: Desk, _: str) -> None:
    desk.conversation.reset()
    desk.screen.say("a new conversation")


def _system(desk: Desk, text: str) -> None:
    if text:
        desk.conversation.system = None if text == NOTHING else text
    now = desk.conversation.system
    desk.screen.say("no system message" if now is None else f"system message: {now}")


def _why(desk: Desk, _: str) -> None:
    receipt = desk.conversation.receipt
    if receipt is None:
        desk.screen.say("nothing has been answered yet")
    else:
        desk.screen.why(receipt)


def _save(desk: Desk, name: str) -> None:
    talk = desk.conversation
    if not name:
        desk.screen.say("to which file? /save FILE")
        return
    kept = {"session_id": talk.session_id, "messages": list(talk.messages)}
    try:
        with Path(name).expanduser().open("x", encoding="utf-8") as file:
            file.write(json.dumps(kept, ensure_ascii=False, indent=2) + "\n")
    except FileExistsError:
        desk.screen.say(f"there is a {name} already: choose another name")
    except (OSError, RuntimeError, ValueError) as error:
        why = file_words(error) if isinstance(error, OSError) else str(error)
        desk.screen.say(f"it could not be saved: {why}")
    else:
        desk.screen.say(f"{talk.num_turns} turns are in {name}")


def _specialist(desk: Desk, name: str) -> None:
    options = desk.conversation.options
    if name:
        options["force"] = None if name == NOTHING else name.split()
    forced = options.get("force") or ()
    names = [forced] if isinstance(forced, str) else list(forced)
    desk.screen.say(f"only {' or else '.join(names)} may answer" if names else "the router decides who answers")


def _exit(desk: Desk, _: str) -> None:
    desk.is_over = True


COMMANDS: Mapping[str, Command] = {
    "help": Command("/help", "this", _help),
    "reset": Command("/reset", "forget what was said, and begin anew", _reset),
    "system": Command("/system [TEXT]", "see or set the system message; - for none", _system),
    "why": Command("/why", "all about the last answer: who gave it, and why", _why),
    "save": Command("/save FILE", "write the conversation down as JSON", _save),
    "specialist": Command(
        "/specialist [NAME]", "see or say who alone may answer; - for the router's choice", _specialist
    ),
    "exit": Command("/exit", "leave", _exit),
}
