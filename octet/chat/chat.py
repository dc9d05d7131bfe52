"""Turn after turn."""

from collections.abc import Iterable

from octet.chat.screen import Screen
from octet.chat.slash import Desk, obey
from octet.command_line import WRONG, status_of
from octet.interrupt import Interrupt
from octet.sdk.client import Stream
from octet.sdk.conversation import Conversation
from octet.sdk.errors import OctetError


class Chat:
    def __init__(self, conversation: Conversation, screen: Screen, *, goes_on: bool) -> None:
        """`goes_on`: somebody is there to see what went wrong, and to try again; else the first failure ends it."""
        self._desk = Desk(conversation, screen)
        self._conversation = conversation
        self._screen = screen
        self._goes_on = goes_on

    def run(self, lines: Iterable[str]) -> int:
        """The exit status. Raises KeyboardInterrupt where nobody is there to go on."""
        for line in lines:
            status = self._obeyed(line) if _is_command(line) else self._turn(_said(line))
            if self._desk.is_over:
                return 0
            if status != 0 and not self._goes_on:
                return status
        return 0

    def _obeyed(self, line: str) -> int:
        return 0 if obey(self._desk, line) else WRONG

    def _turn(self, text: str) -> int:
        if not text.strip():
            return 0
        try:
            answer = self._conversation.stream(text)
            with Interrupt(answer.cancel) as interrupt, answer:
                return self._heard(text, answer, interrupt)
        except OctetError as error:  # before anything was asked
            self._screen.failed(error, begun=False)
            return status_of(error)

    def _heard(self, text: str, answer: Stream, interrupt: Interrupt) -> int:
        try:
            self._show(answer)
        except OctetError as error:
            if interrupt.pressed:
                return self._cut(text, answer.text)
            self._screen.failed(error, begun=bool(answer.text))
            return status_of(error)
        self._screen.whole(answer.receipt)
        return 0

    def _show(self, answer: Stream) -> None:
        is_first = True
        for chunk in answer:
            if is_first:
                self._screen.routed(answer.receipt)
                is_first = False
            self._screen.chunk(chunk)

    def _cut(self, text: str, came: str) -> int:
        """Whoever cuts an answer short has read what came of it. Raises KeyboardInterrupt where nobody goes on."""
        if not self._goes_on:
            raise KeyboardInterrupt
        if came:
            self._conversation.add(text, came)
        self._screen.cut(is_kept=bool(came))
        return 0


def _is_command(line: str) -> bool:
    return line.startswith("/") and not line.startswith("//")


def _said(line: str) -> str:
    return line[1:] if line.startswith("//") else line
