"""What the replica's door said, what it expected, and what came."""

from octet.sdk.receipt import Admission, Forecast, Receipt
from octet.why.words import Part, counted, part, time


def door(receipt: Receipt) -> Part:
    said = receipt.admission
    if said is None:
        return part("admission", "No replica let it in.")
    return part(
        "admission",
        _let_in(said, receipt.replica),
        "It made no forecast: nothing had been measured." if said.forecast is None else _forecast(said.forecast),
        "" if said.forecast is None else _others(said.forecast),
        _what_came(receipt),
    )


def _let_in(said: Admission, replica: str) -> str:
    before = "nobody" if said.queue_position == 0 else counted(said.queue_position, "request")
    asked = f"{counted(said.prompt_tokens, 'prompt token')}, {counted(said.max_tokens, 'token')} to say at most"
    return f"{replica or 'The replica'} let it in with {before} in line before it: {asked}, seed {said.seed}."


def _forecast(forecast: Forecast) -> str:
    expected = f"It was expected to begin after {time(forecast.wait)} and to end after {time(forecast.total)}"
    if forecast.slack is None:
        return f"{expected}; it had no deadline to keep."
    if forecast.slack < 0:
        return f"{expected}, {time(-forecast.slack)} behind its deadline."
    return f"{expected}, {time(forecast.slack)} before its deadline."


def _others(forecast: Forecast) -> str:
    shed = f"{counted(forecast.displaced, 'request')} of lower priority had to be shed for it."
    aside = f"{counted(forecast.set_aside, 'request')} of lower priority, with time to wait, stood aside for it."
    told = [shed if forecast.displaced else "", aside if forecast.set_aside else ""]
    return " ".join(each for each in told if each) or "Nobody had to give way for it."


def _what_came(receipt: Receipt) -> str:
    if receipt.usage is None:
        return ""
    timings = receipt.usage.timings
    began = "It never began" if timings.queued is None else f"It began after {time(timings.queued)}"
    return f"{began}, and ended after {time(timings.total)}, by the replica's own clock."
