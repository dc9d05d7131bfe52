"""Token ids out of a conversation, by the model's own chat template, which is not to be trusted."""

import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from specialist.models.checkpoint import Vocabulary
from specialist.text.encoder import Encoder, check_text
from specialist.text.errors import NotText, TemplateKilled, TemplateRefused, TextTooLong, TooManyMessages
from specialist.text.message import Message
from specialist.text.render_worker import marker
from specialist.text.renderer import Renderer, TemplateLimits

_PROBES = (
    (Message("user", "a"),),
    (Message("user", "a"), Message("assistant", "b"), Message("user", "c")),
    (Message("system", "a"), Message("user", "b")),
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

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Raises TextTooLong, TooManyMessages, NotText and TemplateRefused."""
        self._check(messages)
        with self._lock:
            self._probe()
            text = self._rendered(messages, marked=True)
        return self._ids(text)

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
        if total > most:
            raise TextTooLong("messages", most, total)

    def _rendered(self, messages: Sequence[Message], *, marked: bool) -> str:
        variables = {
            "messages": [message._asdict() for message in messages],
            "tools": None,
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
