"""How a request ended."""

from octet.sdk.receipt import ErrorDetails, Receipt, Usage
from octet.why.words import Part, counted, part, reason, sentence, time

_FINISHES = {
    "stop": "The answer ended by itself.",
    "cancelled": "The replica stopped because it was cancelled.",
    "deadline": "The replica stopped at its deadline.",
    "error": "The replica stopped because it failed.",
    "shed": "The replica stopped because it had to give way to a higher priority.",
}


def ending(receipt: Receipt) -> Part:
    return part(
        "end",
        _finish(receipt.usage, receipt.admission.max_tokens if receipt.admission else 0) if receipt.usage else "",
        _error(receipt.error) if receipt.error is not None else "",
        _blame(receipt.error) if receipt.error is not None else "",
        _retry(receipt.error) if receipt.error is not None else "",
        "How it ended is not on the receipt." if receipt.usage is None and receipt.error is None else "",
    )


def _finish(usage: Usage, most: int) -> str:
    if usage.stop_string is not None:
        return f'The answer ended before the stop string "{usage.stop_string}".'
    if usage.finish_reason == "length":
        return "The answer was cut at its longest length" + (f", {counted(most, 'token')}." if most else ".")
    if not usage.finish_reason:
        return ""
    return _FINISHES.get(usage.finish_reason, f"The answer ended with {usage.finish_reason}.")


def _error(error: ErrorDetails) -> str:
    name = f" ({error.reason})" if error.reason else ""
    why = reason(error.reason) if error.reason else "an error without a reason"
    words = f' In the server\'s words: "{error.message.strip()}".' if error.message.strip() else ""
    return f"The caller got an error: {why}{name}.{words}"


def _blame(error: ErrorDetails) -> str:
    if not error.field and not error.limit:
        return ""
    field = f"The field to blame was {error.field}." if error.field else ""
    limit = f"The limit: {sentence(error.limit)}" if error.limit else ""
    value = f"What came: {sentence(error.value)}" if error.value else ""
    return " ".join(each for each in (field, limit, value) if each)


def _retry(error: ErrorDetails) -> str:
    if error.retry_after is None:
        return ""
    return f"Trying again was worthwhile after {time(error.retry_after)}."
