"""What rules and classifier read of a conversation: what the user wants now.

Only users' words count: an assistant's answer or a system prompt would pull the next decision towards the last one.
"""

from collections.abc import Sequence

from router.reception.ask import Turn

USER = "user"
ALONE = 128
"""Characters: a newest turn below this ("could you show me an example of that?") may mean nothing without what was said
before. Follow-ups are seldom longer; a new question that is reaches its own specialist whatever came before."""
ENOUGH = 256
"""Characters of a short turn and earlier ones together: short turns before it say no more than it does."""
MOST = 1 << 16
"""Characters. Of more, the beginning and the end are read: questions and last errors stand there, and a megabyte would
hold up everybody else's tokens for as long as it takes to read."""


def routing_text(turns: Sequence[Turn]) -> str:
    """The newest user turn; after earlier ones where it is short. Empty where no user said anything."""
    said = [turn.content.strip() for turn in turns if turn.role == USER]
    kept: list[str] = []
    length = 0
    for content in reversed(said):
        if not content:
            continue
        if length >= (ENOUGH if len(kept) > 1 else ALONE):
            break
        kept.append(content)
        length += len(content)
    return _bounded("\n\n".join(reversed(kept)))


def _bounded(text: str) -> str:
    if len(text) <= MOST:
        return text
    half = MOST // 2
    return f"{text[: half - 1]}\n{text[-half:]}"
