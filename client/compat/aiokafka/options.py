"""The options of aiokafka 0.14 as options of this client.

Three things may happen to an option: it has a counterpart (`_SAME`, or code below), it is ignored because the cluster or the
protocol decides what it decided (`IGNORED`), or it asks for something that does not exist here (`REFUSED`), and then the error
names it and an alternative. An option is refused only if it differs from its default, so that a program may spell out what it
does not use."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.client.compat.aiokafka.errors import UnsupportedByStrandline

DEFAULT_PORT = 9092

IGNORED: Mapping[str, str] = {
    "connections_max_idle_ms": "brokers close idle connections, and the client opens new ones as it needs them",
    "consumer_timeout_ms": "new partitions are noticed at once",
    "exclude_internal_topics": "a pattern never matches internal topics",
    "session_timeout_ms": "the brokers decide (group.consumer.session.timeout.ms)",
    "heartbeat_interval_ms": "the brokers decide (group.consumer.heartbeat.interval.ms)",
    "sasl_mechanism": "there is no SASL",
    "sasl_kerberos_service_name": "there is no SASL",
    "sasl_kerberos_domain_name": "there is no SASL",
}
"""Accepted without an effect, and why."""

REFUSED: Mapping[str, tuple[Any, str]] = {
    "security_protocol": ("PLAINTEXT", "listeners are plaintext as yet: run the cluster in a private network"),
    "ssl_context": (None, "listeners are plaintext as yet: run the cluster in a private network, or put a TLS proxy before it"),
    "sasl_plain_username": (None, "listeners know no users as yet"),
    "sasl_plain_password": (None, "listeners know no users as yet"),
    "sasl_oauth_token_provider": (None, "listeners know no users as yet"),
}
"""Refused, unless they have this value; and what to do instead."""

ASSIGNORS: Mapping[str, str] = {"range": "range", "roundrobin": "uniform", "sticky": "uniform", "cooperative-sticky": "uniform"}
"""By name of a client's assignor, the coordinator's assignor that does the same, or better."""


def refuse(given: Mapping[str, Any]) -> None:
    """UnsupportedByStrandline for an option that has no counterpart."""
    for name, (default, why) in REFUSED.items():
        if given.get(name, default) != default:
            raise UnsupportedByStrandline(f"option {name}={given[name]!r} is not supported: {why}")


def check_loop(loop: asyncio.AbstractEventLoop | None, api_version: str | None) -> None:
    """Warn of options that aiokafka has deprecated. RuntimeError if no event loop runs: as in aiokafka, clients are made in
    one."""
    if loop is not None:
        warnings.warn("the option `loop` has no effect: the running event loop is used", DeprecationWarning, stacklevel=3)
    if api_version is not None:
        warnings.warn("the option `api_version` has no effect", DeprecationWarning, stacklevel=3)
    asyncio.get_running_loop()


def servers(given: str | Sequence[str]) -> list[str]:
    """Bootstrap servers, with the default port where none is named."""
    listed = [server for text in ([given] if isinstance(given, str) else given) for server in text.split(",")]
    return [_with_port(server.strip()) for server in listed if server.strip()]


def _with_port(server: str) -> str:
    has_port = server.rpartition(":")[2].isdigit() and not server.endswith("]") and (server.count(":") == 1 or "]:" in server)
    if has_port:
        return server
    return f"[{server}]:{DEFAULT_PORT}" if server.count(":") > 1 and not server.startswith("[") else f"{server}:{DEFAULT_PORT}"


def common(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that every client has. Calls wait for metadata, connections and room as long as a request may take."""
    refuse(given)
    timeout_ms = given["request_timeout_ms"]
    return {
        "bootstrap_servers": servers(given["bootstrap_servers"]),
        "client_id": given["client_id"],
        "request_timeout_ms": timeout_ms,
        "max_block_ms": timeout_ms,
        "metadata_max_age_ms": given["metadata_max_age_ms"],
        "retry_backoff_ms": given["retry_backoff_ms"],
    }


def assignor(strategies: Sequence[Any], group_id: str | None) -> str | None:
    """The coordinator's assignor for the first of these strategies; None without a group, or for the default."""
    if group_id is None or not strategies:
        return None
    name = str(getattr(strategies[0], "name", None))
    if name not in ASSIGNORS:
        raise UnsupportedByStrandline(
            f"option partition_assignment_strategy={strategies[0]!r} is not supported: the coordinator assigns partitions, by "
            f"one of its own assignors; use one of those named {', '.join(ASSIGNORS)}"
        )
    return ASSIGNORS[name]
