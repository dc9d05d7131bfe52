"""Completion for bash and zsh: the same two functions, and a few lines of each shell's own."""

from collections.abc import Iterable, Iterator

from octet.completion.tree import Command, Value, every

_WALK = """\
# What stands before the cursor: which command it is, how many words it has got, and which option waits for its value.
_octet_walk() {
    local word
    _octet_path= _octet_count=0 _octet_option=
    for word in "$@"; do
        if [ -n "$_octet_option" ]; then
            _octet_option=
            continue
        fi
        case "$_octet_path|$word" in
%(commands)s
            _octet_path="${_octet_path:+$_octet_path }$word" ;;
%(valued)s
            _octet_option=$word ;;
        *"|-"*) ;;
        *) _octet_count=$((_octet_count + 1)) ;;
        esac
    done
}
"""
_OFFER = """\
# What may stand at the cursor, of which $1 is there already.
_octet_offer() {
    _octet_list= _octet_files=
    if [ -n "$_octet_option" ]; then
        case "$_octet_path|$_octet_option" in
%(values)s
        esac
        return
    fi
    case "$1" in
    -*)
        case "$_octet_path" in
%(options)s
        esac
        return ;;
    esac
    case "$_octet_path" in
%(below)s
    esac
    case "$_octet_path|$_octet_count" in
%(positionals)s
    esac
}
"""
_BASH = """\
_octet() {
    local cur=${COMP_WORDS[COMP_CWORD]} word
    local -a before=()
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        [ "$word" = "=" ] || before+=("$word")  # --option=value comes as three words
    done
    [ "$cur" = "=" ] && cur=
    _octet_walk "${before[@]}"
    _octet_offer "$cur"
    COMPREPLY=($(compgen -W "$_octet_list" -- "$cur"))
    if [ -n "$_octet_files" ]; then
        local IFS=$'\\n'
        COMPREPLY+=($(compgen -f -- "$cur"))
        compopt -o filenames 2>/dev/null
    fi
}
complete -F _octet octet
"""
_ZSH = """\
_octet() {
    local cur=${words[CURRENT]}
    _octet_walk "${(@)words[2,CURRENT-1]}"
    if [[ $cur == --*=* ]]; then
        _octet_option=${cur%%=*}
        compset -P '*='
        cur=${cur#*=}
    fi
    _octet_offer "$cur"
    [ -n "$_octet_list" ] && compadd -- ${=_octet_list}
    [ -n "$_octet_files" ] && _files
    return 0
}
if [ "${funcstack[1]}" = "_octet" ]; then
    _octet "$@"
else
    compdef _octet octet
fi
"""


def bash_script(root: Command) -> str:
    return f"# octet for bash: source <(octet completion bash)\n{_functions(root)}{_BASH}"


def zsh_script(root: Command) -> str:
    how = '# octet for zsh: octet completion zsh > "${fpath[1]}/_octet", or source it after compinit'
    return f"#compdef octet\n{how}\n{_functions(root)}{_ZSH}"


def _functions(root: Command) -> str:
    tree = list(every(root))
    walk = {"commands": _any(_command_keys(tree)), "valued": _any(_valued_keys(tree))}
    offer = {
        "values": _cases(_option_values(tree)),
        "options": _cases((each.name, _listing(_flags(each))) for each in tree),
        "below": _cases((each.name, _listing(one.path[-1] for one in each.commands)) for each in tree if each.commands),
        "positionals": _cases(_positional_values(tree)),
    }
    return _WALK % walk + _OFFER % offer


def _command_keys(tree: list[Command]) -> Iterator[str]:
    return (f"{' '.join(each.path[:-1])}|{each.path[-1]}" for each in tree if each.path)


def _valued_keys(tree: list[Command]) -> Iterator[str]:
    for command in tree:
        for option in command.options:
            yield from (f"{command.name}|{flag}" for flag in option.flags if option.needs_value)


def _option_values(tree: list[Command]) -> Iterator[tuple[str, str]]:
    for command in tree:
        for option in command.options:
            for flag in option.flags:
                yield f"{command.name}|{flag}", _offered(option.value)


def _positional_values(tree: list[Command]) -> Iterator[tuple[str, str]]:
    for command in tree:
        for number, value in enumerate(command.positionals):
            yield f"{command.name}|{number}", _offered(value)


def _flags(command: Command) -> Iterator[str]:
    return (flag for option in command.options for flag in option.flags)


def _offered(value: Value | None) -> str:
    """Empty for nothing to offer."""
    if value is None:
        return ""
    return _listing(value.choices) if value.choices else "_octet_files=1" if value.is_file else ""


def _listing(words: Iterable[str]) -> str:
    return f'_octet_list="{" ".join(words)}"'


def _any(keys: Iterable[str]) -> str:
    patterns = [f'"{key}"' for key in keys]
    return "        " + " | \\\n        ".join(patterns) + ")"


def _cases(rows: Iterable[tuple[str, str]]) -> str:
    """Keys with the same answer share a line."""
    keys: dict[str, list[str]] = {}
    for key, answer in rows:
        if answer:
            keys.setdefault(answer, []).append(f'"{key}"')
    return "\n".join(f"        {' | '.join(found)}) {answer} ;;" for answer, found in keys.items())
