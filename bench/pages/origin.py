"""Where a result's figures come from, in a few lines of a page."""

from bench.result import Machine, Result


def origin(result: Result) -> str:
    machine = result.machine
    return (
        f"`{result.command}`, {result.date}, {result.seconds / 60:.1f} minutes, commit {machine.commit}. "
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_gib:.0f} GiB, "
        f"Linux {machine.kernel}, Python {machine.python}; load {machine.load} before it began{_stolen(machine)}."
    )


def _stolen(machine: Machine) -> str:
    if machine.stolen is None:
        return ""
    return f"; {100 * machine.stolen:.0f} % of the processors' time went to other machines of the host"


def notes(result: Result) -> str:
    return "\n".join(f"- {note}" for note in result.notes if note) or "Nothing to note."
