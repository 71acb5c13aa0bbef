"""The options of aiokafka 0.14 as options of this client.

An option is mapped to its counterpart (the functions below, and `_SAME` in consumer.py), ignored because the brokers decide
the value or it has nothing to configure here (`IGNORED`), or rejected with an error that names an alternative."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from strandline.client.compat.aiokafka.errors import UnsupportedByStrandline
from strandline.protocol.security.client_security import PROTOCOLS
from strandline.protocol.security.mechanisms import MECHANISMS, OAUTHBEARER

DEFAULT_PORT = 9092

IGNORED: Mapping[str, str] = {
    "connections_max_idle_ms": "brokers close idle connections, and the client opens new ones as it needs them",
    "consumer_timeout_ms": "new partitions are noticed at once",
    "exclude_internal_topics": "a pattern never matches internal topics",
    "session_timeout_ms": "the brokers decide (group.consumer.session.timeout.ms)",
    "heartbeat_interval_ms": "the brokers decide (group.consumer.heartbeat.interval.ms)",
    "sasl_kerberos_service_name": "there is no Kerberos",
    "sasl_kerberos_domain_name": "there is no Kerberos",
}
"""Options that have no effect -> the reason."""

ASSIGNORS: Mapping[str, str] = {"range": "range", "roundrobin": "uniform", "sticky": "uniform", "cooperative-sticky": "uniform"}
"""Name of an assignor of aiokafka -> the coordinator's assignor that takes its place."""


def security(given: Mapping[str, Any]) -> dict[str, Any]:
    """The security options of the client. As in aiokafka, options that `security_protocol` does not need are ignored, and
    ValueError if an option that it needs is missing. UnsupportedByStrandline for an unknown SASL mechanism."""
    protocol, mechanism = given.get("security_protocol", "PLAINTEXT"), given.get("sasl_mechanism", "PLAIN")
    if protocol not in PROTOCOLS:
        raise ValueError(f"`security_protocol` should be {', '.join(PROTOCOLS)}, not {protocol!r}")
    settings: dict[str, Any] = {"security_protocol": protocol}
    if protocol in ("SSL", "SASL_SSL"):
        if given.get("ssl_context") is None:
            raise ValueError(f"`ssl_context` is mandatory if security_protocol=='{protocol}'")
        settings["ssl_context"] = given["ssl_context"]
    if protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
        settings |= _sasl(given, mechanism)
    return settings


def _sasl(given: Mapping[str, Any], mechanism: str) -> dict[str, Any]:
    if mechanism not in MECHANISMS:
        raise UnsupportedByStrandline(f"option sasl_mechanism={mechanism!r} is not supported: use {', '.join(MECHANISMS)}")
    is_oauth = mechanism == OAUTHBEARER
    names = ("sasl_oauth_token_provider",) if is_oauth else ("sasl_plain_username", "sasl_plain_password")
    if any(given.get(name) is None for name in names):
        raise ValueError(f"{' and '.join(names)} required for {mechanism} sasl")
    return {"sasl_mechanism": mechanism, **{name: given[name] for name in names}}


def check_loop(loop: asyncio.AbstractEventLoop | None, api_version: str | None) -> None:
    """Warn of options that aiokafka has deprecated. RuntimeError if no event loop runs: as in aiokafka, a client is constructed
    within one."""
    if loop is not None:
        warnings.warn("the option `loop` has no effect: the running event loop is used", DeprecationWarning, stacklevel=3)
    if api_version is not None:
        warnings.warn("the option `api_version` has no effect", DeprecationWarning, stacklevel=3)
    asyncio.get_running_loop()


def servers(given: str | Sequence[str]) -> list[str]:
    """Bootstrap servers, with the default port for each server that names none."""
    listed = [server for text in ([given] if isinstance(given, str) else given) for server in text.split(",")]
    return [_with_port(server.strip()) for server in listed if server.strip()]


def _with_port(server: str) -> str:
    has_port = server.rpartition(":")[2].isdigit() and not server.endswith("]") and (server.count(":") == 1 or "]:" in server)
    if has_port:
        return server
    return f"[{server}]:{DEFAULT_PORT}" if server.count(":") > 1 and not server.startswith("[") else f"{server}:{DEFAULT_PORT}"


def common(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that all clients have. Calls wait for metadata, connections and room as long as a request may take."""
    timeout_ms = given["request_timeout_ms"]
    return {
        "bootstrap_servers": servers(given["bootstrap_servers"]),
        "client_id": given["client_id"],
        "request_timeout_ms": timeout_ms,
        "max_block_ms": timeout_ms,
        "metadata_max_age_ms": given["metadata_max_age_ms"],
        "retry_backoff_ms": given["retry_backoff_ms"],
        **security(given),
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
