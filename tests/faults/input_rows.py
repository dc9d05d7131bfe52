"""The tests for the rows of docs/reliability.md about hostile input and access."""

from types import MappingProxyType

_FAULTS = "tests/faults/"
_DOORS = f"{_FAULTS}test_input_doors.py::"
_HOSTILE = "tests/specialist/server/test_hostile.py::"
_KEYS = "tests/router/keys/"
_DENY = f"{_KEYS}test_default_deny.py::"

NODES: MappingProxyType[int, tuple[str, ...]] = MappingProxyType(
    {
        9: (
            f"{_DOORS}test_9_half_open_connections_are_closed_and_slow_no_caller",
            "tests/router/http/test_hostile.py::test_unfinished_head_times_out",
            "tests/router/http/test_hostile.py::test_unfinished_body_times_out",
            "tests/octet/rpc/test_request_reading.py::test_calls_without_a_request_free_their_slot",
            f"{_KEYS}test_half_open.py::test_uncounted_calls_are_bounded",
        ),
        10: (
            f"{_FAULTS}test_input_mutations.py::test_10_a_hundred_thousand_mutated_requests_do_no_harm",
            "tests/octet/rpc/test_request_reading.py::test_malformed_message_is_an_invalid_argument",
            f"{_HOSTILE}test_malformed_bytes_are_the_callers_mistake",
            f"{_HOSTILE}test_any_bytes_get_a_documented_status",
            "tests/octet/rpc/test_handlers.py::test_call_that_ends_at_once_gets_its_status",
        ),
        11: (
            f"{_FAULTS}test_input_numbers.py::test_11_invalid_numbers_do_not_harm_other_requests_of_the_batch",
            f"{_FAULTS}test_input_numbers.py::test_11_every_numeric_field_of_the_wire_has_a_range",
            f"{_HOSTILE}test_every_invalid_value_is_refused_by_name_and_other_requests_are_unaffected",
            "tests/router/routing/test_validation.py::test_validation_gives_a_request_in_range_or_a_refusal_with_its_field",
        ),
        12: (
            f"{_DOORS}test_12_endless_prompts_are_refused_at_once",
            f"{_HOSTILE}test_oversize_is_answered_at_once",
            f"{_HOSTILE}test_text_that_is_not_utf8_is_found",
            "tests/router/http/test_hostile.py::test_oversized_body_is_refused_before_it_arrives",
            "tests/text/test_encoder.py::test_no_text_becomes_a_control_token_and_all_of_it_comes_back",
            "tests/text/test_template.py::test_no_message_becomes_a_control_token",
        ),
        13: (
            f"{_FAULTS}test_input_limits.py::test_13_a_prompt_larger_than_the_pool_is_refused_at_once",
            "tests/specialist/test_request.py::test_a_prompt_that_leaves_no_room_for_an_answer_is_refused",
            "tests/specialist/test_request.py::test_a_draft_window_that_never_fits_is_dropped",
            "tests/laws/test_laws.py::test_random_histories_keep_every_law",
        ),
        14: (
            f"{_FAULTS}test_input_limits.py::test_14_a_megabyte_of_nested_templates_is_parsed_fast",
            "tests/router/routing/test_rules_time.py::test_a_hostile_megabyte_is_scanned_quickly",
        ),
        18: (
            f"{_FAULTS}test_input_adapters.py::test_18_damaged_adapters_are_refused_and_the_old_one_serves",
            "tests/adapters/test_load.py::test_a_truncated_file_is_refused",
            "tests/adapters/test_load.py::test_a_flipped_bit_is_refused_or_makes_another_adapter",
            "tests/adapters/test_store.py::test_a_refused_adapter_changes_nothing",
        ),
        19: (
            f"{_FAULTS}test_input_adapters.py::test_19_hostile_adapters_are_refused",
            f"{_FAULTS}test_input_adapters.py::test_19_a_pinned_adapter_accepts_no_other_content",
            "tests/adapters/test_load.py::test_a_pickle_is_never_opened",
            "tests/system/test_refresh.py",
        ),
        21: (
            "tests/laws/test_laws.py::test_random_histories_keep_every_law",
            "tests/laws/test_same_answer.py::test_same_answer_for_every_configuration_of_a_replica",
            "tests/laws/test_same_answer.py::test_a_preempted_hybrid_goes_on_where_it_stopped",
            "tests/native/test_torch_decoder.py::test_an_answer_is_the_same_in_any_batch",
        ),
        22: (
            f"{_FAULTS}test_input_access.py::test_22_two_thousand_probes_reveal_nothing_of_another_tenant",
            f"{_KEYS}test_isolation.py::test_timing_reveals_nothing_about_another_tenants_prompt",
            f"{_KEYS}test_tenants.py::test_prefixes_and_conversations_are_not_shared_across_tenants",
        ),
        23: (
            f"{_DENY}test_every_served_call_requires_its_declared_access",
            f"{_DENY}test_every_route_requires_its_declared_access",
            f"{_DENY}test_only_exactly_one_known_key_is_accepted",
            f"{_KEYS}test_tenants.py::test_running_request_is_visible_to_its_tenant_only",
            f"{_KEYS}test_access_grants.py::test_expiry_ends_watches",
            "tests/serve/test_keys.py::test_keys_and_tls_from_the_configuration",
        ),
        24: (
            f"{_FAULTS}test_input_access.py::test_24_only_the_right_certificate_chain_is_accepted",
            "tests/specialist/server/test_tls.py::test_only_a_caller_with_a_certificate_is_served",
            f"{_KEYS}test_certificates.py::test_a_renewed_client_ca_is_used_without_a_restart",
        ),
        25: (f"{_DOORS}test_25_reset_and_endless_streams_keep_no_caller_out",),
        28: (
            f"{_FAULTS}test_poison.py::test_28_a_poisonous_request_kills_two_replicas_and_no_third",
            f"{_FAULTS}test_poison.py::test_28_over_http_a_quarantined_request_is_a_422_without_retry",
            "tests/router/replicas/test_quarantine.py",
        ),
    }
)
"""Tests by row number."""
