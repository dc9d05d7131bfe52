"""The ensemble of the rehearsals: three specialists, with short time windows."""

from collections.abc import Callable

from tests.incidents.scripted_specialist import ScriptedSpecialist

TEMPLATE, DEBUG, BUILD = "template", "debug", "build"
PROMPTS = {
    TEMPLATE: "Why does template argument deduction fail for this variadic class template?",
    DEBUG: "My program crashes with a segmentation fault, here is the backtrace from gdb.",
    BUILD: "How do I link a static library in CMake?",
}
CONFIG = """
name: rehearse
adapter_root: .
specialists:
  template:
    describe: C++ templates, variadic packs, template argument deduction, concepts and constraints.
    examples: ["Why does deduction of this class template fail?", Write a variadic template that prints.]
    fallback: build
    floor: 0.8
    slo: {admission_to_first_token_p95: 200ms}
  debug:
    describe: Crashes, segmentation faults, backtraces from gdb, sanitizer reports.
    examples: ["My program crashes with SIGSEGV.", "What does this backtrace say?"]
    fallback: build
    floor: 0.8
  build:
    describe: CMake, Make, linkers, libraries and headers.
    examples: [Link a static library in CMake., undefined reference to vtable]
intents:
  template: {specialist: template}
  batch: {specialist: template}
  unspecified: {shadow_threshold: 0.7}
escalation: {enabled: false, min_requests: 5}
correctness: {sample_rate: 1, fresh_sample_rate: 1, window: 3s, min_samples: 5, breach: 500ms}
shadow: {budget: 1, max_inflight: 64, demoted_rate: 1, fresh_rate: 0}
lanes: {roll_back: false, min_samples: 5}
store: {url: memory}
"""


def prompts_for(name: str) -> Callable[[int], str]:
    return lambda number: f"{PROMPTS[name]} ({number})"


def make_specialists(**template: object) -> list[ScriptedSpecialist]:
    """Return the specialists. `build` knows every topic and is the fallback of the other two. The keyword arguments are
    options of the specialist `template`."""
    return [
        ScriptedSpecialist(TEMPLATE, ("template",), **template),  # type: ignore[arg-type]
        ScriptedSpecialist(DEBUG, ("crash",)),
        ScriptedSpecialist(BUILD, ("",)),
    ]
