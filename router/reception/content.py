"""What is asked, whoever asks it and whenever: two requests with the same digest would make a replica do the same."""

from hashlib import sha256

from octet.v1 import specialist_pb2 as wire
from router.reception.ask import Ask


def content_digest(ask: Ask) -> bytes:
    """Of the prompt, its parameters and the specialists it names. Who asks, under which id, with how much time and how
    urgently is not in it."""
    messages = [
        wire.Message(role=turn.role, content=turn.content, tool_calls=turn.tool_calls, tool_call_id=turn.tool_call_id)
        for turn in ask.turns
    ]
    asked = wire.GenerateRequest(
        chat=wire.Chat(messages=messages, tools=ask.tools, tool_choice=ask.tool_choice),
        adapters=ask.adapters,
        sampling=ask.sampling,
        seed=ask.seed,
        max_tokens=ask.max_tokens,
        min_tokens=ask.min_tokens,
        stop=ask.stop,
        ignore_eos=ask.ignore_eos,
        context_size=ask.context_size,
        structure=ask.structure,
    )
    found = sha256()
    for part in (*(name.encode() for name in ask.force), asked.SerializeToString(deterministic=True)):
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


class ContentDigest:
    """Computed when somebody first asks for it, and then no more. What it was computed of is let go."""

    __slots__ = ("_ask", "_digest")

    def __init__(self, ask: Ask) -> None:
        self._ask: Ask | None = ask
        self._digest = b""

    def __call__(self) -> bytes:
        if self._ask is not None:
            self._digest, self._ask = content_digest(self._ask), None
        return self._digest
