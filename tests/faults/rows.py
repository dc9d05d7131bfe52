"""The faults of docs/reliability.md: what happens, what is required, and which tests show it."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = "tests/faults"


@dataclass(frozen=True, slots=True)
class Row:
    number: int
    fault: str
    demand: str
    elsewhere: tuple[str, ...] = ()
    """Pytest node ids of tests outside this folder that show a part of the row."""

    @property
    def tests(self) -> tuple[str, ...]:
        """Tests in this folder named `test_NUMBER_...` after the row, then the tests in `elsewhere`."""
        return (*(name for name in names_here() if re.search(rf"::test_{self.number}_", name)), *self.elsewhere)


@cache
def names_here() -> tuple[str, ...]:
    return tuple(
        f"{HERE}/{file.name}::{name}" for file in sorted((ROOT / HERE).glob("test_*.py")) for name in names_in(file)
    )


def names_in(file: Path) -> list[str]:
    return re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)


_CHAOS = "tests/chaos/test_chaos.py::test_"
_FAULTS = "tests/router/serving/test_faults.py::test_"
_OVERLOAD = "tests/bench/test_admission_laws.py::test_"
_HOSTILE = "tests/specialist/server/test_hostile.py::test_"
_ADAPTERS = "tests/adapters/test_load.py::test_"

ROWS = (
    Row(
        1,
        "a replica is killed twenty times while it answers",
        "no token is lost or repeated; at most 20 % of the requests in flight are retried; new requests are answered "
        "within 2 s; a lost request ends with an error and a retry-after",
        (f"{_CHAOS}killed_replicas_cost_only_running_answers",),
    ),
    Row(
        2,
        "a replica is suspended for 30 s, then continues",
        "its health breaker opens within 1.5 s; no stale token is delivered; the replica is probed before it "
        "serves again",
        (
            f"{_CHAOS}a_stopped_replica_is_noticed_within_two_seconds_and_comes_back",
            "tests/router/replicas/test_replica.py::test_a_replica_that_hung_gets_a_single_probe_first",
        ),
    ),
    Row(
        3,
        "a replica gets a tenth of a core",
        "p99 TTFT at the other replicas rises by at most 20 %; the slow replica gets fewer requests",
    ),
    Row(
        4,
        "all replicas of a specialist are down",
        "from 30 s after the loss, when no restart is expected any more: 503 within 50 ms, or an answer from a "
        "fallback that the receipt names; p95 TTFT of other specialists rises by at most 10 %",
        (f"{_FAULTS}unreachable_specialist_is_refused_at_once",),
    ),
    Row(
        5,
        "bursts of ten times the capacity",
        "goodput (answers in time) is at least 90 % of the peak; no request of the highest priority is late before all "
        "lower ones are shed; refusals take at most 5 ms. (Simulated; for refusals, see Limits)",
        (
            f"{_OVERLOAD}goodput_under_the_flood_is_nine_tenths_of_the_peak",
            f"{_OVERLOAD}lower_classes_are_served_and_yet_no_admitted_request_of_the_highest_is_late",
        ),
    ),
    Row(
        6,
        "callers retry aggressively while a specialist fails every request",
        "the router makes at most 1.2 attempts for each request",
        (
            f"{_FAULTS}retries_never_exceed_their_budget",
            f"{_FAULTS}a_share_of_requests_lost_together_is_retried_and_the_others_are_refused",
        ),
    ),
    Row(
        7,
        "a specialist's answers become wrong",
        "its correctness breaker changes state at most once per measurement window, closes only when answers are right "
        "again, and never opens on a few samples",
        (
            "tests/admission/test_correctness.py::"
            "test_a_pass_rate_that_walks_around_the_floor_moves_it_at_most_once_a_window",
            "tests/admission/test_correctness.py::test_a_pass_rate_that_walks_around_the_floor_does_move_it",
            "tests/admission/test_correctness.py::test_few_samples_change_nothing_at_all",
            "tests/admission/test_correctness_laws.py::test_from_shadow_only_it_recovers_where_the_floor_is_reached",
            "tests/system/test_demotion.py",
        ),
    ),
    Row(
        8,
        "a thousand callers leave: they cancel, are killed, half-close, or never read",
        "no block, slot or memory leaks; a caller that never reads is cut off",
        (
            "tests/specialist/server/test_aborts.py::test_a_thousand_aborts_leave_nothing_behind",
            f"{_HOSTILE}a_caller_that_never_reads_is_cut_and_costs_no_memory",
        ),
    ),
    Row(
        9,
        "500 connections that send nothing, or send slowly",
        "p99 latency of other callers rises by at most 20 %; the connections are closed within 60 s",
        ("tests/router/keys/test_half_open.py::test_uncounted_calls_are_bounded",),
    ),
    Row(
        10,
        "requests that are bit-flipped, truncated, deeply nested or of wrong types",
        "no crash, no leak, only documented status codes",
        (f"{_HOSTILE}any_bytes_get_a_documented_status",),
    ),
    Row(
        11,
        "numbers that are NaN, infinite, negative or huge",
        "refused with an error that names the field; answers to other requests in the batch stay the same, bit for bit",
        (f"{_HOSTILE}every_invalid_value_is_refused_by_name_and_other_requests_are_unaffected",),
    ),
    Row(
        12,
        "prompts of several megabytes, with invalid text, or with text that looks like control tokens",
        "long prompts are refused within 50 ms, with the limit; text never becomes a control token",
        (
            f"{_HOSTILE}oversize_is_answered_at_once",
            "tests/text/test_encoder.py::test_no_text_becomes_a_control_token_and_all_of_it_comes_back",
        ),
    ),
    Row(
        13,
        "a prompt, or draft tokens of speculation, that the KV pool cannot hold",
        "prompts are refused immediately, with the reason; draft tokens are dropped",
        (
            "tests/specialist/test_request.py::test_a_prompt_that_leaves_no_room_for_an_answer_is_refused",
            "tests/specialist/test_request.py::test_a_draft_window_that_never_fits_is_dropped",
        ),
    ),
    Row(
        14,
        "a megabyte of nested text, of which rules read the first and the last 32 K characters",
        "reading takes at most 20 ms",
        ("tests/router/routing/test_rules_time.py::test_a_hostile_megabyte_is_scanned_quickly",),
    ),
    Row(
        15,
        "the disk is full or read-only; the database restarts",
        "requests are served; database rows that wait to be written are counted; no partial file is ever loaded",
        (
            "tests/router/store/test_outage.py::test_a_database_killed_under_load_loses_no_acknowledged_change",
            "tests/router/store/test_faults.py::test_a_database_outage_is_logged_and_blocks_no_caller",
            f"{_ADAPTERS}a_truncated_file_is_refused",
        ),
    ),
    Row(
        16,
        "the wall clock is set an hour ahead, an hour back, or beyond 2038",
        "no deadline passes early; no breaker gets stuck; measurement windows keep their order",
        (
            "tests/admission/test_correctness.py::test_a_clock_that_was_wrong_once_does_not_stop_it_for_ever",
            "tests/admission/test_correctness.py::test_a_clock_that_is_set_back_a_little_only_makes_it_wait",
        ),
    ),
    Row(
        17,
        "the network to a replica is cut, cut in one direction, slowed or reset; then random faults for ten minutes",
        "the invariants hold; the replica serves again after each fault",
    ),
    Row(
        18,
        "an adapter that is truncated or bit-flipped, has the wrong shape, or contains NaN or infinity",
        "refused with the reason; the old adapter keeps serving",
        (
            f"{_ADAPTERS}a_truncated_file_is_refused",
            f"{_ADAPTERS}a_flipped_bit_is_refused_or_makes_another_adapter",
            f"{_ADAPTERS}tensors_that_do_not_fit_are_refused",
            "tests/adapters/test_store.py::test_a_refused_adapter_changes_nothing",
        ),
    ),
    Row(
        19,
        "a hostile adapter: a pickle, a path that leads out of its folder, weights that spoil every answer",
        "refused, or rolled back before it answers callers",
        (
            f"{_ADAPTERS}a_pickle_is_never_opened",
            f"{_ADAPTERS}a_file_outside_the_directory_is_refused",
            "tests/system/test_refresh.py::test_random_weights_never_serve",
        ),
    ),
    Row(
        20,
        "an adapter is replaced every two seconds for five minutes, under load",
        "every answer comes from the adapter whose digest is on its receipt",
        ("tests/system/test_hot_swap.py",),
    ),
    Row(
        21,
        "requests are preempted at random; the saved state of some is damaged",
        "every answer has the same tokens as without preemption",
        (
            "tests/laws/test_laws.py::test_random_histories_keep_every_law",
            "tests/laws/test_same_answer.py::test_a_preempted_hybrid_goes_on_where_it_stopped",
        ),
    ),
    Row(
        22,
        "a tenant guesses another tenant's prompt from timing",
        "no block is shared; 2,000 guesses do no better than chance (an AUC of 0.5)",
        (
            "tests/router/keys/test_isolation.py::test_timing_reveals_nothing_about_another_tenants_prompt",
            "tests/router/keys/test_tenants.py::test_prefixes_and_conversations_are_not_shared_across_tenants",
        ),
    ),
    Row(
        23,
        "no key, a wrong or expired key, another tenant's request id, a caller's key on operator routes",
        "every gRPC call and HTTP route refuses; secrets are never logged",
        (
            "tests/router/keys/test_default_deny.py::test_every_served_call_requires_its_declared_access",
            "tests/router/keys/test_default_deny.py::test_every_route_requires_its_declared_access",
            "tests/router/keys/test_limits_live.py::test_hostile_keys_are_cheap_and_never_logged",
        ),
    ),
    Row(
        24,
        "no certificate, or one that is expired, from another authority or for another name",
        "the handshake is refused; no port accepts plain text",
        ("tests/specialist/server/test_tls.py::test_only_a_caller_with_a_certificate_is_served",),
    ),
    Row(
        25,
        "ten thousand streams that are opened and immediately reset, and endless pings",
        "the replica's CPU time for each answer rises by at most 20 %; the number of handlers stays bounded. "
        "(Attackers share the machine at the lowest CPU priority)",
        (f"{_HOSTILE}one_connection_cannot_use_all_call_slots",),
    ),
    Row(
        26,
        "95 % of a cgroup's memory is in use",
        "for ten minutes, new requests are refused and no process is killed",
        ("tests/octet/rpc/test_memory_guard.py",),
    ),
    Row(
        27,
        "eight specialists are restarted one by one",
        "no request fails",
        (f"{_CHAOS}a_rolling_restart_fails_no_request",),
    ),
    Row(
        28,
        "a request that crashes every replica that computes it",
        "at most two replicas die; then the request is quarantined (refused)",
        (f"{_FAULTS}a_request_that_fails_its_replicas_is_tried_twice",),
    ),
    Row(
        29,
        "a specialist has one or two replicas, and all of them fail",
        "they still get requests, because no healthy replica is left",
        (
            "tests/admission/test_ejection.py::test_all_replicas_of_the_best_available_kind_stay",
            f"{_FAULTS}the_last_replica_gets_requests_in_any_breaker_state",
        ),
    ),
    Row(
        30,
        "a shadow hangs or dies",
        "p99 TTFT of the shadowed requests rises by at most 20 %; a shadow's answer never reaches a caller",
        (
            "tests/router/shadow/test_shadows.py::test_primary_is_answered_and_evaluated_whatever_its_shadow_does",
            "tests/router/shadow/test_isolation.py::test_no_request_waits_for_a_hung_shadow",
        ),
    ),
)
