"""One of our own checks in a process of its own, which may take its time, its memory, or its life."""

import json
import signal
from math import ceil
from typing import Any

from router.verify.verdict import Outcome, Verdict, one_line
from router.verify.workshop import Done, Job, Workshop, isolated

_MOST_SAID = 1 << 20


class Child:
    """`module` has a `main` that reads JSON, writes a list of what is wrong with each of the texts, empty where nothing
    is, and takes the seconds of CPU it has as an argument; `name` is the verifier's, which takes turns with others."""

    def __init__(self, name: str, module: str, workshop: Workshop, cpu_seconds: float, clock_seconds: float) -> None:
        self._name = name
        self._module = module
        self._workshop = workshop
        self._cpu_seconds = ceil(cpu_seconds)
        self._clock_seconds = clock_seconds

    async def verdict(self, asked: object) -> Verdict:
        """The first trouble that it found. One that crashes or takes too long has met its match in the answer."""
        command = isolated(self._module, str(self._cpu_seconds))
        try:
            given = json.dumps(asked).encode()
            done = await self._workshop.run(Job(command, given, self._clock_seconds, _MOST_SAID, by=self._name))
        except OSError as error:
            return Verdict("unavailable", one_line(f"no process can be started: {error}"))
        outcome, why = self._read(done)
        return Verdict(outcome, one_line(why), done.seconds)

    def _read(self, done: Done) -> tuple[Outcome, str]:
        if done.ending == "out_of_time":
            return "unavailable", f"not judged within {self._clock_seconds:g} s by the clock: the machine is busy"
        if done.ending == "exited" and done.code == 0:
            try:
                return _judged(json.loads(done.out))
            except ValueError:
                return "unavailable", "the check wrote something else than its verdict"
        if done.code in (-signal.SIGKILL, -signal.SIGXCPU):
            return "failed", f"judging it takes more than {self._cpu_seconds} s of CPU"
        if done.code == -signal.SIGSEGV:
            return "failed", "nested too deeply to be parsed"
        said = done.said.decode("utf-8", "replace").strip().splitlines()
        return "unavailable", f"the check ended with {done.code}: {said[-1] if said else 'it said nothing'}"


def _judged(troubles: Any) -> tuple[Outcome, str]:
    first = next((str(trouble) for trouble in troubles if trouble), "")
    return ("failed", first) if first else ("passed", "")
