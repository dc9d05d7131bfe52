"""The bounded part of a prompt that the classifier reads."""

HEAD, MIDDLE, TAIL = 1536, 512, 1024
LIMIT = HEAD + MIDDLE + TAIL


def sample(text: str) -> bytes:
    """All of a short prompt; of a long one its head, middle and tail: at most LIMIT bytes and two line ends.

    The work depends on LIMIT alone, whatever the length of the text.
    """
    if len(text) <= LIMIT and len(whole := _encoded(text)) <= LIMIT:
        return whole
    centre = max(0, (len(text) - MIDDLE) // 2)
    pieces = (
        _encoded(text[:HEAD])[:HEAD],
        _encoded(text[centre : centre + MIDDLE])[:MIDDLE],
        _encoded(text[-TAIL:])[-TAIL:],
    )
    return b"\n".join(pieces)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "replace")
