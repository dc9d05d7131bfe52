"""The replica processes that run each specialist's weights, started and stopped as the router wants."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from octet.supervisor.placement import ReplicaPlacement
from octet.supervisor.process import ProcessSpec
from octet.supervisor.supervisor import Supervisor
from octet.supervisor.weights import (
    RUNNING_FILE,
    WANTED_FILE,
    RunningWeights,
    WantedBySpecialist,
    WantedWeights,
    WeightsFile,
    running_to_json,
    wanted_from_json,
    weights_socket,
)

MakeReplica = Callable[[ReplicaPlacement, WantedWeights], ProcessSpec]
"""Returns a process that opens its model itself, and exits with EXIT_USAGE if it refuses the weights."""


@dataclass(frozen=True, slots=True)
class _Place:
    specialist: str
    weights: WantedWeights
    placement: ReplicaPlacement


class WeightsProcesses:
    def __init__(
        self,
        folder: Path,
        placements: Sequence[ReplicaPlacement],
        remembered: WantedBySpecialist,
    ) -> None:
        """`placements` are the configured replicas. `remembered` are the weights with which their specialists start;
        without an entry, a specialist starts with the configured weights."""
        self._shared: dict[str, ProcessSpec] = {}
        self._placements = placements
        self._wanted_file, self._running_file = WeightsFile(folder / WANTED_FILE), WeightsFile(folder / RUNNING_FILE)
        self._wanted: Mapping[str, Sequence[WantedWeights]] = {
            each.specialist.name: remembered.get(each.specialist.name) or (WantedWeights(0, each.specialist.model),)
            for each in placements
        }
        self._failed: dict[str, dict[int, str]] = {}  # why weights could not be started, while they are wanted

    def configured(self) -> list[ReplicaPlacement]:
        """Return the placements whose specialists start with the configured weights."""
        return [each for each in self._placements if any(not of.number for of in self._wanted[each.specialist.name])]

    def processes(self, shared: Sequence[ProcessSpec], make: MakeReplica) -> list[ProcessSpec]:
        """Return the processes to start with. `shared` are those that were prepared for `configured()`."""
        self._make = make
        self._shared = {spec.name: spec for spec in shared}
        others = (self._spec(place) for place in self._places().values() if place.weights.number)
        return [*shared, *others]

    def turn(self, supervisor: Supervisor) -> None:
        """Start and stop processes as the router wants, and report what runs."""
        content = self._wanted_file.read()
        if content is not None:
            known = self._wanted.keys()
            self._wanted = {**self._wanted, **{k: v for k, v in wanted_from_json(content).items() if k in known and v}}
        self._note_failed(supervisor)
        places = {
            name: place
            for name, place in self._places().items()
            if place.weights.number not in self._failed.get(place.specialist, ())
        }
        running = {each.name: each for each in supervisor.processes if not each.is_retired}
        for name in self._all_names(supervisor) - places.keys():
            supervisor.retire(name)
        opened = {name for name, place in places.items() if place.weights.number}
        is_opening = any(not running[name].was_ready for name in opened & running.keys())
        for name, place in places.items():
            # New weights are opened one at a time, so that each replica sees how much memory the others left.
            if name not in running and supervisor.can_add(name) and not (is_opening and name in opened):
                supervisor.add(self._spec(place))
                is_opening = is_opening or name in opened
        self._report(supervisor, places)

    def _note_failed(self, supervisor: Supervisor) -> None:
        numbers = {name: {each.number for each in weights} for name, weights in self._wanted.items()}
        for specialist, reasons in self._failed.items():
            for number in [number for number in reasons if number not in numbers.get(specialist, ())]:
                del reasons[number]
        for name, place in self._places().items():
            reason = supervisor.failed_starts.pop(name, None)
            if reason is not None:
                self._failed.setdefault(place.specialist, {}).setdefault(place.weights.number, reason)
        supervisor.failed_starts.clear()

    def _report(self, supervisor: Supervisor, places: Mapping[str, _Place]) -> None:
        running: dict[str, dict[int, RunningWeights]] = {
            specialist: {number: RunningWeights("failed", reason) for number, reason in reasons.items()}
            for specialist, reasons in self._failed.items()
        }
        ready = {each.name for each in supervisor.processes if each.was_ready and not each.is_retired}
        for name, place in places.items():
            states, number = running.setdefault(place.specialist, {}), place.weights.number
            if name not in ready:
                states[number] = RunningWeights("starting")
            else:
                states.setdefault(number, RunningWeights("ready"))
        self._running_file.write(running_to_json(running))

    def _places(self) -> dict[str, _Place]:
        """Return where each process runs, by its name."""
        found = {}
        for each in self._placements:
            for weights in self._wanted[each.specialist.name]:
                found[_process_name(each, weights.number)] = _Place(each.specialist.name, weights, each)
        return found

    def _all_names(self, supervisor: Supervisor) -> set[str]:
        """Return the names of all processes that run weights."""
        bases = {each.name for each in self._placements}
        return {each.name for each in supervisor.processes if each.name.partition("@")[0] in bases}

    def _spec(self, place: _Place) -> ProcessSpec:
        placement, weights = place.placement, place.weights
        name = _process_name(placement, weights.number)
        if name in self._shared:
            return replace(self._shared[name], is_optional=True)
        there = replace(
            placement,
            name=name,
            socket=weights_socket(placement.socket, weights.number),
            specialist=replace(placement.specialist, model=weights.model),
        )
        return replace(self._make(there, weights), is_optional=True)


def _process_name(placement: ReplicaPlacement, number: int) -> str:
    return placement.name if number == 0 else f"{placement.name}@{number}"
