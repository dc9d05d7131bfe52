"""`octet jobs`: submit, list, watch and cancel background jobs."""

import argparse
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

import grpc

from octet.cli import requests as request
from octet.cli import router_client as cli
from octet.cli.arguments import Commands, add_option, add_parser, integer_type, parse_seconds
from octet.cli.receipts import describe_cut
from octet.client.clients import Client
from octet.client.errors import OctetError
from octet.client.jobs import Job, JobEvent
from octet.terminal import format_age, format_duration, format_table, write_output

JobCommand = Callable[[Client, argparse.Namespace], int]

_ABOUT = "run requests as background jobs and fetch their answers later"
_HELP = f"""
A job is stored before `submit` returns and ends exactly once, even if the router
is restarted meanwhile. Ended jobs are kept for a limited time.

{cli.EXIT_STATUS_HELP}"""
_ENDED_HELP = "\nThe exit status is also 4 when the job failed or was cancelled."
_LABEL = 11
_parse_event_number = integer_type(0, 2**63 - 1, "an event number must be a whole number of at least 0")


def add_jobs_command(commands: Commands) -> None:
    parser = add_parser(commands, "jobs", _ABOUT, _HELP)
    verbs = parser.add_subparsers(metavar="submit|get|list|watch|wait|cancel", required=True)
    submit = _add_verb(verbs, "submit", "submit a request and print the id of its job", _submit)
    submit.add_argument("prompt", nargs="?", help="default: standard input")
    request.add_request_options(submit, is_streamed=False)
    add_option(submit, "--idempotency-key", "KEY", "submitting twice with the same key makes one job")
    submit.set_defaults(request_id=None)
    listing = _add_verb(verbs, "list", "list your jobs, newest first", _list)
    add_option(listing, "--limit", "N", "at most N; default: 50", int)
    add_option(listing, "--before", "ID", "only jobs older than this one", default="")
    get = _add_verb(verbs, "get", "show a job and its answer so far", _get)
    cancel = _add_verb(verbs, "cancel", "cancel a job; an ended job does not change", _cancel)
    watch = _add_verb(verbs, "watch", "print a job's answer as it streams, across router restarts", _watch, _ENDED_HELP)
    wait = _add_verb(verbs, "wait", "wait for a job to end and print its answer", _wait, _ENDED_HELP)
    for each in (get, cancel, watch, wait):
        add_option(each, "job_id", "ID", "id of the job")
    for each in (listing, get, cancel):
        add_option(each, "--tenant", "NAME", "tenant of the job, for an operator's key", default="")
    add_option(watch, "--after", "N", "only events after this number", _parse_event_number, default=0)
    for each in (watch, wait):
        add_option(each, "--timeout", "SECONDS", "longest time to wait", parse_seconds)


def _add_verb(verbs: Any, name: str, about: str, command: JobCommand, more: str = "") -> argparse.ArgumentParser:
    return cli.add_command(verbs, name, about, lambda arguments: _call_router(arguments, command), more)


def _call_router(arguments: argparse.Namespace, command: JobCommand) -> int:
    with cli.open_client(arguments) as router:
        try:
            return command(router, arguments)
        except OctetError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED or error.reason:
                raise
            message = f"the server at {arguments.address} has no octet.v1.Jobs: it is not a router, or it is outdated"
            raise type(error)(message, code=error.code) from None


def _submit(router: Client, arguments: argparse.Namespace) -> int:
    prompt, options = request.request_options(arguments, request.read_prompt(arguments))
    job = router.jobs.submit(prompt, idempotency_key=arguments.idempotency_key, **options)
    return cli.print_result(arguments, job.to_dict(), job.id)


def _get(router: Client, arguments: argparse.Namespace) -> int:
    job = router.jobs.get(arguments.job_id, tenant=arguments.tenant)
    return cli.print_result(arguments, job.to_dict(), format_job(job))


def _list(router: Client, arguments: argparse.Namespace) -> int:
    jobs = router.jobs.list(arguments.limit, arguments.before, tenant=arguments.tenant)
    heading = ("job", "status", "submitted", "took", "attempts", "error")
    text = format_table(heading, [_job_row(each) for each in jobs]) if jobs else "there are no jobs"
    return cli.print_result(arguments, {"jobs": [each.to_dict() for each in jobs]}, text)


