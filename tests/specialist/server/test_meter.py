"""The measured rates equal those of the cost model."""

from math import isclose

from octet.clock import ManualClock
from specialist.engines.sim.engine import CostModel
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.step import Emitted, Finished, StepFailure
from specialist.server.load_report import DecayingRate, StepMeter
from specialist.server.replica import create_sim_replica
from tests.specialist.builders import make_request
from tests.specialist.server.harness import small


def test_rate_is_amount_over_time_and_forgets() -> None:
    rate = DecayingRate(keep=0.5)
    values = [rate.value]
    rate.add(10, 2.0)
    values.append(rate.value)
    assert values == [None, 5.0]
    for _ in range(40):
        rate.add(100, 1.0)
    assert isclose(rate.value or 0, 100.0, rel_tol=1e-6)


def test_the_meter_measures_the_cost_model() -> None:
    """Only tokens cost time here, so the rates are known exactly."""
    clock = ManualClock()
    cost = CostModel(0.0, 0.001, 0.0, 0.0, 0.01, 0.0, 0.0, 0.0)
    replica = create_sim_replica(small(), clock, cost)
    meter, loop = StepMeter(clock), StepLoop(replica.scheduler, replica.engine)
    for i in range(3):
        replica.scheduler.submit(make_request(f"r{i}", lane=replica.lane, prompt=tuple(range(40)), max_tokens=20))
    num_ended = 0
    while (step := loop.run_once()) is not None:
        events = replica.scheduler.take_events()
        num_emitted = sum(len(event.tokens) for event in events if isinstance(event, Emitted))
        meter.record_step(step, num_emitted, clock.now() - step.started_at)
        ended = [event for event in events if isinstance(event, Finished)]
        num_ended += len(ended)
        for event in ended:
            meter.record_end(event)
    assert isclose(meter.prefill.value or 0, 1000.0) and isclose(meter.decode.value or 0, 100.0)
    assert num_ended == 3 and meter.drain.value is not None and meter.drain.value > 0


def test_failed_steps_are_not_counted_as_work() -> None:
    clock = ManualClock()
    replica = create_sim_replica(small(), clock, CostModel(), faults=lambda step: None)
    meter = StepMeter(clock)
    replica.scheduler.submit(make_request("r", lane=replica.lane, prompt=tuple(range(40)), max_tokens=2))
    step = replica.scheduler.assemble_step()
    assert step is not None
    replica.scheduler.commit(step, StepFailure("broken"))
    meter.record_step(step, 0, 1.0)
    assert meter.prefill.value == 0.0
