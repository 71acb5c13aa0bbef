"""Collects the facts for `strandline doctor`. Each request has a short time limit of its own, and none delays the others."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Coroutine
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, TypeVar

from strandline.cli import probe
from strandline.cli.common import CONNECT_TIMEOUT_MS
from strandline.cli.doctor_facts import Clock, Facts, NodePage, Port
from strandline.cli.doctor_ports import reach_port, try_port
from strandline.protocol.errors import StrandlineError
from strandline.protocol.security.client_security import ClientSecurity
from strandline.reach import is_filtered, reach, security_of

if TYPE_CHECKING:
    from strandline.client import Admin

T = TypeVar("T")

TIMEOUT_MS = 3000
PAGE_TIMEOUT_S = 2.0
TOPICS_MAX = 1000
"""The configuration of at most this many topics is judged."""
EVERYWHERE = ("0.0.0.0", "::")


async def look(bootstrap: str) -> Facts:
    """The facts about the cluster at this address."""
    from importlib.metadata import version

    addresses = [probe.split_address(part, "--bootstrap") for part in bootstrap.split(",")]
    ports = (try_port(*address, security_of(bootstrap)) for address in addresses)
    facts = Facts(version("strandline"), list(await asyncio.gather(*ports)), is_filtered=is_filtered(bootstrap))
    await _look_with_admin(facts, bootstrap)
    return facts


async def _look_with_admin(facts: Facts, bootstrap: str) -> None:
    from strandline.client import Admin

    try:
        async with Admin(**reach(bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS) as admin:
            facts.cluster = await admin.describe_cluster(timeout_ms=TIMEOUT_MS)
            await asyncio.gather(_nodes(facts, admin, security_of(bootstrap)), _topics(facts, admin), _control(facts, admin))
    except StrandlineError as e:
        facts.cluster_error = str(e)


async def _or_none(facts: Facts, about: str, question: Coroutine[Any, Any, T]) -> T | None:
    """The answer; None if there is none. If the user lacks the right to ask, the missing right is added to `facts.denied`."""
    from strandline.client import AuthorizationFailed

    try:
        return await question
    except AuthorizationFailed as e:
        facts.denied[about] = str(e)
        return None
    except StrandlineError:
        return None


async def _nodes(facts: Facts, admin: Admin, security: ClientSecurity) -> None:
    """The brokers: their advertised addresses, configuration, directories and HTTP."""
    assert facts.cluster is not None
    brokers = facts.cluster.brokers
    ids = [b.broker_id for b in brokers]
    ports = asyncio.gather(*(try_port(b.host, b.port, security) for b in brokers))
    configs = asyncio.gather(
        *(_or_none(facts, "configuration", admin.describe_configs("broker", i, timeout_ms=TIMEOUT_MS)) for i in ids)
    )
    dirs = _or_none(facts, "log directories", admin.describe_log_dirs(ids, timeout_ms=TIMEOUT_MS))
    found_ports, found_configs, found_dirs = await asyncio.gather(ports, configs, dirs)
    facts.advertised = dict(zip(ids, found_ports, strict=True))
    facts.broker_configs = dict(zip(ids, found_configs, strict=True))
    facts.log_dirs = {i: (found_dirs or {}).get(i) for i in ids}
    await asyncio.gather(_pages(facts), _kafka(facts))


async def _kafka(facts: Facts) -> None:
    for broker_id in facts.broker_configs:
        addresses = [probe.split_address(address, "advertised.listeners") for address in facts.kafka_addresses(broker_id)]
        facts.kafka[broker_id] = list(await asyncio.gather(*(reach_port(*address) for address in addresses)))


async def _pages(facts: Facts) -> None:
    assert facts.cluster is not None
    listeners = {b.broker_id: (b.host, facts.value(b.broker_id, "http.listener")) for b in facts.cluster.brokers}
    addresses = {i: _http_address(host, listener) for i, (host, listener) in listeners.items() if listener}
    pages = await asyncio.gather(*(asyncio.to_thread(node_page, address) for address in addresses.values()))
    facts.pages = dict(zip(addresses, pages, strict=True))


def _http_address(host: str, listener: str) -> str:
    """The address of a broker's HTTP port. If it listens on all addresses, this is `host`, under which the broker advertises
    itself."""
    own, _, port = listener.rpartition(":")
    return f"{host if own.strip('[]') in EVERYWHERE else own}:{port}"


async def _topics(facts: Facts, admin: Admin) -> None:
    facts.topics = await _or_none(facts, "topics", admin.describe_topics(timeout_ms=TIMEOUT_MS))
    for topic in (facts.topics or ())[:TOPICS_MAX]:
        configs = await _or_none(facts, "topic configuration", admin.describe_configs("topic", topic.name, timeout_ms=TIMEOUT_MS))
        if configs is not None:
            facts.topic_configs[topic.name] = configs
    facts.unclean_elections = (
        await _or_none(facts, "unclean elections", admin.describe_unclean_elections(timeout_ms=TIMEOUT_MS)) or ()
    )


async def _control(facts: Facts, admin: Admin) -> None:
    facts.quorum, facts.features = await asyncio.gather(
        _or_none(facts, "quorum", admin.describe_quorum(timeout_ms=TIMEOUT_MS)),
        _or_none(facts, "features", admin.describe_features(timeout_ms=TIMEOUT_MS)),
    )
    voters = [v for v in (facts.quorum.voters if facts.quorum else ()) if v.host]
    ports: list[Port] = list(await asyncio.gather(*(try_port(v.host, v.port) for v in voters)))
    facts.voters = {v.replica_id: port for v, port in zip(voters, ports, strict=True)}


# -- HTTP ---------------------------------------------------------------------------------------------------------------


def node_page(address: str) -> NodePage:
    """The responses of a node's HTTP port. Blocks, at most for twice the time limit; never raises."""
    try:
        before = time.time()
        _, headers, body = probe.exchange(address, "/health/ready", PAGE_TIMEOUT_S)
        clock = clock_of(headers.get("date", ""), before, time.time())
        ready = json.loads(body)
        metrics = probe.get(address, "/metrics", PAGE_TIMEOUT_S)[1].decode("utf-8", "replace")
        return NodePage(
            address,
            "",
            clock,
            _version(metrics),
            _by_directory(metrics, "strandline_log_dir_free_bytes"),
            _by_directory(metrics, "strandline_log_dir_total_bytes"),
            tuple(f"{check['name']}: {check['detail']}" for check in ready["checks"] if not check["ok"]),
            tuple(ready.get("warnings", ())),
        )
    except (OSError, ValueError, KeyError, TypeError) as e:
        return NodePage(address, getattr(e, "strerror", None) or str(e) or type(e).__name__)


def clock_of(date: str, before_s: float, after_s: float) -> Clock | None:
    """The node's clock, from the Date of its answer and this machine's time before and after it."""
    try:
        told = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return Clock(told - after_s, told + 1 - before_s)


def _version(metrics: str) -> str:
    found = re.search(r'^strandline_build_info\{[^}]*version="([^"]*)"', metrics, re.MULTILINE)
    return found[1] if found else ""


def _by_directory(metrics: str, name: str) -> dict[str, int]:
    found = re.findall(rf'^{name}\{{logDirectory="([^"]*)"\}} (\S+)$', metrics, re.MULTILINE)
    return {directory: int(float(value)) for directory, value in found}
