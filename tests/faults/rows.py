"""The thirty faults: what happens, which figure is demanded of us, and which tests show it."""

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
    """Tests outside this folder that show a part of it, as pytest names them."""

    @property
    def tests(self) -> tuple[str, ...]:
        """In this folder a test is named for its row."""
        return (*(name for name in names_here() if re.search(rf"::test_{self.number}_", name)), *self.elsewhere)


@cache
def names_here() -> tuple[str, ...]:
    return tuple(
        f"{HERE}/{file.name}::{name}" for file in sorted((ROOT / HERE).glob("test_*.py")) for name in names_in(file)
    )


def names_in(file: Path) -> list[str]:
    return re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)


_CHAOS = "tests/chaos/test_chaos.py::test_"
_FAULTS = "tests/router/service/test_faults.py::test_"
_OVERLOAD = "tests/bench/test_admission_laws.py::test_"
_HOSTILE = "tests/service/test_hostile.py::test_"
_ADAPTERS = "tests/adapters/test_load.py::test_"
_ITSELF = ", where the machine was itself"
_NOT_IN_TEST = (
    ". (Live only in `make faults` and `make proofs`: the short form takes 15 s of CPU, too long for `make test`)"
)

ROWS = (
    Row(
        1,
        "a replica is killed in the middle of answers, twenty times",
        "every request ends exactly once; no token lost or repeated; at most 20 % of what is under way is tried again; "
        "recovery within 2 s; who is lost is told so, and when to ask again",
        (f"{_CHAOS}killed_replicas_cost_only_what_they_were_saying",),
    ),
    Row(
        2,
        "a replica is stopped for 30 s and goes on",
        "its breaker opens within 1.5 s; no token of before comes after; it is probed before it is trusted",
        (
            f"{_CHAOS}a_stopped_replica_is_noticed_within_two_seconds_and_comes_back",
            "tests/router/replicas/test_replica.py::"
            "test_one_that_hung_is_asked_once_before_it_is_asked_as_often_as_others",
        ),
    ),
    Row(
        3,
        "a replica has a tenth of a core",
        f"p99 TTFT at the others within 20 %{_ITSELF}; the slow one's share falls" + _NOT_IN_TEST,
    ),
    Row(
        4,
        "all replicas of a specialist are down",
        f"503 within 50 ms, or a stand-in that the receipt names; p95 of the others within 10 %{_ITSELF}. (Measured "
        "from 6 s after the loss on: in the first 5 s a request waits for a restart, 1 s at most, which is a figure, "
        "too)",
        (f"{_FAULTS}a_lane_that_is_away_is_told_at_once",),
    ),
    Row(
        5,
        "ten times as many requests as can be served, in bursts",
        "goodput at least 90 % of the peak; nobody of the highest class late before all lower ones are shed; refusals "
        "within 5 ms. (The tests simulate; how soon a refusal comes is measured by `octet bench admission --live`, not "
        "here)",
        (
            f"{_OVERLOAD}goodput_under_the_flood_is_nine_tenths_of_the_peak",
            f"{_OVERLOAD}lower_classes_are_served_and_yet_no_admitted_request_of_the_highest_is_late",
        ),
    ),
    Row(
        6,
        "callers without patience, and a specialist that fails at everything",
        "at most 1.2 attempts for every request",
        (
            f"{_FAULTS}retries_never_outrun_their_bucket",
            f"{_FAULTS}a_share_of_those_lost_together_is_tried_again_and_the_others_are_told_that_they_were_lost",
        ),
    ),
    Row(
        7,
        "a specialist's answers become wrong",
        "at most one change of its breaker in a window; back only after it has recovered; few samples never trip it",
        (
            "tests/admission/test_correctness.py::"
            "test_a_pass_rate_that_walks_around_the_floor_moves_it_at_most_once_a_window",
            "tests/admission/test_correctness.py::test_a_pass_rate_that_walks_around_the_floor_does_move_it",
            "tests/admission/test_correctness.py::test_few_samples_change_nothing_at_all",
            "tests/admission/test_correctness_laws.py::test_from_shadow_only_it_recovers_where_the_floor_is_reached",
            "tests/story/test_demotion.py",
        ),
    ),
    Row(
        8,
        "a thousand callers go away: they cancel, are killed, close one half, never read",
        "no block, seat or memory is left taken; one who never reads is cut",
        (
            "tests/service/test_aborts.py::test_a_thousand_aborts_leave_nothing_behind",
            f"{_HOSTILE}a_caller_that_never_reads_is_cut_and_costs_no_memory",
        ),
    ),
    Row(
        9,
        "500 connections that are opened and say nothing, or little and slowly",
        "p99 of the others within 20 %; closed within 60 s",
        ("tests/router/keys/test_half_open.py::test_calls_that_no_limit_counts_are_bounded",),
    ),
    Row(
        10,
        "requests that are bit-flipped, truncated, nested, of wrong types",
        "100,000 of them: no crash, nothing held, only documented codes",
        (f"{_HOSTILE}whatever_the_bytes_only_documented_statuses_come_back",),
    ),
    Row(
        11,
        "numbers that are none, infinite, negative or huge",
        "refused by name; a neighbour in the same batch is answered bit by bit the same",
        (f"{_HOSTILE}every_wrong_value_is_refused_by_name_and_the_neighbour_notices_nothing",),
    ),
    Row(
        12,
        "prompts of megabytes, of invalid text, of text that looks like control tokens",
        "refused within 50 ms with the limit; no control token is ever made of text",
        (
            f"{_HOSTILE}oversize_is_answered_at_once",
            "tests/text/test_encoder.py::test_no_text_becomes_a_control_token_and_all_of_it_comes_back",
        ),
    ),
    Row(
        13,
        "a prompt that the pool cannot hold, a draft window that never fits",
        "refused at once and by name",
        (
            "tests/specialist/test_request.py::test_a_prompt_that_leaves_no_room_for_an_answer_is_refused",
            "tests/specialist/test_request.py::test_a_draft_window_that_never_fits_is_given_up",
        ),
    ),
    Row(
        14,
        "a megabyte of nested text against the rules",
        "read within 20 ms. (Of a prompt its first and its last 32 K characters decide; that detectors take no more "
        "than twice as long for twice the text is another test's)",
        ("tests/router/decisions/test_rules_time.py::test_a_megabyte_of_the_worst_is_read_in_no_time",),
    ),
    Row(
        15,
        "the disk is full, or cannot be written to; the database restarts",
        "requests are served, what waits is counted, nothing half-written is ever loaded",
        (
            "tests/octet/store/test_outage.py::test_killed_and_restarted_under_load",
            "tests/octet/store/test_faults.py::test_a_database_in_trouble_keeps_nobody_waiting_and_is_loud",
            f"{_ADAPTERS}a_truncated_file_is_refused",
        ),
    ),
    Row(
        16,
        "the wall clock is set an hour ahead, an hour back, beyond 2038",
        "nobody's deadline passes for it; no breaker sticks; windows keep their order" + _NOT_IN_TEST,
        (
            "tests/admission/test_correctness.py::test_a_clock_that_was_wrong_once_does_not_stop_it_for_ever",
            "tests/admission/test_correctness.py::test_a_clock_that_is_set_back_a_little_only_makes_it_wait",
        ),
    ),
    Row(
        17,
        "the way to a replica is cut, cut one way, slow, reset; then everything at random, for ten minutes",
        "every request ends exactly once; tokens in order and of the right lane; nothing left",
    ),
    Row(
        18,
        "an adapter that is truncated, bit-flipped, of another shape, not finite",
        "refused by name; the old one goes on serving",
        (
            f"{_ADAPTERS}a_truncated_file_is_refused",
            f"{_ADAPTERS}a_flipped_bit_is_refused_or_makes_another_adapter",
            f"{_ADAPTERS}tensors_that_do_not_fit_are_refused",
            "tests/adapters/test_store.py::test_a_refused_adapter_changes_nothing",
        ),
    ),
    Row(
        19,
        "an adapter that is hostile: a pickle, a path out of its folder, weights that spoil every answer",
        "refused, or never trusted: it shadows first, and is rolled back by itself",
        (
            f"{_ADAPTERS}a_pickle_is_never_opened",
            f"{_ADAPTERS}what_is_no_file_of_the_directory_is_refused",
            "tests/story/test_refresh.py::test_random_weights_never_serve",
        ),
    ),
    Row(
        20,
        "an adapter is given new weights every two seconds, for five minutes, under load",
        "every answer is that of the digest on its receipt",
        ("tests/story/test_hot_swap.py",),
    ),
    Row(
        21,
        "requests give way at random, and go on, also from a spoiled snapshot",
        "the same tokens as without",
        (
            "tests/laws/test_laws.py::test_a_thousand_histories_keep_every_law",
            "tests/laws/test_same_answer.py::test_a_preempted_hybrid_goes_on_where_it_stopped",
        ),
    ),
    Row(
        22,
        "a tenant guesses another's prompt by the time an answer takes",
        "no block is shared; 2,000 guesses are right no more often than chance",
        (
            "tests/router/keys/test_isolation.py::test_another_tenants_prompt_cannot_be_told_by_the_time_it_takes",
            "tests/router/keys/test_tenants.py::test_no_prefix_and_no_conversation_is_found_across_tenants",
        ),
    ),
    Row(
        23,
        "no key, a wrong one, an expired one, another tenant's request, a user at the operator's door",
        "every call and every route refuses; secrets are never written down",
        (
            "tests/router/keys/test_default_deny.py::test_every_call_that_is_served_asks_for_what_it_declares",
            "tests/router/keys/test_default_deny.py::test_every_route_of_the_table_asks_for_what_it_declares",
            "tests/router/keys/test_limits_live.py::test_hostile_keys_cost_little_and_are_never_written_down",
        ),
    ),
    Row(
        24,
        "no certificate, another authority's, an expired one, one of another name",
        "the handshake is refused; nothing listens in plain text",
        ("tests/service/test_tls.py::test_only_a_caller_with_a_certificate_is_served",),
    ),
    Row(
        25,
        "streams that are opened and reset at once, ten thousand of them, and pings without end",
        "CPU of the others within 20 %; no more handlers than may be. (The others' is the replica's for each answer; "
        "the router's own is counted by hostile stream. Attackers share the machine, at the lowest priority; a wait "
        "has a bound of its own)",
        (f"{_HOSTILE}one_connection_never_has_all_the_calls",),
    ),
    Row(
        26,
        "95 % of a cgroup's memory are taken",
        "new work is turned away before anybody is killed, in ten minutes. (Five for a replica, five for the router)",
        ("tests/octet/rpc/test_memory_guard.py",),
    ),
    Row(
        27,
        "eight specialists are restarted one after the other",
        "no request fails",
        (f"{_CHAOS}a_rolling_restart_fails_no_request",),
    ),
    Row(
        28,
        "a request that crashes whoever computes it",
        "at most two replicas die of it; then it is refused",
        (f"{_FAULTS}a_request_that_fails_its_replicas_is_tried_twice_and_no_more",),
    ),
    Row(
        29,
        "failures of one or two replicas that are all there are",
        "the last one is never left out",
        (
            "tests/admission/test_ejection.py::test_the_best_kind_there_is_stands_and_all_of_it",
            f"{_FAULTS}the_last_replica_is_asked_whatever_its_breaker_says",
        ),
    ),
    Row(
        30,
        "a shadow that hangs, or dies",
        f"p99 of the primary within 20 %{_ITSELF}; what a shadow says is never told" + _NOT_IN_TEST,
        (
            "tests/router/shadow/test_shadows.py::test_whatever_a_shadow_does_the_primary_is_answered_and_judged",
            "tests/router/shadow/test_isolation.py::test_nobody_waits_for_a_shadow_that_hangs",
        ),
    ),
)