def _cancel(router: Client, arguments: argparse.Namespace) -> int:
    job = router.jobs.cancel(arguments.job_id, tenant=arguments.tenant)
    return cli.print_result(arguments, job.to_dict(), f"job {job.id} is {job.status}")


def _watch(router: Client, arguments: argparse.Namespace) -> int:
    """Print the events of a job and return the exit status. Ctrl-C leaves the job running."""
    print_event = _print_event_json if arguments.json else _JobTextOutput().print_event
    number = arguments.after
    with cli.cancel_on_interrupt(router.close) as interrupt:
        try:
            for event in router.jobs.events(arguments.job_id, number, timeout=arguments.timeout):
                number = event.number
                print_event(event)
                if event.job is not None and event.job.has_ended:
                    return _report_end("jobs watch", event.job, arguments)
        except OctetError:
            if not interrupt.pressed:
                raise
    resume = f"octet jobs watch {arguments.job_id} --after {number}"
    if interrupt.pressed:
        print(f"\nThe job continues. To see the rest: {resume}", file=sys.stderr)
        return cli.EXIT_INTERRUPTED
    cli.print_error("jobs watch", f"the events ended before the job did; continue with: {resume}")
    return cli.EXIT_FAILED


def _wait(router: Client, arguments: argparse.Namespace) -> int:
    job = router.jobs.wait(arguments.job_id, arguments.timeout)
    cli.print_result(arguments, job.to_dict(), job.text)
    return _report_end("jobs wait", job, arguments)


def _report_end(command: str, job: Job, arguments: argparse.Namespace) -> int:
    """Return the exit status, and report a job that failed, was cancelled, or has a cut answer."""
    if job.status == "done":
        request.print_cut(None if arguments.json else job.receipt)
        return 0
    why = f": {job.error.message}" if job.error is not None else ""
    text = "its partial answer was printed" if job.text else "there is no partial answer"
    cli.print_error(command, f"job {job.id} ended as {job.status}{why}; {text}; for more, run: octet jobs get {job.id}")
    return cli.EXIT_FAILED


class _JobTextOutput:
    """Prints the answer to standard output, and the job's status to standard error."""

    _is_in_text = False

    def print_event(self, event: JobEvent) -> None:
        if event.chunk is not None:
            write_output(event.chunk.text)
        elif self._is_in_text:
            write_output("\n")
        self._is_in_text = event.chunk is not None
        if event.restarted is not None:
            again = f"attempt {event.restarted} starts over; discard the text above."
            print(f"The router that ran the job stopped: {again}", file=sys.stderr)
        elif event.job is not None:
            print(event.job.status, file=sys.stderr)


def _print_event_json(event: JobEvent) -> None:
    fields: dict[str, Any] = {"number": event.number, "event": event.kind}
    if event.job is not None:
        fields["job"] = event.job.to_dict()
    elif event.chunk is not None:
        fields["chunk"] = {"text": event.chunk.text, "token_ids": event.chunk.token_ids}
    else:
        fields["attempt"] = event.restarted
    cli.print_json(fields)


def format_job(job: Job) -> str:
    rows = {
        "job": job.id,
        "status": job.status + (", cut off" if job.partial else ""),
        "submitted": _format_time(job.submitted_at),
        "started": _format_time(job.started_at),
        "ended": _format_time(job.ended_at),
        "attempts": str(job.attempts) if job.attempts > 1 else "",
        "specialist": "" if job.receipt is None else job.receipt.specialist,
        "why": "" if job.receipt is None else job.receipt.why,
        "validation": "" if job.validation is None else f"{job.validation.outcome} by {job.validation.verifier}",
        "cut": "" if job.receipt is None else describe_cut(job.receipt),
        "error": "" if job.error is None else f"{job.error.reason}: {job.error.message}",
    }
    lines = [f"{label:<{_LABEL}} {text}" for label, text in rows.items() if text]
    return "\n".join([*lines, *(["", job.text] if job.text else [])])


def _job_row(job: Job) -> tuple[str, ...]:
    took = ""
    if job.started_at is not None and job.ended_at is not None:
        took = format_duration((job.ended_at - job.started_at).total_seconds())
    submitted = format_age(round(job.submitted_at.timestamp() * 1000))
    return job.id, job.status, submitted, took, str(job.attempts), "" if job.error is None else job.error.reason


def _format_time(time: datetime | None) -> str:
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"
