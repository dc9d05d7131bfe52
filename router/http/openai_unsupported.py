"""What OpenAI's API can do and nobody here can: refused by name, with the reason, rather than left out in silence."""

from collections.abc import Callable, Mapping
from typing import Any

from router.http.fault import unsupported
from router.http.fields import Fields

_OLD = "functions are offered as tools, and called by tool_choice and tool_calls"
_TEXT_ONLY = "the specialists read and write text alone"

Harmless = Callable[[Any], bool]
"""Whether a value asks for nothing more than what is done anyway."""


def _never(_: Any) -> bool:
    return False


def _is(*values: Any) -> Harmless:
    return lambda value: any(value == each and type(value) is type(each) for each in values)


_FORM = "say the form of an answer in response_format or octet.structure"
_EVERYWHERE: Mapping[str, tuple[Harmless, str]] = {
    "store": (_is(False), "answers are not kept; receipts are, and hold no text"),
}
_CHAT: Mapping[str, tuple[Harmless, str]] = {
    **_EVERYWHERE,
    "functions": (_never, _OLD),
    "function_call": (_never, _OLD),
    "modalities": (_is(["text"]), _TEXT_ONLY),
    "audio": (_never, _TEXT_ONLY),
    "prediction": (_never, "nothing is predicted from a draft of the caller's"),
    "reasoning_effort": (_is("none"), "the specialists answer without a part for reasoning"),
    "verbosity": (_is("medium"), "how long an answer is, is for max_completion_tokens and the prompt to say"),
    "web_search_options": (_never, "the specialists search nothing"),
    "service_tier": (_is("auto", "default"), "there is one; octet.priority says what comes first"),
}
_COMPLETION: Mapping[str, tuple[Harmless, str]] = {
    **_EVERYWHERE,
    "suffix": (_never, "the specialists continue a text, they fill no gap"),
    "echo": (_is(False), "the prompt is not repeated"),
}
_MESSAGE: Mapping[str, tuple[Harmless, str]] = {
    "name": (_never, "a model is not told who of several participants speaks"),
    "function_call": (_never, _OLD),
    "audio": (_never, _TEXT_ONLY),
    "refusal": (_never, "write a refusal as the message's content"),
}


_TOOLS_MESSAGE = {key: why for key, why in _MESSAGE.items() if key != "name"}
"""What a tool is called, its call says already."""


def check_chat(fields: Fields) -> None:
    """Raises Fault."""
    _check(fields, _CHAT)
    _check_forms(fields)


def check_completion(fields: Fields) -> None:
    """Raises Fault."""
    _check(fields, _COMPLETION)
    _check_forms(fields)


def check_message(fields: Fields, role: str) -> None:
    """Raises Fault."""
    _check(fields, _TOOLS_MESSAGE if role == "tool" else _MESSAGE)


def _check_forms(fields: Fields) -> None:
    """By vLLM's names: an answer that kept none would look like one that did."""
    for key in fields.given():
        if key == "structured_outputs" or key.startswith("guided_"):
            raise unsupported(fields.name(key[:60]), _FORM)


def _check(fields: Fields, known: Mapping[str, tuple[Harmless, str]]) -> None:
    if known.keys().isdisjoint(fields.given()):
        return
    for key, (is_harmless, why) in known.items():
        if fields.has(key) and not is_harmless(fields.raw(key)):
            raise unsupported(fields.name(key), why)
