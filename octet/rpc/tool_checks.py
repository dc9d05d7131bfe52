"""Tools, and the calls of a conversation, against a table of limits. Raises Refusal: field, limit, value."""

import re
from collections.abc import Sequence

from octet.rpc.checks import Checks
from octet.rpc.json_object import NotAnObject, json_object
from octet.rpc.refusal import invalid, shorten
from octet.v1 import specialist_pb2 as wire

ASSISTANT, TOOL = "assistant", "tool"
MOST_DEPTH = 64
"""Brackets of a schema, or of a call's arguments, inside each other."""
MOST_NAME = 128
"""Letters of a tool's name: as many as any vendor's clients may send."""
NAME = rf"[a-zA-Z0-9_-]{{1,{MOST_NAME}}}"
_NAME = re.compile(NAME)


class ToolChecks:
    def __init__(self, checks: Checks, within: str = "") -> None:
        """`within` stands before the names of fields, as the wire has them there."""
        self._checks = checks
        self._tools = f"{within}tools"
        self._choice = f"{within}tool_choice"
        self._messages = f"{within}messages"

    def tools(self, tools: Sequence[wire.Tool]) -> None:
        self._checks.count(self._tools, tools)
        for tool in tools:
            self._name(f"{self._tools}.name", tool.name)
            self._checks.text(f"{self._tools}.description", tool.description)
            self._schema(f"{self._tools}.parameters", tool.parameters)
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise invalid(f"{self._tools}.name", "names that differ", shorten(twice))
        texts = (text for tool in tools for text in (tool.name, tool.description, tool.parameters))
        self._checks.size(self._tools, "".join(texts).encode())

    def choice(self, choice: wire.ToolChoice, tools: Sequence[wire.Tool]) -> None:
        """Of a request that makes one."""
        if not tools:
            raise invalid(self._choice, "unset where there are no tools", "set")
        if choice.mode not in wire.ToolChoice.Mode.values():
            raise invalid(f"{self._choice}.mode", "one of AUTO, NONE and REQUIRED", str(choice.mode))
        if choice.name and choice.name not in (tool.name for tool in tools):
            raise invalid(f"{self._choice}.name", "the name of one of the tools", shorten(choice.name))

    def conversation(self, messages: Sequence[wire.Message]) -> None:
        """An assistant calls; what a tool says answers a call before it, once."""
        open_ids: set[str] = set()
        known: set[str] = set()
        for message in messages:
            if message.tool_calls and message.role != ASSISTANT:
                raise invalid(f"{self._messages}.tool_calls", "those of an assistant", shorten(message.role))
            if bool(message.tool_call_id) != (message.role == TOOL):
                limit = "set in the messages of a tool, and in no others"
                raise invalid(f"{self._messages}.tool_call_id", limit, shorten(message.tool_call_id))
            if message.role == TOOL and message.tool_call_id not in open_ids:
                limit = "the id of a call before it that nothing has answered"
                raise invalid(f"{self._messages}.tool_call_id", limit, shorten(message.tool_call_id))
            open_ids.discard(message.tool_call_id)
            ids = self._calls(message.tool_calls)
            if not known.isdisjoint(ids):
                twice = next(each for each in ids if each in known)
                raise invalid(f"{self._messages}.tool_calls.id", "ids that differ", shorten(twice))
            known.update(ids)
            open_ids.update(ids)

    def _calls(self, calls: Sequence[wire.ToolCall]) -> list[str]:
        """Their ids."""
        field = f"{self._messages}.tool_calls"
        self._checks.count(field, calls)
        for call in calls:
            self._name(f"{field}.name", call.name)
            if not self._checks.identifier(f"{field}.id", call.id):
                raise invalid(f"{field}.id", "not empty", "''")
            self._object(f"{field}.arguments", self._checks.text(f"{field}.arguments", call.arguments))
        ids = [call.id for call in calls]
        if len(set(ids)) < len(ids):
            raise invalid(f"{field}.id", "ids that differ", shorten(next(each for each in ids if ids.count(each) > 1)))
        return ids

    def _name(self, field: str, name: str) -> None:
        if not _NAME.fullmatch(name):
            raise invalid(field, f"1 to {MOST_NAME} letters, digits, dashes and underscores", shorten(name))

    def _schema(self, field: str, schema: str) -> None:
        """Empty where a tool takes nothing. Whether it can be kept is for the replica to say."""
        if not self._checks.text(field, schema):
            return
        kind = self._object(field, schema).get("type", "object")
        if kind != "object":
            raise invalid(field, "the schema of an object", shorten(kind))

    def _object(self, field: str, text: str) -> dict[str, object]:
        try:
            return json_object(text, MOST_DEPTH)
        except NotAnObject as error:
            raise invalid(field, error.limit, error.value) from None


def texts_of(message: wire.Message) -> tuple[str, ...]:
    """What it says, its calls included."""
    return (message.content, *(call.name + call.arguments for call in message.tool_calls))
