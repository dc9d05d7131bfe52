"""The replica's heartbeat: assemble, run, commit. No request can stop it."""

from specialist.engines.base import Completion, Engine, EngineFault
from specialist.scheduler import Scheduler
from specialist.step import Step, StepFailure


class StepLoop:
    def __init__(self, scheduler: Scheduler, engine: Engine) -> None:
        self.scheduler = scheduler
        self.engine = engine
        self.num_failed_discards = 0

    def run_once(self) -> Step | None:
        """Take one step. None when there is nothing to run."""
        step = self.scheduler.assemble_step()
        if step is not None:
            self.run(step)
        return step

    def run(self, step: Step) -> None:
        self.settle(step, self.complete(step))

    def settle(self, step: Step, completions: list[Completion]) -> None:
        """What the engine has made of the step becomes true."""
        for completion in completions:
            self._commit(completion)
        if self.scheduler.in_flight is step:
            self._commit(Completion(step, StepFailure("the engine did not complete the step")))

    def _commit(self, completion: Completion) -> None:
        rollbacks = self.scheduler.commit(completion.step, completion.outcome)
        try:
            self.engine.discard(rollbacks)
        except Exception:  # what was not zeroed is written over before it is read
            self.num_failed_discards += 1

    def complete(self, step: Step) -> list[Completion]:
        """The engine runs it; nothing is true of it yet."""
        try:
            completions = list(self.engine.run(step))
            if all(isinstance(completion, Completion) for completion in completions):
                return completions
            return [Completion(step, StepFailure("the engine returned something that is no completion"))]
        except EngineFault as fault:
            return [Completion(step, StepFailure(str(fault), fault.culprit))]
        except Exception as error:  # whatever an engine raises must cost one request, not the loop
            return [Completion(step, StepFailure(f"{type(error).__name__}: {error}"))]
