"""What a conversation shows: the answer on standard output, everything about it on standard error."""

import json
import os
import sys
from typing import Any, Protocol

from octet.command_line import complain, status_of
from octet.sdk.answer import Chunk
from octet.sdk.errors import NoSpecialist, OctetError
from octet.sdk.receipt import Receipt
from octet.shown import shown
from octet.text_io import write

_DIM, _PLAIN = "\033[2m", "\033[0m"
_ORDERS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), 127, *range(128, 160)) if chr(code) not in "\n\t"}
"""Letters that a terminal would take for an order."""


class Screen(Protocol):
    def routed(self, receipt: Receipt) -> None: ...

    def chunk(self, chunk: Chunk) -> None: ...

    def whole(self, receipt: Receipt) -> None: ...

    def cut(self, *, is_kept: bool) -> None:
        """The user has had enough of an answer."""

    def failed(self, error: OctetError, *, begun: bool) -> None: ...

    def why(self, receipt: Receipt) -> None: ...

    def say(self, words: str) -> None:
        """What is no answer."""


class TextScreen:
    """For people. Dim, and free of orders to the terminal, only where there is a terminal."""

    def __init__(self) -> None:
        self._out_is_terminal = sys.stdout.isatty()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self._dim = sys.stderr.isatty() and not plain

    def routed(self, receipt: Receipt) -> None:
        """Told at the end."""

    def chunk(self, chunk: Chunk) -> None:
        write(chunk.text.translate(_ORDERS) if self._out_is_terminal else chunk.text)

    def whole(self, receipt: Receipt) -> None:
        write("\n")
        self._tell(answered(receipt))

    def cut(self, *, is_kept: bool) -> None:
        write("\n")
        self._tell("cut short; what came of it is kept" if is_kept else "cancelled before anything came; not kept")

    def failed(self, error: OctetError, *, begun: bool) -> None:
        if begun:
            write("\n")
        here = "; here that is /specialist NAME" if isinstance(error, NoSpecialist) else ""
        complain("chat", f"{error}{here}" + ("; the turn is not kept" if begun else ""))

    def why(self, receipt: Receipt) -> None:
        self.say(shown(receipt))

    def say(self, words: str) -> None:
        print(words.translate(_ORDERS), file=sys.stderr)

    def _tell(self, words: str) -> None:
        line = words.translate(_ORDERS).replace("\n", " ")
        print(f"{_DIM}{line}{_PLAIN}" if self._dim else line, file=sys.stderr)


class JsonScreen:
    """For programs: the events of `octet generate --json`, each with the number of its turn."""

    def __init__(self) -> None:
        self._turn = 1

    def routed(self, receipt: Receipt) -> None:
        self._write({"routed": receipt.to_dict()})

    def chunk(self, chunk: Chunk) -> None:
        self._write({"chunk": {"text": chunk.text, "token_ids": chunk.token_ids}})

    def whole(self, receipt: Receipt) -> None:
        self._write({"receipt": receipt.to_dict()})
        self._turn += 1

    def cut(self, *, is_kept: bool) -> None:
        self._write({"cut": {"kept": is_kept}})
        self._turn += 1

    def failed(self, error: OctetError, *, begun: bool) -> None:
        said = {"kind": type(error).__name__, "message": str(error), "reason": error.reason, "status": status_of(error)}
        self._write({"error": said})
        self._turn += 1
        complain("chat", str(error))

    def why(self, receipt: Receipt) -> None:
        write(json.dumps({"why": receipt.to_dict()}, ensure_ascii=False) + "\n")

    def say(self, words: str) -> None:
        print(words, file=sys.stderr)

    def _write(self, event: dict[str, Any]) -> None:
        write(json.dumps({"turn": self._turn, **event}, ensure_ascii=False) + "\n")


def answered(receipt: Receipt) -> str:
    """Who, how sure, why, and what it took, in one line."""
    sure = "" if receipt.decision.confidence is None else f" {receipt.decision.confidence:.2f}"
    said = [f"{receipt.specialist or 'nobody'}{sure}: {receipt.why}"]
    if receipt.usage is not None:
        said.append(f"{receipt.usage.cache_hit_tokens} of {receipt.usage.prompt_tokens} prompt tokens cached")
        speed = receipt.usage.tokens_per_second
        said += [] if speed is None else [f"{speed:.1f} tok/s"]
        said += ["cut at its longest length"] if receipt.usage.finish_reason == "length" else []
    return " · ".join(said)
