"""What the replica gets done when there is always more to do."""

from dataclasses import replace

from bench.admission.clock import Knocks
from bench.admission.mix import Mix, offers
from bench.admission.replica import Plant, name_of, request_of, step_loop
from bench.admission.shapes import Source
from specialist.events import Finished

_SETTLED = 0.2
"""Share of the work after which the batch counts as full."""


def capacity(plant: Plant, source: Source, seed: int, work: float = 120.0) -> float:
    """Seconds of lone work done in a second: requests as in a load, but all there at once and none with a deadline.

    Counted from when the batch has filled until the last in line has been taken.
    """
    clock = Knocks()
    loop = step_loop(plant, clock, seed)
    scheduler = loop.scheduler
    asked = {name_of(offer): offer for offer in offers(source, Mix(), plant.cost, 1.0, work, seed)}
    for offer in asked.values():
        scheduler.submit(replace(request_of(offer), arrival=0.0, deadline=None, priority=0))
    done, settled = 0.0, None
    while scheduler.waiting.peek() is not None:
        loop.run_once()
        ended = [event.request_id for event in scheduler.take_events() if isinstance(event, Finished)]
        done += sum(asked[name].work for name in ended)
        if settled is None and done >= _SETTLED * work:
            settled, done = clock.now(), 0.0
    if settled is None:
        raise ValueError(f"{work:g} s of work are too little to fill {plant.max_running} places")
    return done / (clock.now() - settled)
