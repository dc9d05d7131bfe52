"""A model that is opened once and shared by forked processes. Opening it starts no thread, and its answers equal those
of a model that is not shared."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, sys
from pathlib import Path
os.environ["OPENBLAS_NUM_THREADS"] = "1"
from octet.clock import SystemClock
from octet.supervisor.process import call_in_fork
from specialist.scheduling.step import Emitted
from specialist.scheduling.scheduler import StepLoop
from specialist.scheduling.sequence import Request
from specialist.server.replica import assemble_replica
from specialist.server.native_replica import share_model
from specialist.server.settings import ReplicaSettings

settings = ReplicaSettings(name="teller", model=Path(sys.argv[1]), num_blocks=32, threads=2)
shared = share_model(settings)
assert len(os.listdir("/proc/self/task")) == 1, "a thread would not be copied"


def answer(shared):
    replica = assemble_replica(settings, SystemClock(), shared=shared)
    prompt = replica.codec.encode("Once upon a time")
    replica.scheduler.submit(Request("x", replica.lane, prompt, max_tokens=24))
    loop = StepLoop(replica.scheduler, replica.engine)
    while loop.run_once() is not None:
        pass
    events = replica.scheduler.take_events()
    tokens = [token for event in events if isinstance(event, Emitted) for token in event.tokens]
    return [tokens, replica.lane.revision, replica.kernels[0].choice]


first, second = call_in_fork(lambda: answer(shared)), call_in_fork(lambda: answer(shared))
assert len(first[0]) == 24 and first == second
assert first[:2] == call_in_fork(lambda: answer(None))[:2]
"""


def test_a_replica_of_shared_parts_is_the_same_replica(request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue("stories_dir")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(model)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
