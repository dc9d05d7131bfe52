"""The process that renders a chat template: started when needed, killed when it does not answer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specialist.text.child import Child, ChildFailed
from specialist.text.errors import TemplateKilled, TemplateRefused

_WORKER = Path(__file__).with_name("render_worker.py")
_ESCAPED = len(r"\ud83d\ude00")
"""Bytes a character takes at most in a JSON answer."""
_ENVELOPE = 4096
"""Bytes of an answer that are not the text: its braces, or an error."""


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    seconds: float = 1.0
    """To render one conversation."""
    start_seconds: float = 20.0
    """To start the process that renders, and to compile the template."""
    max_memory: int = 512 << 20
    """Bytes of address space, interpreter included."""
    max_messages: int = 1024
    extra_characters: int = 64 << 10
    """What a template may write beyond the most text that a conversation may have."""


class Renderer:
    """Not thread-safe."""

    def __init__(
        self,
        source: str,
        aliases: Mapping[str, str],
        max_characters: int,
        limits: TemplateLimits,
        monotonic: Callable[[], float],
    ) -> None:
        self._setting = {
            "source": source,
            "aliases": dict(aliases),
            "max_characters": max_characters,
            "max_memory": limits.max_memory,
            "seconds": limits.seconds,
        }
        self._max_answer = max_characters * _ESCAPED + _ENVELOPE
        self._limits = limits
        self._monotonic = monotonic
        self._child: Child | None = None
        self._variables: frozenset[str] = frozenset()
        self._fault: str | None = None

    def variables(self) -> frozenset[str]:
        """What the template expects to be given. Raises TemplateRefused, as `render` does."""
        self._live_child()
        return self._variables

    def render(self, variables: Mapping[str, Any], now: str, *, marked: bool) -> str:
        """With each control token in the template's own text as its alias, if marked."""
        request = {"variables": variables, "now": now, "marked": marked}
        return str(self._asked(self._live_child(), request, self._limits.seconds)["text"])

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _live_child(self) -> Child:
        if self._fault is not None:
            raise TemplateRefused(self._fault)
        if self._child is None or not self._child.alive:
            self._child = self._started()
        return self._child

    def _started(self) -> Child:
        """A template that does not compile is not tried again."""
        child = Child(_WORKER, self._monotonic)
        try:
            answer = self._asked(child, self._setting, self._limits.start_seconds)
        except TemplateKilled:
            raise
        except TemplateRefused as refused:
            child.kill()
            self._fault = refused.why
            raise
        self._variables = frozenset(answer["variables"])
        return child

    def _asked(self, child: Child, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(child.ask(json.dumps(request).encode(), seconds, self._max_answer))
        except ChildFailed as error:
            raise TemplateKilled(str(error)) from error
        if "error" in answer:
            raise TemplateRefused(str(answer["error"]))
        return answer
