"""A conversation in Anthropic's words: from system and messages, with their blocks, to Octet's messages."""

from collections.abc import Iterator

from octet.rpc.refusal import shorten
from octet.v1 import inference_pb2 as wire
from router.http.anthropic_fields import check_keys, object_at
from router.http.fault import Fault, unsupported, wrong
from router.http.fields import Fields, json_text

_ROLES = ("user", "assistant", "system")
_GAP = "\n"
"""Between the texts of one message."""
_FAILED = "Error: "
"""Before the result of a tool that says it failed: chat templates have no other place for it."""


def conversation(fields: Fields) -> list[wire.Message]:
    """Raises Fault."""
    system = _joined(fields, "system") if fields.has("system") else ""
    turns = [wire.Message(role="system", content=system)] if system else []
    for index, each in enumerate(fields.items("messages")):
        turns += _turns(object_at(each, f"messages[{index}]"))
    if not fields.items("messages"):
        raise wrong("messages", "a list of at least one message", shorten(fields.raw("messages")))
    if turns[-1].role == "assistant":
        raise unsupported("messages", "an answer is not continued; the last message must be the user's")
    return _combined(turns)


def _combined(turns: list[wire.Message]) -> list[wire.Message]:
    """Neighbours of one role are one turn."""
    combined: list[wire.Message] = []
    for turn in turns:
        last = combined[-1] if combined else None
        if last is None or last.role != turn.role or turn.role == "tool" or last.tool_calls:
            combined.append(turn)
            continue
        last.content = _GAP.join(text for text in (last.content, turn.content) if text)
        last.tool_calls.extend(turn.tool_calls)
    return combined


def _turns(fields: Fields) -> Iterator[wire.Message]:
    check_keys(fields, ("role", "content"))
    role = fields.needed_text("role")
    if role not in _ROLES:
        raise wrong(fields.name("role"), f"one of {', '.join(_ROLES)}", shorten(role))
    if not isinstance(fields.raw("content"), list):
        yield wire.Message(role=role, content=fields.needed_text("content"))
    elif role == "user":
        yield from _user(fields)
    elif role == "assistant":
        yield _assistant(fields)
    else:
        yield wire.Message(role=role, content=_joined(fields, "content"))


def _user(fields: Fields) -> Iterator[wire.Message]:
    """What tools returned, and what the user says, in the order they stand."""
    blocks = _blocks(fields, "content")
    if not blocks:
        yield wire.Message(role="user")
    for block in blocks:
        if _kind(block) == "tool_result":
            yield _result(block)
        else:
            yield wire.Message(role="user", content=_text(block))


def _assistant(fields: Fields) -> wire.Message:
    """Its texts before its calls: no template has them any other way."""
    turn = wire.Message(role="assistant")
    texts: list[str] = []
    for block in _blocks(fields, "content"):
        if _kind(block) == "tool_use":
            turn.tool_calls.append(_call(block))
        else:
            texts.append(_text(block))
    turn.content = _GAP.join(texts)
    return turn


def _call(block: Fields) -> wire.ToolCall:
    check_keys(block, ("type", "id", "name", "input", "caller"))
    if block.table("caller").raw("type") not in (None, "direct"):
        raise unsupported(block.name("caller"), "tools are called by models alone")
    arguments = json_text(block.table("input").values(), block.name("input"))
    return wire.ToolCall(id=block.needed_text("id"), name=block.needed_text("name"), arguments=arguments)


def _result(block: Fields) -> wire.Message:
    check_keys(block, ("type", "tool_use_id", "content", "is_error"))
    said = _joined(block, "content") if block.has("content") else ""
    if block.flag("is_error"):
        said = _FAILED + said
    return wire.Message(role="tool", content=said, tool_call_id=block.needed_text("tool_use_id"))


def _joined(fields: Fields, key: str) -> str:
    """A text, or a list of nothing but texts."""
    if isinstance(fields.raw(key), list):
        return _GAP.join(_text(block) for block in _blocks(fields, key))
    return fields.needed_text(key)


def _blocks(fields: Fields, key: str) -> list[Fields]:
    return [object_at(each, f"{fields.name(key)}[{index}]") for index, each in enumerate(fields.items(key))]


def _kind(block: Fields) -> str:
    return block.needed_text("type")


def _text(block: Fields) -> str:
    if _kind(block) != "text":
        raise _not_text(block)
    check_keys(block, ("type", "text", "citations"))
    if block.items("citations"):
        raise unsupported(block.name("citations"), "the specialists cite nothing")
    return block.needed_text("text")


def _not_text(block: Fields) -> Fault:
    why = "blocks of text, of an assistant's tool_use and of a user's tool_result are read, and no others"
    return unsupported(block.name("type"), f"{why}, got {shorten(_kind(block))}")
