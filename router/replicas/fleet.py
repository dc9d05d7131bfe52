"""Every replica of every specialist: they appear, are watched, and vanish."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from admission.breaker import Breaker
from octet.clock import Clock
from octet.config.ensemble import DispatchConfig, Ensemble
from router.background import background, for_good
from router.replicas.address import Target, check_address, fixed, is_dns, resolve
from router.replicas.channel import READING, Connect, connect
from router.replicas.lane import Lane
from router.replicas.pace import Pace, kept_pace, pace_of
from router.replicas.replica import Replica
from router.replicas.watch import Watcher

_log = logging.getLogger(__name__)
_LOOK_UP_SECONDS = 2.0
"""Between two looks at a DNS name."""
_LINGER_SECONDS = 0.1


class Fleet:
    """Created and used on a running event loop."""

    def __init__(
        self,
        ensemble: Ensemble,
        addresses: Mapping[str, Sequence[str]],
        clock: Clock,
        random: Random,
        credentials: Any,
        dial: Connect = connect,
    ) -> None:
        """`addresses` by specialist, in the order that names the replicas. Raises AddressInvalid."""
        self._dial = dial
        for given in addresses.values():
            for address in given:
                check_address(address)
        self._ensemble = ensemble
        self._addresses = addresses
        self._clock = clock
        self._random = random
        self._credentials = credentials
        self.lanes = {each.name: Lane(each.name, ensemble.dispatch, clock) for each in ensemble.specialists}
        self._pace = pace_of(sum(map(len, addresses.values())), ensemble.dispatch)
        self._tasks: dict[Replica, asyncio.Task[None]] = {}
        self._retiring: set[asyncio.Task[None]] = set()
        self._looking_up: asyncio.Task[None] | None = None
        self.changed = asyncio.Event()
        """Set after every piece of news; whoever waits clears it."""

    @property
    def replicas(self) -> list[Replica]:
        return [replica for lane in self.lanes.values() for replica in lane.replicas.values()]

    @property
    def dispatch(self) -> DispatchConfig:
        return self._ensemble.dispatch

    @property
    def waiting_for(self) -> list[str]:
        """Specialists without a replica that serves."""
        return [name for name, lane in self.lanes.items() if not lane.usable]

    async def start(self) -> None:
        await self._look_up_all()
        if any(is_dns(address) for given in self._addresses.values() for address in given):
            self._looking_up = for_good(self._keep_looking_up, "looking up replicas")

    async def close(self) -> None:
        tasks = [*self._tasks.values(), *self._retiring, *([self._looking_up] if self._looking_up else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(replica.channel.close() for replica in self._tasks))

    def apply(self, ensemble: Ensemble) -> None:
        """Other figures for the same specialists: breakers and buckets begin anew, watches where they must."""
        before, self._ensemble = self.dispatch, ensemble
        if ensemble.dispatch == before:
            return
        for lane in self.lanes.values():
            lane.govern(ensemble.dispatch)
            for replica in lane.replicas.values():
                replica.breaker = self._breaker()
        self._keep_pace(pace_of(len(self.replicas), ensemble.dispatch))

    async def _keep_looking_up(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_UP_SECONDS)
            await self._look_up_all()

    async def _look_up_all(self) -> None:
        found: dict[str, list[Target]] = {}
        for specialist, given in self._addresses.items():
            targets = found.setdefault(specialist, [])
            for index, address in enumerate(given):
                targets += await self._look_up(specialist, index, address)
        self._keep_pace(kept_pace(self._pace, sum(map(len, found.values())), self.dispatch))
        for specialist, targets in found.items():
            self._settle(self.lanes[specialist], targets)

    async def _look_up(self, specialist: str, index: int, address: str) -> Sequence[Target]:
        if not is_dns(address):
            return (fixed(index, address),)
        try:
            return await resolve(address)
        except OSError as error:
            _log.warning("%s cannot be looked up (%s): what was known before stays", address, error)
            return [each.target for each in self.lanes[specialist].replicas.values() if each.target.authority]

    def _settle(self, lane: Lane, targets: Sequence[Target]) -> None:
        """Who is new comes in; who is not there any more goes when it has answered what it had."""
        names = {f"{lane.specialist}-{target.label}" for target in targets}
        for name in [name for name in lane.replicas if name not in names]:
            self._retire(lane.replicas.pop(name))
        for target in targets:
            if f"{lane.specialist}-{target.label}" not in lane.replicas:
                self._welcome(lane, target)
        lane.told()

    def _welcome(self, lane: Lane, target: Target) -> None:
        max_running = self._ensemble.specialist(lane.specialist).max_running
        channel = self._dial(target, self._credentials, READING)
        replica = Replica(lane.specialist, target, channel, self._breaker(), self._clock, max_running)
        lane.replicas[replica.name] = replica
        self._watch(lane, replica)

    def _keep_pace(self, pace: Pace) -> None:
        if pace == self._pace:
            return
        self._pace = pace
        for lane in self.lanes.values():
            for replica in lane.replicas.values():
                self._tasks.pop(replica).cancel()
                self._watch(lane, replica)

    def _watch(self, lane: Lane, replica: Replica) -> None:
        def told() -> None:
            lane.told()
            self.changed.set()

        watcher = Watcher(replica, self._pace, self._random, told)
        self._tasks[replica] = for_good(watcher.run, f"watching {replica.name}")

    def _retire(self, replica: Replica) -> None:
        _log.info("%s at %s is not listed any more", replica.name, replica.target.address)
        self._tasks.pop(replica).cancel()
        task = background(_close_when_idle(replica), f"closing {replica.name}")
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    def _breaker(self) -> Breaker:
        config = self.dispatch
        return Breaker(
            self._clock, failures=config.failures, cool_down=config.cool_down, max_cool_down=config.max_cool_down
        )


async def _close_when_idle(replica: Replica) -> None:
    try:
        while replica.inflight:
            await asyncio.sleep(_LINGER_SECONDS)
    finally:
        await replica.channel.close()
