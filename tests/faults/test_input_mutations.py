"""Row 10 of docs/reliability.md: a hundred thousand mutated requests to real processes."""

import asyncio
from collections import Counter

import grpc

from octet.v1 import inference_pb2 as wire
from tests.faults.callers import connected_client, until
from tests.faults.figures import Figure
from tests.faults.history import Question
from tests.faults.hostile import (
    CLOSED,
    NONSENSE,
    RESET,
    WAITS,
    CallEnd,
    RawGrpc,
    documented_codes,
    documented_statuses,
    http_port,
    may_wait_for,
    parse_call_end,
    scraped,
    seed_and_first,
    send_http,
    small_site,
)
from tests.faults.mutations import Case, case
from tests.faults.site import Site, site
from tests.patience import PATIENCE

NUM_CASES = {"short": 2_000, "long": 100_000}
USUAL_SEED = 8
AT_ONCE = 32
INCOMPLETE_SECONDS = 1.0
"""Seconds until the client abandons an incomplete request. The server's own limits are longer."""
TOGETHER = 500
"""Number of cases between two checks that a well-behaved request still gets the same answer."""


class DamagedRequests:
    def __init__(self, site: Site, router: RawGrpc, replica: RawGrpc) -> None:
        self._port = http_port(site)
        self._doors = {"router": router, "replica": replica}
        self._allowed = {
            "http": documented_statuses() | {"200", "202"},
            **dict.fromkeys(("router", "replica"), documented_codes() | {"OK"}),
        }
        self.ended: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def send_all(self, seed: int, first: int, last: int) -> None:
        numbers = iter(range(first, last))

        async def caller() -> None:
            for number in numbers:
                await self._try(seed, number)

        await asyncio.gather(*(caller() for _ in range(AT_ONCE)))

    async def _try(self, seed: int, number: int) -> None:
        made = case(seed, number)
        ended = await self._send(made)
        self.ended[f"{made.door} {ended.code}"] += 1
        if ended.code == WAITS and may_wait_for(made.sent):
            return
        # The health protocol has no error details.
        is_healths = ended.code == "NOT_FOUND" and made.method.startswith("/grpc.health.")
        if ended.code not in self._allowed[made.door] or not (ended.is_typed or is_healths):
            self.wrong.append(f"seed {seed}, case {number}: {ended}: {made}")

    async def _send(self, made: Case) -> CallEnd:
        if made.door == "http":
            seconds = INCOMPLETE_SECONDS if may_wait_for(made.sent) else PATIENCE
            return await send_http(self._port, made.sent, seconds)
        return await self._doors[made.door].send(made.method, made.sent)


async def _left(site: Site) -> dict[str, float]:
    """Return the numbers of requests in flight and of open HTTP connections. The connection of this check is not
    counted."""
    page = await scraped(site)
    return {"requests": page["octet_inflight_requests"], "connections": page["octet_http_connections"] - 1}


async def _is_idle(site: Site) -> bool:
    return set((await _left(site)).values()) == {0.0}


def test_10_a_hundred_thousand_mutated_requests_do_no_harm(long: bool, figure: Figure) -> None:
    seed, first = seed_and_first(USUAL_SEED)
    print(f"OCTET_FAULTS_SEED={seed}")

    async def story(site: Site) -> DamagedRequests:
        router, replica = RawGrpc(site.address), RawGrpc(site.replicas[0].address)
        storm = DamagedRequests(site, router, replica)
        async with connected_client(site.address) as plain:
            asked = Question("writer", "a harmless request", 12)
            before = await plain.ask(asked)
            last = NUM_CASES["long" if long else "short"]
            for start in range(first, last, TOGETHER):
                await storm.send_all(seed, start, min(start + TOGETHER, last))
                again = await plain.ask(asked)
                assert again.tokens == before.tokens and len(again.tokens) == 12, f"after case {start}, seed {seed}"
            await until(lambda: _is_idle(site), why=lambda: _left(site))
        await router.close()
        await replica.close()
        return storm

    with site(small_site()) as made:
        pids = [made.router.pid, made.replicas[0].process.pid]
        storm = asyncio.run(story(made))
        alive = [made.router.is_alive, made.replicas[0].process.is_alive]
        output = made.router.output + made.replicas[0].process.output
    num_cases = storm.ended.total()
    print(dict(sorted(storm.ended.items())))
    print(*storm.wrong[:5], sep="\n")
    assert num_cases > 0 and alive == [True, True] and len(set(pids)) == 2
    assert "Traceback" not in output, output[-3000:]
    what = f"damaged requests sent, from case {first:,} on" if first else "damaged requests sent"
    wanted = f">= {max(1, NUM_CASES['long'] - first):,} requests"
    figure(10, what, num_cases, "requests", wanted, short=">= 1 requests")
    figure(10, "crashed processes", alive.count(False), "processes", "== 0 processes")
    figure(10, "undocumented responses", len(storm.wrong), "answers", "== 0 answers")


def test_10_a_seed_gives_the_same_cases() -> None:
    assert [case(5, number) for number in range(300)] == [case(5, number) for number in range(300)]
    assert len({case(5, number).sent for number in range(300)}) > 250
    doors = Counter(case(6, number).door for number in range(300))
    assert set(doors) == {"router", "replica", "http"} and min(doors.values()) > 10


def test_10_expected_codes_are_read_from_the_docs() -> None:
    assert {"INVALID_ARGUMENT", "RESOURCE_EXHAUSTED", "UNAVAILABLE"} <= documented_codes()
    assert documented_codes() <= {code.name for code in grpc.StatusCode}
    assert {"400", "413", "431", "504"} <= documented_statuses()
    assert wire.InferRequest.DESCRIPTOR.full_name == "octet.v1.InferRequest"


def test_10_silence_differs_from_a_closed_connection() -> None:
    refused = b'HTTP/1.1 400 Bad Request\r\n\r\n{"error": 1}'
    assert parse_call_end(refused, RESET) == CallEnd("400") and parse_call_end(
        b"HTTP/1.1 400 No\r\n\r\n", CLOSED
    ) == CallEnd("400", False)
    assert parse_call_end(b"HTTP/1.1 100 Continue\r\n\r\n" + refused, CLOSED) == CallEnd("400")
    assert parse_call_end(b"HTTP/1.1 100 Continue\r\n\r\n", WAITS) == CallEnd(WAITS)
    assert [parse_call_end(b"", end).code for end in (WAITS, CLOSED, RESET)] == [WAITS, CLOSED, RESET]
    assert parse_call_end(b"what?", CLOSED) == CallEnd(NONSENSE)


def test_10_only_an_incomplete_request_may_get_no_answer() -> None:
    whole = b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
    assert not may_wait_for(whole) and not may_wait_for(whole + b"more") and may_wait_for(whole[:-1])
    assert may_wait_for(whole[:20]) and may_wait_for(whole.replace(b"Content-Length: 2", b"transfer-encoding: chunked"))
    waits = sum(may_wait_for(case(8, number).sent) for number in range(2000) if case(8, number).door == "http")
    assert 50 < waits < 700, "most mutated requests must be answered"
