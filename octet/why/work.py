"""What was computed, what was remembered, and how often it had to give way."""

from octet.sdk.receipt import Receipt, Usage
from octet.why.words import Part, counted, part, time, times

_MISSES = {
    "first_time": "nothing was remembered here of its conversation",
    "evicted": "they had been computed here before, and others needed the room since",
    "other_adapter": "the conversation's last request here was computed with other adapters",
    "diverged": "the prompt is no continuation of what the conversation had said here",
    "cache_off": "the cache is switched off",
    "no_session": "it belongs to no conversation, so that nobody knows what it goes on from",
    "no_boundary": "the blocks were there, and not the state to resume from",
}


def work(receipt: Receipt) -> Part:
    usage = receipt.usage
    if usage is None:
        return part("work", "What was computed of it is not on the receipt." if receipt.admission is not None else "")
    return part("work", _prompt(usage), _said(usage), _gave_way(usage))


def _prompt(usage: Usage) -> str:
    computed = usage.prompt_tokens - usage.cache_hit_tokens
    told = (
        f"Of {counted(usage.prompt_tokens, 'prompt token')}, {usage.cache_hit_tokens} came from the cache and "
        f"{computed} had to be computed"
    )
    if usage.miss_reason:
        return f"{told}: {_MISSES.get(usage.miss_reason, usage.miss_reason.replace('_', ' '))} ({usage.miss_reason})."
    return f"{told}; all that could be reused was." if usage.timings.queued is not None else f"{told}."


def _said(usage: Usage) -> str:
    speed = usage.tokens_per_second
    rate = "" if speed is None else f", {speed:.1f} a second"
    return f"It said {counted(usage.completion_tokens, 'token')}{rate}."


def _gave_way(usage: Usage) -> str:
    waited = usage.timings.preempted
    if usage.times_preempted == 0:
        return "It never had to give way."
    how_long = "how long that took is not on the receipt" if waited is None else f"that took {time(waited)} in all"
    return f"It was preempted {times(usage.times_preempted)}, so that others could run; {how_long}."
