"""A model's vocabulary, as the service uses it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress

from specialist.models.checkpoint import Vocabulary
from specialist.service.limits import REQUEST_BYTES
from specialist.text.detokenizer import Detokenizer
from specialist.text.encoder import Encoder
from specialist.text.errors import TemplateRefused
from specialist.text.message import Message
from specialist.text.pieces import Pieces
from specialist.text.template import ChatTemplate
from specialist.tools.calling import Calling
from specialist.tools.tool import Offer, Tool


class VocabularyWords:
    def __init__(self, vocabulary: Vocabulary, vocab_size: int, max_bytes: int = REQUEST_BYTES) -> None:
        """`vocab_size` is the model's: it may have rows that stand for no word.

        `max_bytes` is as much as any request can bring: how long a prompt may be is for Limits to say.
        """
        self.stop_ids = vocabulary.eos_ids
        self.vocab_size = vocab_size
        self._control_ids = vocabulary.control_ids
        self._encoder = Encoder(vocabulary, max_bytes)
        self._pieces = Pieces(vocabulary)
        has_template = vocabulary.chat_template is not None
        self._template = ChatTemplate(vocabulary, self._encoder) if has_template else None

    def prompt(self, text: str) -> tuple[int, ...]:
        return self._encoder.prompt(text, "text")

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        return self._given_template().render(messages, tools)

    def calling(self, offer: Offer) -> Calling:
        dialect = self._given_template().dialect()
        control = {marker: self._control_ids[marker] for marker in dialect.markers if marker in self._control_ids}
        return Calling(offer, dialect, control)

    def detokenizer(self, spoken: Mapping[int, str] | None = None) -> Detokenizer:
        return Detokenizer(self._pieces, spoken)

    def warm_up(self) -> None:
        """A template that refuses everything is told of by the requests that need it."""
        with suppress(TemplateRefused):
            self.render([Message("user", "warm up")])

    def _given_template(self) -> ChatTemplate:
        if self._template is None:
            raise TemplateRefused("this model has none; send a plain prompt instead")
        return self._template

    def close(self) -> None:
        if self._template is not None:
            self._template.close()
