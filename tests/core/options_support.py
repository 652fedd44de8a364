"""What the tests of options share."""

from __future__ import annotations

LOCK_FIELDS = [
    "lease_duration",
    "timeout",
    "timeout_after_lease",
    "retries",
    "poll_period",
    "server_wait",
    "heartbeat_period",
    "auto_renew",
    "renewal",
    "data",
    "replace_data",
    "attributes",
    "only_if_exists",
    "delete_on_release",
    "reentrant",
    "handover",
    "fail_closed",
    "max_hold",
    "stop_grace",
    "stall_timeout",
    "lock_delay",
    "cancel_on_loss",
    "mode",
    "permits",
    "weight",
    "clock_skew",
    "server_clock",
    "owner_probe",
]


CLIENT_FIELDS = [
    *LOCK_FIELDS,
    "url",
    "prefix",
    "owner",
    "request_timeout",
    "drift_bound",
    "max_lease_duration",
    "allow_unsafe",
    "provision",
    "audit_period",
    "session_locks_max",
    "token_floor",
    "observations",
    "on_event",
]
