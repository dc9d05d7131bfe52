"""How a model writes calls, told from what its own chat template makes of one."""

import re
from dataclasses import dataclass

from specialist.tools.tool import Tool, ToolCall

PROBE_KEY, PROBE_VALUE, PROBE_RESULT = "octet_key", "octet_value", "octet_result"
PROBE_TOOL = Tool("octet_probe", "Probe.", '{"type":"object","properties":{"octet_key":{"type":"string"}}}', False)
PROBE_CALL = ToolCall("probe0000", "octet_probe", '{"octet_key":"octet_value"}')
_NAMED = r'\{\s*"name"\s*:\s*"octet_probe"\s*,\s*'
_ARGUMENTS = r'"\s*:\s*\{\s*"octet_key"\s*:\s*"octet_value"\s*\}'


@dataclass(frozen=True, slots=True)
class Dialect:
    name: str
    begin: str
    """Stands before calls; empty where an answer that begins like a call is one."""
    end: str
    """Stands behind each; empty for nothing."""
    key: str
    """What a call's arguments are called in it."""
    is_list: bool = False
    """All calls are one JSON list."""
    gap: str = "\n"
    """Between the markers and the JSON, and between calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(marker for marker in (self.begin, self.end) if marker)

    @property
    def calls_once(self) -> bool:
        """A model that has no way to write a second call."""
        return not self.begin


HERMES = Dialect("hermes", "<tool_call>", "</tool_call>", "arguments")
MISTRAL = Dialect("mistral", "[TOOL_CALLS]", "", "arguments", is_list=True, gap="")
LLAMA = Dialect("llama", "", "", "parameters", gap="")
_WRITTEN = {
    HERMES: rf'<tool_call>\s*{_NAMED}"arguments{_ARGUMENTS}\s*\}}\s*</tool_call>',
    MISTRAL: rf'\[TOOL_CALLS\]\s*\[\s*{_NAMED}"arguments{_ARGUMENTS}',
    LLAMA: rf'{_NAMED}"parameters{_ARGUMENTS}\s*\}}',
}


def dialect_of(rendered: str) -> Dialect | None:
    """`rendered` is a conversation with the probe's call in it; None where it is written in no way known here."""
    return next((dialect for dialect, written in _WRITTEN.items() if re.search(written, rendered)), None)
