"""The first steps, taken before anybody is let in: what is slow once is slow here, what cannot run fails here."""

from specialist.account import Account, Accounts
from specialist.events import Finished
from specialist.loop import StepLoop
from specialist.request import Request
from specialist.service.replica import Replica


class NotWarm(RuntimeError):
    """The engine could not answer its first request."""


_ROUNDS = (1, 1, 3)
"""Requests at once. The first round is slow for reasons of its own and not measured."""


def warm_up(replica: Replica, loop: StepLoop) -> list[Account]:
    """Short prompts and answers, in a cache that nobody shares. What their steps took, for the desk."""
    replica.words.warm_up()
    replica.grammars.table()
    accounts: list[Account] = []
    for number, count in enumerate(_ROUNDS):
        for index in range(min(count, replica.scheduler.config.max_running)):
            replica.scheduler.submit(_first_request(replica, number, index))
        measured = _run(replica, loop)
        accounts += measured if number else []
    return accounts


def _first_request(replica: Replica, number: int, index: int) -> Request:
    size = min(4 + 4 * number, max(1, replica.context // 2))
    prompt = tuple((index + token) % replica.words.vocab_size for token in range(size))
    length = min(4, replica.context - len(prompt))
    name = f"warm-up {number}.{index}"
    return Request(name, replica.lane, prompt, max_tokens=length, tenant_salt=name.encode())


def _run(replica: Replica, loop: StepLoop) -> list[Account]:
    """Raises NotWarm."""
    accounts = Accounts(replica.scheduler)
    taken: list[Account] = []
    while (step := loop.run_once()) is not None:
        events = replica.scheduler.take_events()
        taken.append(accounts.of(step, events, replica.clock.now()))
        for event in events:
            if isinstance(event, Finished) and event.reason not in ("stop", "length"):
                raise NotWarm(f"the engine ended its first request with {event.reason}: {event.detail}")
    if replica.scheduler.ledger.live:
        raise NotWarm("the engine did not take up its first requests")
    return taken
