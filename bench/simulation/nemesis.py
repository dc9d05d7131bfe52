"""Does what a script says to the ensemble, and undoes it."""

from collections.abc import Callable

from bench.simulation.court import Court
from bench.simulation.ensemble import SimEnsemble
from bench.simulation.script import Deed
from bench.simulation.verdicts import Verdicts
from octet.rpc.cgroup_memory import Memory

_MEMORY = 1 << 30


class Nemesis:
    def __init__(self, sim: SimEnsemble, court: Court, verdicts: Verdicts) -> None:
        self._sim = sim
        self._court = court
        self._verdicts = verdicts
        self._num_under_way = 0

    @property
    def is_done(self) -> bool:
        """All that was done is undone."""
        return self._num_under_way == 0

    def plan(self, deeds: tuple[Deed, ...]) -> None:
        self._num_under_way += len(deeds)
        for deed in deeds:
            self._sim.loop.call_later(deed.at, self._do, deed)

    def _do(self, deed: Deed) -> None:
        self._court.note(f"{deed.kind} {deed.target} {deed.seconds:g}")
        self._court.see(f"deed: {deed.kind}")
        undo = self._done(deed)
        seconds = 0.0 if deed.kind in ("wall", "reset") else deed.seconds
        self._sim.loop.call_later(seconds, self._undo, deed, undo)

    def _undo(self, deed: Deed, undo: Callable[[], None]) -> None:
        undo()
        self._court.note(f"{deed.kind} {deed.target} is over")
        self._num_under_way -= 1

    def _done(self, deed: Deed) -> Callable[[], None]:
        """What undoes it."""
        if deed.kind == "wall":
            self._sim.wall.step(deed.seconds)
            return _nothing
        if deed.kind == "drift":
            return self._verdicts.spoil(deed.target)
        machine = self._sim.machines[deed.target]
        match deed.kind:
            case "kill":
                machine.kill()
                return machine.start
            case "stop":
                machine.stop()
                return machine.go_on
            case "cut" | "cut_there" | "cut_back":
                machine.link.cut(there=deed.kind != "cut_back", back=deed.kind != "cut_there")
                return machine.link.mend
            case "slow":
                machine.link.factor = deed.factor
                return lambda: setattr(machine.link, "factor", 1.0)
            case "crawl":
                machine.slowness = deed.factor / 5
                return lambda: setattr(machine, "slowness", 1.0)
            case "short":
                machine.memory = Memory(round(deed.factor * _MEMORY), _MEMORY)
                return lambda: setattr(machine, "memory", None)
            case _:
                machine.link.lose()
                return _nothing


def _nothing() -> None:
    """It cannot be undone, or need not."""
