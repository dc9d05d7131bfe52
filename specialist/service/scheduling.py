"""The scheduler of a replica, from its settings."""

from kvpool import BlockPool
from octet.clock import Clock
from octet.identity import Lane
from specialist.budget import TimedBudget
from specialist.config import SchedulerConfig
from specialist.hurry import Hurry
from specialist.scheduler import Scheduler
from specialist.service.settings import ReplicaSettings

MAX_STEP_TOKENS = 512
_FIRST_CHUNK = 64


def new_scheduler(pool: BlockPool, lane: Lane, settings: ReplicaSettings, clock: Clock, kv_dtype: str) -> Scheduler:
    config = SchedulerConfig(lane, kv_dtype=kv_dtype, max_running=settings.max_running, max_step_tokens=MAX_STEP_TOKENS)
    budget = TimedBudget(settings.itl_seconds, first_guess=_FIRST_CHUNK, most=MAX_STEP_TOKENS)
    return Scheduler(pool, config, clock, budget=budget, hurry=Hurry(settings.itl_seconds))
