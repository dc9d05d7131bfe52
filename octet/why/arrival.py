"""When a request came, and what it brought."""

from datetime import datetime

from octet.sdk.receipt import Receipt
from octet.why.words import Part, part

_SESSIONS = {
    "session_id": "by its session_id",
    "metadata": "by the session_id of its metadata",
    "user": "by its user_id",
}


def arrival(receipt: Receipt) -> Part:
    return part("arrival", _came(receipt), _session(receipt), _caller(receipt), _task(receipt))


def moment(unix_ms: int) -> str:
    """In the reader's time; one that no calendar has is told as it is."""
    try:
        return f"{datetime.fromtimestamp(unix_ms / 1000).astimezone():%Y-%m-%d %H:%M:%S %z}"
    except (OverflowError, OSError, ValueError):
        return f"{unix_ms} ms since 1970"


def _came(receipt: Receipt) -> str:
    when = f" on {moment(receipt.created_unix_ms)}" if receipt.created_unix_ms else ""
    return f"It came{when} with priority {receipt.priority}; higher ones are served first."


def _session(receipt: Receipt) -> str:
    if receipt.session_source in ("", "none"):
        return "It belongs to no conversation."
    known = _SESSIONS.get(receipt.session_source, f"by {receipt.session_source}")
    name = f" {receipt.session_id}" if receipt.session_id else ""
    return f"It belongs to the conversation{name}, {known}."


def _caller(receipt: Receipt) -> str:
    if not receipt.caller and not receipt.tenant:
        return ""
    key = f"the key {receipt.caller}" if receipt.caller else "a key"
    whose = f" of the tenant {receipt.tenant}" if receipt.tenant else ""
    return f"Its caller showed {key}{whose}."


def _task(receipt: Receipt) -> str:
    decision = receipt.decision
    intent = f"It declared the intent {decision.intent}." if decision.intent else ""
    most = f", and may take {decision.max_tokens} tokens at most" if decision.max_tokens else ""
    task = f"It was taken for a task of the kind {decision.task}{most}." if decision.task else ""
    return " ".join(each for each in (intent, task) if each)
