"""Where product code does what the rules forbid, and why it may. One that is no longer needed fails the test."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowed:
    rule: str
    file: str
    function: str
    reason: str


EXCEPTIONS = (
    Allowed("process", "octet/supervise/apart.py", "apart", "our own code in a child, whose memory goes with it"),
    Allowed("process", "octet/supervise/spawn.py", "spawn", "the supervisor's children, each a role of our own"),
    Allowed("process", "router/verify/cage.py", "_start", "the cage is built by a child of its own"),
    Allowed("process", "router/verify/own_work.py", "main", "a keeper and the worker that it ends with itself"),
    Allowed("process", "octet/supervise/spawn.py", "_execute", "a child becomes one of our own commands, by a list"),
    Allowed(
        "process", "router/training/compiled.py", "_output", "training runs the compiler; nothing serves meanwhile"
    ),
    Allowed("process", "router/verify/cage.py", "_run_inside", "the cage becomes the compiler that it was made for"),
    Allowed("process", "router/verify/compiler.py", "_said", "asks the configured compiler for its version and paths"),
    Allowed("process", "router/verify/own.py", "OwnVerifier._start", "an operator's verifier runs in its own process"),
    Allowed("process", "router/verify/sandbox.py", "_trouble_with", "tries whether a cage can be built, with `true`"),
    Allowed(
        "process", "router/verify/sandbox.py", "libraries_of", "asks the linker which libraries the compiler needs"
    ),
    Allowed("process", "router/verify/workshop.py", "_run", "answers are compiled and parsed in killable processes"),
    Allowed("process", "specialist/models/demo.py", "_watched", "pip fetches the demo model, whose sha256 is pinned"),
    Allowed("process", "specialist/ops/cpu/build.py", "_run", "compiles our own kernels"),
    Allowed("process", "specialist/text/child.py", "Child.__init__", "templates are rendered in a killable process"),
    Allowed(
        "import_by_name", "router/verify/own_work.py", "loaded", "a verifier that the operator's configuration names"
    ),
    Allowed(
        "native_library", "specialist/ops/cpu/library.py", "load_library", "our own kernels, from the user's cache"
    ),
    Allowed(
        "fetch", "octet/sdk/unreachable.py", "_listens", "knocks at the loopback port the caller named; sends nothing"
    ),
    Allowed("secret_compared", "router/keys/shown.py", "_key", "compares the names of headers, not what they hold"),
    Allowed(
        "secret_compared", "specialist/ops/cpu/prepared.py", "_is_intact", "a checksum of our own cache, no secret"
    ),
    Allowed("everywhere", "bench/pages/faults.py", "Run._outcomes", "pytest writes tests with two colons"),
    Allowed("everywhere", "router/rules/linker.py", "_is_symbol", "C++ writes scopes with two colons"),
    Allowed("everywhere", "router/verify/cpp_text.py", "_name", "C++ writes scopes with two colons"),
)
