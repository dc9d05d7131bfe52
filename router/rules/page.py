"""Text from outside, read once for all detectors. Nothing here backtracks: the work is the text's length, once for its
words and once for each mark whose words are all there, and a fixed number of looks at what stands around one."""

from collections.abc import Iterator

from router.rules.mark import Mark, words_of

LOOKS = 64
"""At most so many occurrences of one mark are looked at: a text that repeats a mark without its meaning a thousand
times does not get to it at the thousand-and-first."""
_LINE = 400
"""Characters of a line that are looked at."""
_BLANKS = " \t>|"
"""What may stand before a line's first word: indentation and a mail's or a markdown's quotation marks."""


class Page:
    __slots__ = ("text", "words")

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = words_of(text)
        """In small letters."""

    def find(self, mark: Mark) -> int:
        """-1 where it is not."""
        return self.text.find(mark.text) if mark.words <= self.words else -1

    def occurrences(self, mark: Mark) -> Iterator[int]:
        at = self.find(mark)
        for _ in range(LOOKS):
            if at < 0:
                return
            yield at
            at = self.text.find(mark.text, at + len(mark.text))

    def line_starts(self, mark: Mark) -> Iterator[int]:
        """Occurrences with nothing but blanks before them on their line."""
        return (at for at in self.occurrences(mark) if not self.before(at).strip(_BLANKS))

    def before(self, at: int) -> str:
        """What stands before a position on its line."""
        start = max(0, at - _LINE)
        return self.text[max(start, self.text.rfind("\n", start, at) + 1) : at]

    def after(self, at: int) -> str:
        """The rest of a line from a position on."""
        end = self.text.find("\n", at, at + _LINE)
        return self.text[at : end if end >= 0 else at + _LINE]
