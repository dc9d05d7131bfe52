"""Token ids out of a conversation, by the model's own chat template, which is not to be trusted."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from specialist.models.checkpoint import Vocabulary
from specialist.text.encoder import Encoder, check_text
from specialist.text.errors import NoTools, NotText, TemplateKilled, TemplateRefused, TextTooLong, TooManyMessages
from specialist.text.message import Message
from specialist.text.render_worker import marker
from specialist.text.renderer import Renderer, TemplateLimits
from specialist.text.shown import shown_message
from specialist.tools.dialect import PROBE_CALL, PROBE_KEY, PROBE_RESULT, PROBE_TOOL, PROBE_VALUE, Dialect, dialect_of
from specialist.tools.tool import Tool

_PROBES = (
    (Message("user", "a"),),
    (Message("user", "a"), Message("assistant", "b"), Message("user", "c")),
    (Message("system", "a"), Message("user", "b")),
)
_CALLING = (
    Message("user", "a"),
    Message("assistant", "", (PROBE_CALL,)),
    Message("tool", PROBE_RESULT, tool_call_id=PROBE_CALL.call_id),
)


class ChatTemplate:
    """Thread-safe; one conversation is rendered at a time, in a process of its own that starts with the first.

    Control tokens come out of the template's own text alone: in it, and nowhere else, each stands as a secret alias
    before rendering, and only aliases become control tokens. What users wrote goes through the template untouched.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoder | None = None,
        *,
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises TemplateRefused when the vocabulary has no template; any other fault shows when it is first used."""
        if vocabulary.chat_template is None:
            raise TemplateRefused("this model has none; send a plain prompt instead")
        limits = limits or TemplateLimits()
        self._vocabulary = vocabulary
        self._encoder = encoder or Encoder(vocabulary)
        self._max_messages = limits.max_messages
        self._max_characters = self._encoder.max_bytes + limits.extra_characters
        aliases = self._encoder.aliases
        self._renderer = Renderer(vocabulary.chat_template, aliases, self._max_characters, limits, monotonic)
        self._now = now
        self._lock = threading.Lock()
        self._is_probed = False
        self._dialect: Dialect | None = None
        self._no_tools = ""

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Raises TextTooLong, TooManyMessages, NotText and TemplateRefused."""
        self._check(messages)
        with self._lock:
            self._probe()
            text = self._rendered(messages, tools, marked=True)
        return self._ids(text)

    def dialect(self) -> Dialect:
        """How the model calls tools: as the template writes a call that was made. Raises NoTools, TemplateRefused."""
        with self._lock:
            self._probe()
            if self._dialect is None and not self._no_tools:
                self._find_dialect()
        if self._dialect is None:
            raise NoTools(self._no_tools)
        return self._dialect

    def close(self) -> None:
        """End the process; the next conversation would start another."""
        with self._lock:
            self._renderer.close()

    def _check(self, messages: Sequence[Message]) -> None:
        if len(messages) > self._max_messages:
            raise TooManyMessages("messages", self._max_messages, len(messages))
        most, total = self._encoder.max_bytes, 0
        for index, message in enumerate(messages):
            total += check_text(message.role, most, f"messages[{index}].role")
            total += check_text(message.content, most, f"messages[{index}].content")
            for call in message.tool_calls:
                total += check_text(call.arguments, most, f"messages[{index}].tool_calls")
        if total > most:
            raise TextTooLong("messages", most, total)

    def _find_dialect(self) -> None:
        try:
            offered = self._rendered(_CALLING[:1], (PROBE_TOOL,), marked=False)
            made = self._rendered(_CALLING, (PROBE_TOOL,), marked=False)
            marked = self._rendered(_CALLING, (PROBE_TOOL,), marked=True)
        except TemplateKilled:
            raise
        except TemplateRefused as refused:
            self._no_tools = f"its chat template does not take a conversation with a call in it: {refused.why}"
            return
        dialect = dialect_of(made)
        if PROBE_TOOL.name not in offered or PROBE_KEY not in offered:
            self._no_tools = "its chat template shows a model no tools"
        elif PROBE_RESULT not in made or PROBE_VALUE not in made:
            self._no_tools = "its chat template leaves out calls, or what came of them"
        elif dialect is None:
            self._no_tools = "its chat template writes calls in a way that cannot be read here"
        elif marker(self._encoder.aliases)(made) != marked:
            self._no_tools = "its chat template makes control tokens out of pieces"
        else:
            self._dialect = dialect

    def _rendered(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, marked: bool) -> str:
        variables = {
            "messages": [shown_message(message, self._dialect) for message in messages],
            "tools": [tool.shown() for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": True,
            **self._named_tokens(marked),
        }
        return self._renderer.render(variables, self._now().isoformat(), marked=marked)

    def _named_tokens(self, marked: bool) -> dict[str, str]:
        """A template may name the tokens that begin and end a text without writing them out."""
        words = self._vocabulary
        texts: dict[int | None, str] = {token_id: text for text, token_id in words.control_ids.items()}
        named = {
            "bos_token": words.bos_token or texts.get(words.bos_id),
            "eos_token": words.eos_token or texts.get(self._only_eos_id()),
        }
        return {name: self._encoder.aliases[text] if marked else text for name, text in named.items() if text}

    def _only_eos_id(self) -> int | None:
        eos_ids = self._vocabulary.eos_ids
        if len(eos_ids) > 1 and not self._vocabulary.eos_token and "eos_token" in self._renderer.variables():
            raise TemplateRefused(f"it writes eos_token, and the model has several: {sorted(eos_ids)}")
        return next(iter(eos_ids), None)

    def _probe(self) -> None:
        """Refuse a template that makes control tokens out of pieces: they would come out as plain text."""
        self._renderer.variables()  # refuses one that does not compile
        for messages in () if self._is_probed else _PROBES:
            try:
                plain = self._rendered(messages, marked=False)
            except TemplateKilled:
                raise
            except TemplateRefused:  # it may not like these roles; what else is wrong with it will show again
                continue
            if marker(self._encoder.aliases)(plain) != self._rendered(messages, marked=True):
                raise TemplateRefused("it makes control tokens out of pieces, which could as well come from a user")
        self._is_probed = True

    def _ids(self, text: str) -> tuple[int, ...]:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateRefused(str(NotText("its output", error.start))) from error
        return self._encoder.marked(text, "messages")
