"""Check a finished history and record the results as figures."""

from collections.abc import Sequence

from tests.faults.callers import RouterClient, until
from tests.faults.figures import Figure
from tests.faults.history import Account, History, Violation, disagreements
from tests.faults.site import Replica
from tests.patience import PATIENCE


async def put_verdict(row: int, router: RouterClient, history: History, figure: Figure) -> None:
    """Record how many responses were invalid, how many receipts disagree with them, and how many blocks and slots
    leaked. Every figure must be 0."""
    await put_verdict_of(row, router, history.since_last_restart, history.violations(), figure)


async def put_verdict_of(
    row: int, router: RouterClient, accounts: Sequence[Account], found: Sequence[Violation], figure: Figure
) -> None:
    assert accounts, "an empty history proves nothing"
    print(*found, sep="\n")
    ends = [each for each in found if each.kind == "end"]
    figure(row, "requests that did not end exactly once with a reason", len(ends), "requests", "== 0")
    figure(row, "answers with a token lost, repeated or from another lane", len(found) - len(ends), "answers", "== 0")
    disagreed = await _disagreements(router, accounts)
    print(*disagreed, sep="\n")
    figure(row, "requests whose receipt differs from what the caller saw", len(disagreed), "requests", "== 0")
    left = await count_leaks(router)
    figure(row, "leaked blocks and slots", left, "", "== 0")


async def _disagreements(router: RouterClient, accounts: Sequence[Account]) -> list[str]:
    return [words for account in accounts[-1000:] for words in await disagreement(router, account)]


async def disagreement(router: RouterClient, account: Account) -> list[str]:
    """Return the differences between the router's receipt and what the caller received."""
    if account.left:
        return []
    kept = await router.receipt(account.request_id)
    if kept is not None:
        return disagreements(account, kept)
    return [f"{account.request_id}: nothing is kept of it"] if account.tokens else []


async def count_leaks(router: RouterClient, seconds: float = PATIENCE) -> int:
    """Return how many blocks and requests the replicas still hold: 0 as soon as they hold none, or the number after
    `seconds`."""
    held = -1

    async def nothing() -> bool:
        nonlocal held
        held = await _held(router)
        return held == 0

    try:
        await until(nothing, seconds)
    except AssertionError:
        return held
    return 0


async def _held(router: RouterClient) -> int:
    overview = await router.overview()
    loads = [view.load for each in overview.specialists for view in each.replicas if view.HasField("load")]
    silent = sum(not view.HasField("load") for each in overview.specialists for view in each.replicas)
    held: int = sum(
        load.waiting + load.running + load.blocks.total - load.blocks.free - load.blocks.cached for load in loads
    )
    return silent + held


async def states(router: RouterClient) -> dict[str, tuple[str, str]]:
    """Return the current status and health breaker of each replica."""
    return {each.name: (each.status, each.health_breaker) for each in await router.replicas()}


async def until_serving(router: RouterClient, *replicas: Replica) -> None:
    async def serve() -> bool:
        found = await states(router)
        return all(found[replica.name] == ("serving", "closed") for replica in replicas)

    await until(serve, why=lambda: states(router))
