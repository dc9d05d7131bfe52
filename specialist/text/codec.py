"""Converts prompts to tokens and tokens to text, for the server.

A conversation is turned into tokens by the model's chat template, which is untrusted and runs in a child process.
"""

import json
import os
import re
import selectors
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from specialist.models.checkpoint import Vocabulary
from specialist.text import tool_calls
from specialist.text.prompt import (
    ChatTurn,
    NotText,
    OfferedTool,
    TemplateKilled,
    TemplateRefused,
    TextTooLong,
    ToolOffer,
    ToolsUnsupported,
    TooManyMessages,
)
from specialist.text.render_worker import alias_marker
from specialist.text.tokenization import Detokenizer, Encoder, TokenPieces, check_text
from specialist.text.tool_call_reader import ToolCalling
from specialist.text.tool_calls import ToolDialect

_CHUNK = 1 << 16


class LineProcess:
    """A child process that answers each line with a line, in limited time. Killed with this object. Not thread-safe."""

    def __init__(self, script: Path, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._process = subprocess.Popen(  # noqa: S603  # our own script, no shell
            [sys.executable, "-I", "-B", str(script)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PYTHONUTF8": "1"},
        )
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process was started without pipes")
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self.kill = weakref.finalize(self, _kill, self._process)

    @property
    def alive(self) -> bool:
        return self.kill.alive and self._process.poll() is None

    def ask(self, line: bytes, seconds: float, max_bytes: int) -> bytes:
        """Return the answer line. If it is late, too long or missing, kill the process and raise TemplateKilled."""
        try:
            return self._exchange(line + b"\n", self._monotonic() + seconds, max_bytes)
        except (TimeoutError, OSError, EOFError, OverflowError) as error:
            self.kill()
            raise TemplateKilled(str(error)) from error

    def _exchange(self, unsent: bytes, deadline: float, max_bytes: int) -> bytes:
        answer = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            selector.register(self._stdout, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                left = deadline - self._monotonic()
                if left <= 0:
                    raise TimeoutError("rendering took too long")
                for key, _ in selector.select(left):
                    if key.fd == self._stdout:
                        answer += self._read(max_bytes - len(answer))
                        continue
                    unsent = unsent[os.write(self._stdin, unsent) :]
                    if not unsent:
                        selector.unregister(self._stdin)
        return bytes(answer[:-1])

    def _read(self, room: int) -> bytes:
        got = os.read(self._stdout, _CHUNK)
        if not got:
            raise EOFError("the rendering process died")
        if len(got) > room:
            raise OverflowError("the output is too long")
        return got


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


_WORKER = Path(__file__).with_name("render_worker.py")
_ESCAPED = len(r"\ud83d\ude00")  # maximum bytes of a character in a JSON answer
_ENVELOPE = 4096  # bytes of an answer besides the text: its braces, or an error


@dataclass(frozen=True, slots=True)
class TemplateLimits:
    seconds: float = 1.0  # time to render one conversation
    start_seconds: float = 20.0  # time to start the process and to compile the template
    max_memory: int = 512 << 20  # bytes of address space, including the interpreter
    max_messages: int = 1024
    extra_characters: int = 64 << 10  # how much a template may write beyond the largest conversation


class RendererProcess:
    """Renders a chat template in a child process, started on demand and killed if it is late. Not thread-safe."""

    def __init__(self, source: str, encoder: Encoder, limits: TemplateLimits, monotonic: Callable[[], float]) -> None:
        max_characters = encoder.max_bytes + limits.extra_characters
        self._setting = {"source": source, "aliases": encoder.aliases, "max_characters": max_characters}
        self._setting |= {"max_memory": limits.max_memory, "seconds": limits.seconds}
        self._max_answer = max_characters * _ESCAPED + _ENVELOPE
        self._limits = limits
        self._monotonic = monotonic
        self._child: LineProcess | None = None
        self._variables: frozenset[str] = frozenset()
        self._fault: str | None = None

    def variables(self) -> frozenset[str]:
        """Return the variables that the template uses. Raises TemplateRefused if it is unusable."""
        self._live_child()
        return self._variables

    def render(self, variables: Mapping[str, Any], now: str, *, marked: bool) -> str:
        """Return the text. With `marked`, control tokens that the template itself writes are replaced by aliases."""
        request = {"variables": variables, "now": now, "marked": marked}
        return str(self._exchange(self._live_child(), request, self._limits.seconds)["text"])

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _live_child(self) -> LineProcess:
        if self._fault is not None:
            raise TemplateRefused(self._fault)
        if self._child is None or not self._child.alive:
            self._child = self._start()
        return self._child

    def _start(self) -> LineProcess:
        child = LineProcess(_WORKER, self._monotonic)
        try:
            answer = self._exchange(child, self._setting, self._limits.start_seconds)
        except TemplateKilled:
            raise
        except TemplateRefused as refused:
            child.kill()
            self._fault = refused.why
            raise
        self._variables = frozenset(answer["variables"])
        return child

    def _exchange(self, child: LineProcess, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(child.ask(json.dumps(request).encode(), seconds, self._max_answer))
        if "error" in answer:
            raise TemplateRefused(str(answer["error"]))
        return answer


_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")  # the only form of ids that Mistral's templates accept
_PROBES = (
    (ChatTurn("user", "a"),),
    (ChatTurn("user", "a"), ChatTurn("assistant", "b"), ChatTurn("user", "c")),
    (ChatTurn("system", "a"), ChatTurn("user", "b")),
)


class ChatTemplate:
    """Renders conversations with the model's chat template, one at a time, in a child process started on first use.
    Thread-safe. Before rendering, control tokens in the template's own text are replaced by secret aliases, and only
    aliases become control tokens. Text from users therefore never becomes one."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        encoder: Encoder | None = None,
        *,
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises TemplateRefused if the vocabulary has no template. Any other fault is raised on first use."""
        if vocabulary.chat_template is None:
            raise TemplateRefused("this model has no chat template; send a plain prompt instead")
        limits = limits or TemplateLimits()
        self._vocabulary = vocabulary
        self._encoder = encoder or Encoder(vocabulary)
        self._max_messages = limits.max_messages
        self._renderer = RendererProcess(vocabulary.chat_template, self._encoder, limits, monotonic)
        self._now = now
        self._lock = threading.Lock()
        self._is_probed = False
        self._dialect: ToolDialect | None = None
        self._no_tools = ""

    def render(self, messages: Sequence[ChatTurn], tools: Sequence[OfferedTool] = ()) -> tuple[int, ...]:
        """Return the tokens of a conversation. Raises TextTooLong, TooManyMessages, NotText or TemplateRefused."""
        self._check(messages)
        with self._lock:
            self._probe()
            text = self._render(messages, tools, marked=True)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TemplateRefused(str(NotText("the output", error.start))) from error
        return self._encoder.encode_marked(text, "messages")

    def dialect(self) -> ToolDialect:
        """Return how the model calls tools, as its template shows. Raises ToolsUnsupported or TemplateRefused."""
        with self._lock:
            self._probe()
            if self._dialect is None and not self._no_tools:
                self._find_dialect()
        if self._dialect is None:
            raise ToolsUnsupported(self._no_tools)
        return self._dialect

    def close(self) -> None:
        """End the process; the next conversation starts a new one."""
        with self._lock:
            self._renderer.close()

    def _check(self, messages: Sequence[ChatTurn]) -> None:
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
        turns, tools = tool_calls.PROBE_TURNS, (tool_calls.PROBE_TOOL,)
        try:
            offered = self._render(turns[:1], tools, marked=False)
            made = self._render(turns, tools, marked=False)
            marked = self._render(turns, tools, marked=True)
        except TemplateKilled:
            raise
        except TemplateRefused as refused:
            self._no_tools = f"its chat template does not accept a conversation with a tool call: {refused.why}"
            return
        dialect = tool_calls.detect_dialect(made)
        if not all(text in offered for text in tool_calls.SHOWN_TEXTS):
            self._no_tools = "its chat template does not show tools to the model"
        elif not all(text in made for text in tool_calls.CALL_TEXTS):
            self._no_tools = "its chat template leaves out tool calls or their results"
        elif dialect is None:
            self._no_tools = "its chat template writes tool calls in an unsupported format"
        elif alias_marker(self._encoder.aliases)(made) != marked:
            self._no_tools = "its chat template assembles control tokens from pieces"
        else:
            self._dialect = dialect

    def _render(self, messages: Sequence[ChatTurn], tools: Sequence[OfferedTool] = (), *, marked: bool) -> str:
        variables = {
            "messages": [message_to_template(message, self._dialect) for message in messages],
            "tools": [tool.to_template() for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": True,
            **self._named_tokens(marked),
        }
        return self._renderer.render(variables, self._now().isoformat(), marked=marked)

    def _named_tokens(self, marked: bool) -> dict[str, str]:
        """Return the template variables `bos_token` and `eos_token`: the text or the alias of these tokens."""
        vocabulary, eos_ids = self._vocabulary, self._vocabulary.eos_ids
        if len(eos_ids) > 1 and not vocabulary.eos_token and "eos_token" in self._renderer.variables():
            raise TemplateRefused(f"the template uses eos_token, but the model has several: {sorted(eos_ids)}")
        texts: dict[int | None, str] = {token_id: text for text, token_id in vocabulary.control_ids.items()}
        named = {
            "bos_token": vocabulary.bos_token or texts.get(vocabulary.bos_id),
            "eos_token": vocabulary.eos_token or texts.get(next(iter(eos_ids), None)),
        }
        return {name: self._encoder.aliases[text] if marked else text for name, text in named.items() if text}

    def _probe(self) -> None:
        """Refuse a template that assembles control tokens from pieces, which aliases cannot replace."""
        self._renderer.variables()  # raises if the template does not compile
        for messages in () if self._is_probed else _PROBES:
            try:
                plain = self._render(messages, marked=False)
            except TemplateKilled:
                raise
            except TemplateRefused:  # it may not accept these roles; any other fault appears again later
                continue
            if alias_marker(self._encoder.aliases)(plain) != self._render(messages, marked=True):
                raise TemplateRefused("the template assembles control tokens from pieces, which users could imitate")
        self._is_probed = True


def message_to_template(message: ChatTurn, dialect: ToolDialect | None) -> dict[str, Any]:
    """Return the message as templates expect it. Unused keys are left out, because templates test for keys."""
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        calls = (call._replace(call_id=_template_id(call.call_id, dialect)) for call in message.tool_calls)
        fields["tool_calls"] = [call.to_template() for call in calls]
    if message.tool_call_id:
        fields["tool_call_id"] = _template_id(message.tool_call_id, dialect)
    return fields


def _template_id(call_id: str, dialect: ToolDialect | None) -> str:
    if dialect != tool_calls.MISTRAL or _MISTRAL_ID.fullmatch(call_id):
        return call_id
    return sha256(call_id.encode()).hexdigest()[:9]


class VocabularyCodec:
    """Converts between text and tokens. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, max_bytes: int = 4 << 20) -> None:
        """`vocab_size` is the number of the model's embedding rows, which may exceed the number of tokens. `max_bytes`
        is the size of the largest request; the server limits prompts further."""
        self.stop_ids = vocabulary.eos_ids
        self.vocab_size = vocab_size
        self._control_ids = vocabulary.control_ids
        self._encoder = Encoder(vocabulary, max_bytes)
        self._pieces = TokenPieces(vocabulary)
        has_template = vocabulary.chat_template is not None
        self._template = ChatTemplate(vocabulary, self._encoder) if has_template else None

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens. Raises ValueError for text that this vocabulary cannot encode."""
        return self._encoder.prompt(text, "text")

    def render(self, messages: Sequence[ChatTurn], tools: Sequence[OfferedTool] = ()) -> tuple[int, ...]:
        """Return the tokens. Raises TemplateRefused if there is no usable template, or if it rejects the messages."""
        return self._require_template().render(messages, tools)

    def tool_calling(self, offer: ToolOffer) -> ToolCalling:
        """Return how the model calls these tools. Raises ToolsUnsupported or TemplateRefused if it cannot."""
        dialect = self._require_template().dialect()
        control = {marker: self._control_ids[marker] for marker in dialect.markers if marker in self._control_ids}
        return ToolCalling(offer, dialect, control)

    def detokenizer(self, visible: Mapping[int, str] | None = None) -> Detokenizer:
        """`visible` gives the spelling of control tokens that are part of the text. All others write nothing."""
        return Detokenizer(self._pieces, visible)

    def warm_up(self) -> None:
        """Do the one-time work that would make the first call slow."""
        with suppress(TemplateRefused):  # requests that need the template report its fault
            self.render([ChatTurn("user", "warm up")])

    def close(self) -> None:
        if self._template is not None:
            self._template.close()

    def _require_template(self) -> ChatTemplate:
        if self._template is None:
            raise TemplateRefused("this model has no chat template; send a plain prompt instead")
        return self._template
