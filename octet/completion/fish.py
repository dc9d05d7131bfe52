"""Completion for fish."""

from collections.abc import Iterator

from octet.completion.tree import Command, Option, Value, every

_PATH = """\
# octet for fish: octet completion fish > ~/.config/fish/completions/octet.fish
# Which command stands before the cursor, and how many words it has got.
function __octet_at
    set -l path
    set -l count 0
    set -l skip 0
    for word in (commandline -opc)[2..-1]
        if test $skip = 1
            set skip 0
        else if contains -- "$path|$word" %(commands)s
            set path (string trim -- "$path $word")
        else if contains -- "$path|$word" %(valued)s
            set skip 1
        else if not string match -q -- "-*" $word
            set count (math $count + 1)
        end
    end
    test "$path" = "$argv[1]"; and test -z "$argv[2]" -o "$argv[2]" = "$count"
end
complete -c octet -f
"""


def fish_script(root: Command) -> str:
    tree = list(every(root))
    commands = " ".join(f"'{' '.join(each.path[:-1])}|{each.path[-1]}'" for each in tree if each.path)
    valued = " ".join(
        f"'{each.name}|{flag}'"
        for each in tree
        for option in each.options
        for flag in option.flags
        if option.needs_value
    )
    lines = [line for each in tree for line in _lines(each)]
    return _PATH % {"commands": commands, "valued": valued} + "\n".join(lines) + "\n"


def _lines(command: Command) -> Iterator[str]:
    here = f"complete -c octet -n \"__octet_at '{command.name}'\""
    for below in command.commands:
        yield f"{here} -a {below.path[-1]} -d {_quoted(below.about)}"
    for option in command.options:
        yield f"{here}{_flags(option)} -d {_quoted(option.about)}"
    for number, value in enumerate(command.positionals):
        if offered := _offered(value):
            yield f"complete -c octet -n \"__octet_at '{command.name}' {number}\"{offered}"


def _flags(option: Option) -> str:
    names = "".join(f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in option.flags)
    if option.value is None:
        return names
    if option.value.is_file:
        return names + (" -r -F" if option.needs_value else " -F")
    return names + (" -x" if option.needs_value else "") + _offered(option.value)


def _offered(value: Value) -> str:
    if value.choices:
        return f" -a '{' '.join(value.choices)}'"
    return " -F" if value.is_file else ""


def _quoted(text: str) -> str:
    """In fish, between single quotes, only these two mean something."""
    kept = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{kept}'"
