"""A minimal peer (another engine that the bench measures). Its second command-line argument selects a fault."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.peers.serve import Call, Loaded, Prompts, Stopwatch, serve


class FakePeer:
    def __init__(self, behaviour: str) -> None:
        self._behaviour = behaviour
        self._num_calls = 0

    def generate(self, prompts: Prompts, new_tokens: int) -> dict[str, Any]:
        self._num_calls += 1
        if self._behaviour == "dies" or (self._behaviour == "dies later" and self._num_calls > 6):
            print("an illegal thing was done", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGILL)
        if self._behaviour == "hangs":
            time.sleep(60)
        if self._behaviour == "raises":
            raise RuntimeError("no\nluck")
        return self._answer(prompts, new_tokens - 1 if self._behaviour == "cuts short" else new_tokens)

    def _answer(self, prompts: Prompts, new_tokens: int) -> dict[str, Any]:
        print("libraries print what they like")
        stopwatch = Stopwatch(len(prompts))
        for number in range(new_tokens):
            time.sleep(0.001)
            for i, prompt in enumerate(prompts):
                stopwatch.arrived(i, (prompt[0] + number,))
        return stopwatch.result()

    def mix(self, prompts: Prompts, new_tokens: int, num_adapters: int, age_bound: None) -> dict[str, Any]:
        return self._answer(prompts, new_tokens)

    def spin(self, seconds: float) -> float:
        """Start a child process that keeps a CPU busy for `seconds`. Return its process id at once."""
        pid = os.fork()
        if pid == 0:
            stop = time.monotonic() + seconds
            while time.monotonic() < stop:
                pass
            os._exit(0)
        return pid


def load(arguments: Sequence[str]) -> Loaded:
    behaviour = arguments[1] if len(arguments) > 1 else ""
    if behaviour == "does not load":
        raise ValueError("the model is not to its taste")
    if behaviour == "never ready":
        time.sleep(60)
    peer = FakePeer(behaviour)
    calls: dict[str, Call] = {"generate": peer.generate, "spin": peer.spin}
    if "--adapters" in arguments:
        calls["mix"] = peer.mix
    return Loaded(f"fake {behaviour}".strip(), calls)


if __name__ == "__main__":
    serve(load)
