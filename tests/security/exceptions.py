"""Exceptions to the rules for product code, with reasons. An exception that is no longer needed fails the test."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Allowed:
    rule: str
    file: str
    function: str
    reason: str


EXCEPTIONS = (
    Allowed(
        "archive", "bench/routing_corpus/fetch.py", "_unpack", "signed source packages, unpacked with the data filter"
    ),
    Allowed(
        "archive",
        "bench/routing_corpus/fetch.py",
        "unpack_suites",
        "the compiler's sources, a signed package, unpacked with the data filter",
    ),
    Allowed(
        "process", "octet/supervisor/process.py", "call_in_fork", "our own code in a child, which frees its memory"
    ),
    Allowed(
        "process", "octet/supervisor/process.py", "spawn_process", "the supervisor's children, each a role of our own"
    ),
    Allowed("process", "router/verify/sandbox_child.py", "_start", "the sandbox is built in a child process"),
    Allowed("process", "router/verify/custom_child.py", "main", "a supervisor and its worker process"),
    Allowed("process", "octet/supervisor/process.py", "_execute", "a child becomes one of our own commands, by a list"),
    Allowed("process", "router/verify/sandbox_child.py", "_run_inside", "the sandboxed child executes the compiler"),
    Allowed(
        "process",
        "router/verify/cpp_compiler.py",
        "_run_driver",
        "asks the configured compiler for its version and paths",
    ),
    Allowed(
        "process", "router/verify/custom.py", "CustomVerifier._start", "an operator's verifier runs in its own process"
    ),
    Allowed("process", "router/verify/sandbox.py", "_probe_mode", "tests whether a sandbox works, with `true`"),
    Allowed(
        "process", "router/verify/sandbox.py", "shared_libraries", "asks the linker which libraries the compiler needs"
    ),
    Allowed("process", "router/verify/pool.py", "_run_task", "answers are compiled and parsed in killable processes"),
    Allowed("process", "specialist/models/demo.py", "_run_pip", "pip fetches the demo model, whose sha256 is pinned"),
    Allowed(
        "fetch", "specialist/models/hub.py", "_resolve", "the operator names a model of the hub: its commit and files"
    ),
    Allowed("fetch", "specialist/models/hub.py", "_download_files", "and its content, compared with the hub's digests"),
    Allowed("fetch", "specialist/models/hub.py", "_download_files.Bar", "reports the progress of that download"),
    Allowed("fetch", "specialist/models/hub.py", "_unreachable", "names the errors of that download"),
    Allowed("fetch", "specialist/models/hub.py", "_explain", "explains the errors of that download"),
    Allowed(
        "secret_compared", "specialist/models/hub.py", "_check_digests", "a digest of public content, not a secret"
    ),
    Allowed("process", "specialist/ops/cpu/library.py", "_run", "compiles our own kernels"),
    Allowed(
        "process",
        "specialist/text/codec.py",
        "LineProcess.__init__",
        "templates are rendered in a killable process",
    ),
    Allowed("import_by_name", "octet/client/records.py", "__getattr__", "protobuf code of our own, named by a table"),
    Allowed("import_by_name", "octet/client/base.py", "rpc", "protobuf code of our own, named by the SDK's calls"),
    Allowed("import_by_name", "octet/__init__.py", "__getattr__", "a module of the SDK, from a fixed table"),
    Allowed("import_by_name", "octet/cli/__init__.py", "_parser", "a command of our own, from a fixed table"),
    Allowed(
        "import_by_name", "specialist/ops/gpu/hopper.py", "for_hopper", "kernels of our own, named by their callers"
    ),
    Allowed("shell", "octet/cli/completion.py", "completion_script", "the name of a shell; no command is run"),
    Allowed(
        "import_by_name",
        "router/verify/custom_child.py",
        "load_verifier",
        "a verifier named in the operator's configuration",
    ),
    Allowed(
        "native_library", "specialist/ops/cpu/library.py", "load_library", "our own kernels, from the user's cache"
    ),
    Allowed(
        "fetch",
        "octet/client/errors.py",
        "_is_listening",
        "probes the loopback port that the caller named; sends nothing",
    ),
    Allowed(
        "secret_compared",
        "router/api/keys/gate.py",
        "_key_of_header",
        "compares names of headers and schemes, not keys",
    ),
    Allowed("secret_compared", "router/dispatch/tickets.py", "read_ticket", "the public number of a signing key"),
    Allowed(
        "secret_compared",
        "specialist/ops/cpu/packed_weights.py",
        "open_packed",
        "a checksum of our own cache, no secret",
    ),
    Allowed("unverified", "octet/config/loader.py", "_ensemble", "how a task's answers are judged, not TLS"),
    Allowed("everywhere", "router/verify/cpp_source.py", "_leading_name", "C++ writes scopes with two colons"),
)
