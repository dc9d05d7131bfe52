"""`octet jobs watch` and `wait`: a job's answer as it comes, or when it has ended."""

import argparse
import json
import sys
from typing import Any

from octet.command_line import FAILED, INTERRUPTED, complain
from octet.interrupt import Interrupt
from octet.sdk.client import Client
from octet.sdk.errors import OctetError
from octet.sdk.job import Job, JobEvent
from octet.text_io import write


def watch(router: Client, arguments: argparse.Namespace) -> int:
    """Its exit status. A router that is gone for a while in between changes nothing."""
    screen = _JsonScreen() if arguments.json else _TextScreen()
    number = arguments.after
    with Interrupt(router.close) as interrupt:
        try:
            for event in router.jobs.events(arguments.job_id, number, timeout=arguments.timeout):
                number = event.number
                screen.show(event)
                if event.job is not None and event.job.has_ended:
                    return ended_as("jobs watch", event.job)
        except OctetError:
            if not interrupt.pressed:
                raise
            print(f"\nthe job goes on; to see the rest: {_again(arguments, number)}", file=sys.stderr)
            return INTERRUPTED
    complain("jobs watch", f"the events ended before the job did; go on with: {_again(arguments, number)}")
    return FAILED


def wait(router: Client, arguments: argparse.Namespace) -> int:
    job = router.jobs.wait(arguments.job_id, arguments.timeout)
    write((json.dumps(job.to_dict(), ensure_ascii=False) if arguments.json else job.text) + "\n")
    return ended_as("jobs wait", job)


def ended_as(command: str, job: Job) -> int:
    """The exit status of whoever waited for it."""
    if job.status == "done":
        return 0
    why = f": {job.error.message}" if job.error is not None else ""
    said = "what it had said is shown" if job.text else "it had said nothing"
    complain(command, f"job {job.id} is {job.status}{why}; {said}; octet jobs get {job.id} tells more")
    return FAILED


class _TextScreen:
    """The answer on standard output, what happens to the job on standard error."""

    def __init__(self) -> None:
        self._begun = False

    def show(self, event: JobEvent) -> None:
        if event.chunk is not None:
            write(event.chunk.text)
            self._begun = True
            return
        if self._begun:
            write("\n")
            self._begun = False
        if event.restarted is not None:
            words = f"the router that answered has ended: attempt {event.restarted}, and what was said before is void"
            print(words, file=sys.stderr)
        elif event.job is not None:
            print(event.job.status, file=sys.stderr)


class _JsonScreen:
    def show(self, event: JobEvent) -> None:
        said: dict[str, Any] = {"number": event.number, "event": event.kind}
        if event.job is not None:
            said["job"] = event.job.to_dict()
        elif event.chunk is not None:
            said["chunk"] = {"text": event.chunk.text, "token_ids": event.chunk.token_ids}
        else:
            said["attempt"] = event.restarted
        write(json.dumps(said, ensure_ascii=False) + "\n")


def _again(arguments: argparse.Namespace, number: int) -> str:
    return f"octet jobs watch {arguments.job_id} --after {number}"
