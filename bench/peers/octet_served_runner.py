"""Octet as callers reach it: a specialist in its own process, called over gRPC."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import grpc

from bench.peers.serve import Loaded, Prompts, Stopwatch, serve
from octet import __version__
from octet.client.replica import SpecialistClient, SpecialistError
from octet.v1 import specialist_pb2 as wire

_REFUSALS = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
_READY = re.compile(r"ready on (\S+) \((.*)\)")


def generate(address: str, prompts: Prompts, new_tokens: int) -> dict[str, Any]:
    lengths, at = [new_tokens] * len(prompts), [0.0] * len(prompts)
    return asyncio.run(_arrive(address, prompts, lengths, at, may_refuse=False))


def arrive(address: str, prompts: Prompts, new_tokens: Sequence[int], at: Sequence[float]) -> dict[str, Any]:
    return asyncio.run(_arrive(address, prompts, new_tokens, at, may_refuse=True))


async def _arrive(
    address: str, prompts: Prompts, new_tokens: Sequence[int], at: Sequence[float], *, may_refuse: bool
) -> dict[str, Any]:
    async with SpecialistClient(address) as client:
        await client.describe()  # so that connecting is not part of an answer
        stopwatch = Stopwatch(len(prompts))
        streams = []
        for i, (prompt, length, due) in enumerate(zip(prompts, new_tokens, at, strict=True)):
            while (wait := due - stopwatch.seconds) > 0:
                await asyncio.sleep(wait)
            streams.append(asyncio.ensure_future(_stream(client, i, prompt, length, stopwatch)))
        for ended in await asyncio.gather(*streams, return_exceptions=may_refuse):
            if isinstance(ended, BaseException) and not _is_refusal(ended):
                raise ended
    return stopwatch.result()


def _is_refusal(error: BaseException) -> bool:
    return isinstance(error, SpecialistError) and error.code in _REFUSALS


async def _stream(
    client: SpecialistClient, index: int, prompt: Sequence[int], new_tokens: int, stopwatch: Stopwatch
) -> None:
    request = wire.GenerateRequest(
        request_id=f"r{index}",
        tokens=wire.TokenIds(ids=prompt),
        sampling=wire.Sampling(temperature=0.0),
        max_tokens=new_tokens,
        ignore_eos=True,
    )
    async for event in client.generate(request):
        stopwatch.arrived(index, event.chunk.token_ids)


def load(arguments: Sequence[str]) -> Loaded:
    """Start a specialist. Arguments: the path of the model, then options of `octet specialist`."""
    model, *options = arguments
    command = [sys.executable, "-m", "octet.cli", "specialist", "--port", "0", "--model", model, *options]
    service = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)  # noqa: S603
    line = service.stdout.readline() if service.stdout is not None else ""
    ready = _READY.search(line)
    if ready is None:
        raise RuntimeError(f"the specialist was not ready, but printed {line!r}")
    address, details = ready.groups()
    calls = {"generate": partial(generate, address), "arrive": partial(arrive, address)}
    return Loaded(f"octet {__version__} over gRPC, {details}", calls)


if __name__ == "__main__":
    serve(load)
