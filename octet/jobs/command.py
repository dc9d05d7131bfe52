"""`octet jobs` on the command line."""

import argparse
import json
from collections.abc import Callable
from typing import Any

import grpc

from octet.arguments import seconds
from octet.command_line import EXIT_STATUS, add_address, client, ended
from octet.generate import add_request, check_request, prompt_of, request_of
from octet.jobs.shown import listed, told
from octet.jobs.watch import wait, watch
from octet.sdk.client import Client
from octet.sdk.errors import OctetError
from octet.text_io import check_text, write

_ABOUT = "requests that nobody need wait for: submit one, and come back for its answer"
_ENDS = """
The exit status is 4 as well when the job failed or was cancelled.
"""
_MORE = """
A job is on record before `submit` returns, and ends exactly once, also when the
router is restarted in between. Jobs are kept for a while after their end."""
Do = Callable[[Client, argparse.Namespace], int]


def add_jobs_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "jobs",
        description=f"{_ABOUT[0].upper()}{_ABOUT[1:]}.\n{_MORE}\n\n{EXIT_STATUS}",
        help=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(metavar="submit|get|list|watch|wait|cancel", required=True)
    _add_submit(verbs)
    _add_list(verbs)
    for name, about, do in (
        ("get", "a job as it is now, with what it has said so far", _get),
        ("cancel", "end a job; one that has ended stays as it is", _cancel),
    ):
        verb = _verb(verbs, name, about, do)
        _named(verb)
        _add_tenant(verb)
    watching = _verb(
        verbs, "watch", "a job's answer as it comes, to its end, whatever happens in between", watch, _ENDS
    )
    _named(watching)
    watching.add_argument("--after", type=_number, default=0, metavar="N", help="events up to this one are known")
    waiting = _verb(verbs, "wait", "a job's whole answer, when it has ended", wait, _ENDS)
    _named(waiting)
    for each in (watching, waiting):
        each.add_argument("--timeout", type=seconds, metavar="SECONDS", help="to wait at most")


def _add_submit(verbs: Any) -> None:
    submit = _verb(verbs, "submit", "hand a request in, and get the id of its job", _submit, add_json=False)
    submit.add_argument("prompt", nargs="?", help="default: standard input")
    add_request(submit, is_awaited=False)
    submit.add_argument("--idempotency-key", metavar="KEY", help="submitted twice with the same key, it is one job")
    submit.add_argument("--json", action="store_true", help="the job as JSON")
    submit.set_defaults(request_id=None)
    run = submit.get_default("run")

    def checked(arguments: argparse.Namespace) -> int:
        check_request(submit, arguments)
        return int(run(arguments))

    submit.set_defaults(run=checked)


def _add_list(verbs: Any) -> None:
    listing = _verb(verbs, "list", "your jobs, newest first", _list)
    listing.add_argument("--limit", type=int, metavar="N", help="at most so many; default: the router's")
    listing.add_argument("--before", default="", metavar="ID", help="only those older than this one")
    _add_tenant(listing)


def _verb(verbs: Any, name: str, about: str, do: Do, more: str = "", *, add_json: bool = True) -> Any:
    parser = verbs.add_parser(
        name,
        help=about,
        description=f"{about[0].upper()}{about[1:]}.\n\n{EXIT_STATUS}{more}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_address(parser)
    if add_json:
        parser.add_argument("--json", action="store_true", help="as JSON, with all there is")
    parser.set_defaults(run=lambda arguments: ended(f"jobs {name}", lambda: _asked(arguments, do)))
    return parser


def _named(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job_id", metavar="ID", help="of the job")


def _add_tenant(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", default="", metavar="NAME", help="whose it is, for an operator's key")


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > len(str(2**63)) - 1:
        raise argparse.ArgumentTypeError(f"the number of an event is a whole number, got {text!r}")
    return int(text)


def _asked(arguments: argparse.Namespace, do: Do) -> int:
    check_text("ID", getattr(arguments, "job_id", None))
    check_text("--tenant", getattr(arguments, "tenant", None))
    with client(arguments) as router:
        try:
            return do(router, arguments)
        except OctetError as error:
            if error.code != grpc.StatusCode.UNIMPLEMENTED or error.reason:
                raise
            words = f"what answers at {arguments.address} has no octet.v1.Jobs: it is no router, or an older one"
            raise type(error)(words, code=error.code) from None


def _submit(router: Client, arguments: argparse.Namespace) -> int:
    prompt, options = request_of(arguments, prompt_of(arguments))
    job = router.jobs.submit(prompt, idempotency_key=arguments.idempotency_key, **options)
    return _show(arguments, job.to_dict(), job.id)


def _get(router: Client, arguments: argparse.Namespace) -> int:
    job = router.jobs.get(arguments.job_id, tenant=arguments.tenant)
    return _show(arguments, job.to_dict(), told(job))


def _list(router: Client, arguments: argparse.Namespace) -> int:
    jobs = router.jobs.list(arguments.limit, arguments.before, tenant=arguments.tenant)
    return _show(arguments, {"jobs": [each.to_dict() for each in jobs]}, listed(jobs))


def _cancel(router: Client, arguments: argparse.Namespace) -> int:
    job = router.jobs.cancel(arguments.job_id, tenant=arguments.tenant)
    return _show(arguments, job.to_dict(), f"job {job.id} is {job.status}")


def _show(arguments: argparse.Namespace, plain: dict[str, Any], text: str) -> int:
    write((json.dumps(plain, ensure_ascii=False) if arguments.json else text) + "\n")
    return 0
