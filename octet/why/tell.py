"""From everything that is known of a request to the whole story. Pure: the same story, the same words."""

from dataclasses import dataclass

from octet.operate.table import fold
from octet.printable import printable
from octet.sdk.receipt import Receipt
from octet.sdk.story import Story
from octet.why.afterwards import changes, shadow, verdict
from octet.why.arrival import arrival
from octet.why.asked import asked
from octet.why.between import between
from octet.why.choice import choice
from octet.why.door import door
from octet.why.ending import ending
from octet.why.headline import headline
from octet.why.waterfall import waterfall
from octet.why.words import Part, part
from octet.why.work import work

_INDENT = "  "
_NARROWEST = 20


@dataclass(frozen=True, slots=True)
class Told:
    headline: str
    parts: tuple[Part, ...]
    """Only those with something to say."""
    lines: tuple[str, ...]
    """Where the time went, not to be folded."""


def tell(story: Story, *, is_whole: bool = True) -> Told:
    """`is_whole`: an operator asked, so that what is not there did not happen."""
    receipt = story.receipt
    parts = (
        arrival(receipt),
        choice(receipt),
        between(receipt),
        asked(receipt),
        door(receipt),
        work(receipt),
        ending(receipt),
        shadow(story, is_whole=is_whole),
        verdict(story),
        changes(story, is_whole=is_whole),
        part("trace", f"Its trace has the id {receipt.trace_id}." if receipt.trace_id else ""),
    )
    name = receipt.request_id or "without an id"
    lead = f"request {name}: {headline(receipt)}"
    return Told(printable(lead), tuple(_clean(each) for each in parts if each.sentences), waterfall(receipt))


def alone(receipt: Receipt) -> Story:
    """All that the receipt itself tells."""
    return Story(receipt, None, "", ())


def shown(told: Told, width: int) -> str:
    """For people, none of its lines wider."""
    blocks = ["\n".join(fold(told.headline, width))]
    for each in told.parts:
        blocks.append("\n".join([each.title, *_indented(each.sentences, width)]))
        if each.title == "end":
            blocks.append("\n".join(["time", *(f"{_INDENT}{line}" for line in told.lines)]))
    return "\n\n".join(blocks)


def _indented(sentences: tuple[str, ...], width: int) -> list[str]:
    room = max(_NARROWEST, width - len(_INDENT))
    return [f"{_INDENT}{line}" for each in sentences for line in fold(each, room)]


def _clean(each: Part) -> Part:
    return Part(each.title, tuple(printable(sentence) for sentence in each.sentences))
