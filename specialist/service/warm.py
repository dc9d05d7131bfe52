"""The first steps, taken before anybody is let in: what is slow once is slow here, what cannot run fails here."""

from specialist.events import Finished
from specialist.loop import StepLoop
from specialist.request import Request
from specialist.service.replica import Replica


class NotWarm(RuntimeError):
    """The engine could not answer its first request."""


def warm_up(replica: Replica, loop: StepLoop) -> None:
    """A prompt and an answer of a few tokens, in a cache that nobody shares."""
    replica.words.warm_up()
    prompt = tuple(range(min(4, replica.words.vocab_size)))
    length = min(4, replica.context - len(prompt))
    request = Request("warm-up", replica.lane, prompt, max_tokens=length, tenant_salt=b"warm-up")
    replica.scheduler.submit(request)
    while loop.run_once() is not None:
        pass
    for event in replica.scheduler.take_events():
        if isinstance(event, Finished) and event.reason not in ("stop", "length"):
            raise NotWarm(f"the engine ended its first request with {event.reason}: {event.detail}")
