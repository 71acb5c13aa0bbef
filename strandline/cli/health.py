"""`strandline health`: checks a broker or the whole cluster over the protocol. The exit code is the answer. Without a
target the check uses HTTP, and `probe.py` does it without this module.

A broker is healthy if it is unfenced in its own metadata and knows an active controller. The check of the cluster asks any
broker about every broker, the controller, and every partition.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strandline import logs
from strandline.cli import probe
from strandline.cli.amounts import counted
from strandline.cli.common import DEFAULT_BOOTSTRAP, Bootstrap, new_app
from strandline.cli.leaderless import waits_for
from strandline.cli.output import Form, Output, Table, View
from strandline.cli.probe import Verdict
from strandline.cli.watch import Watch, present
from strandline.protocol.errors import BrokerError, PeerError, StrandlineError, UsageError
from strandline.reach import describable, is_filtered, reach, security_of

if TYPE_CHECKING:
    from strandline.client import Admin, BrokerDescription, ClusterDescription, PartitionDescription, TopicDescription
    from strandline.protocol.messages.admin import DescribeClusterResponse
    from strandline.protocol.security.client_security import ClientSecurity

app = new_app()

PARTITIONS_NAMED_MAX = 10
"""At most this many partitions are named per kind of problem; the others are counted."""


Broker = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Check the broker at this client or HTTP address.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Time to wait for the answer.", min=0.001, max=86_400)]

Brokers = Annotated[
    int,
    typer.Option("--brokers", metavar="N", min=0, help="With --cluster: the number of brokers that must be registered."),
]


@app.command()
def health(
    broker: Broker = None,
    cluster: Annotated[bool, typer.Option("--cluster", help="Check the whole cluster, at --bootstrap.")] = False,
    brokers: Brokers = 0,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout: Timeout = 2,
    output: Output = Form.table,
    watch: Watch = None,
) -> None:
    """Check whether a node or the whole cluster is healthy: exit code 0, or 3 if it is not or cannot be reached.

    Without options, the command checks the node at STRANDLINE_HTTP_LISTENER (default: 127.0.0.1:8092) over HTTP.
    """
    if broker is not None and cluster:
        raise UsageError("--broker checks one broker and --cluster all of them; give only one of the two")
    if brokers and not cluster:
        raise UsageError("--brokers says how many brokers the cluster should have; give it together with --cluster")
    logs.silence()
    address = None if broker is None else probe.split_address(broker, "--broker")

    async def ask() -> View:
        if cluster:
            return _view(await _ask_cluster(bootstrap, timeout, brokers))
        if address is not None:
            return _view(await _ask_broker(*address, timeout, security_of(bootstrap)))
        return _view(probe.ask_own_node(os.environ.get(probe.LISTENER), timeout))

    present(ask, output, watch)


def _view(verdict: Verdict) -> View:
    status = "healthy" if verdict.healthy else "not healthy"
    rows = [(status, verdict.target, problem) for problem in verdict.problems or [""]]
    plain = Table(("status", "target", "problem"), rows)
    code = probe.HEALTHY if verdict.healthy else probe.UNHEALTHY
    return View(verdict.document, verdict.lines, code=code, plain=plain)


# -- a broker ---------------------------------------------------------------------------------------------------------


async def _ask_broker(host: str, port: int, timeout_s: float, security: ClientSecurity) -> Verdict:
    from strandline.protocol import apis
    from strandline.protocol.messages.admin import (
        ApiVersionsRequest,
        ApiVersionsResponse,
        DescribeClusterRequest,
        DescribeClusterResponse,
    )
    from strandline.protocol.rpc.connection import Connection

    address = probe.join_address(host, port)
    timeout_ms = max(1, int(timeout_s * 1000))
    connection = None
    try:
        async with asyncio.timeout(timeout_s):
            connection = await Connection.connect(
                host, port, client_id="health", connect_timeout_ms=timeout_ms, security=security
            )
            who = await connection.request(apis.API_VERSIONS, ApiVersionsRequest(), timeout_ms=timeout_ms)
            assert isinstance(who, ApiVersionsResponse)
            if who.role != "broker":
                raise UsageError(f"--broker: {address} is {who.role}-{who.node_id}, no broker; ask it by its HTTP address")
            picture = await connection.request(apis.DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_ms=timeout_ms)
            assert isinstance(picture, DescribeClusterResponse)
    except TimeoutError:
        return Verdict(False, address, [f"no answer from {address} within {timeout_s:g} s"])
    except (BrokerError, PeerError) as e:
        if connection is None:
            return Verdict(False, address, [getattr(e, "message", None) or str(e)])
        # It accepts connections but does not speak the protocol: it may be an HTTP address.
        return await asyncio.to_thread(probe.ask_node, address, timeout_s)
    finally:
        if connection is not None:
            connection.close()
    return _judge_broker(address, who.node_id, picture)


def _judge_broker(address: str, broker_id: int, picture: DescribeClusterResponse) -> Verdict:
    node = f"broker-{broker_id}"
    me = next((b for b in picture.brokers if b.broker_id == broker_id), None)
    known, unfenced, led = me is not None, me is not None and not me.is_fenced, picture.controller_id >= 0
    checks = [
        _check("registered", known, "its own metadata knows it" if known else "its own metadata does not know it"),
        _check("unfenced", unfenced, "as its own metadata says" if unfenced else "it is fenced"),
        _check("controller", led, f"follows controller {picture.controller_id}" if led else "knows no active controller"),
    ]
    facts = {"status": "ready" if known and unfenced and led else "not ready", "node": node, "role": "broker", "checks": checks}
    return probe.judge_node(address, facts)


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}


# -- the cluster ------------------------------------------------------------------------------------------------------


async def _ask_cluster(bootstrap: str, timeout_s: float, expected_brokers: int) -> Verdict:
    from strandline.client import Admin

    timeout_ms = max(1, int(timeout_s * 1000))
    try:
        async with (
            asyncio.timeout(timeout_s),
            Admin(**reach(bootstrap), connect_timeout_ms=timeout_ms // 2 + 1) as admin,
        ):
            cluster = await admin.describe_cluster(timeout_ms=timeout_ms)
            topics, min_isr = await _ask_topics(admin, timeout_ms)
    except TimeoutError:
        return Verdict(False, bootstrap, [f"no answer from {bootstrap} within {timeout_s:g} s"])
    except UsageError:
        raise
    except StrandlineError as e:
        return Verdict(False, bootstrap, [str(e)])
    return judge_cluster(bootstrap, cluster, topics, min_isr, expected_brokers)


async def _ask_topics(admin: Admin, timeout_ms: int) -> tuple[list[TopicDescription], dict[str, int]]:
    """All topics, and min.insync.replicas of the troubled ones. Left out are troubled topics that are deleted between the
    requests: nothing about them needs a repair."""
    from strandline.client import UnknownTopic

    topics, min_isr = [], {}
    for topic in await admin.describe_topics(timeout_ms=timeout_ms):
        if _is_troubled(topic):
            try:
                min_isr[topic.name] = await _min_isr(admin, topic, timeout_ms)
            except UnknownTopic:
                continue
        topics.append(topic)
    return topics, min_isr


async def _min_isr(admin: Admin, topic: TopicDescription, timeout_ms: int) -> int:
    (entry,) = await admin.describe_configs("topic", topic.name, ["min.insync.replicas"], timeout_ms=timeout_ms)
    return int(entry.value or 1)


def _is_troubled(topic: TopicDescription) -> bool:
    return any(p.is_under_replicated or p.leader_id < 0 for p in topic.partitions)


def judge_cluster(
    target: str,
    cluster: ClusterDescription,
    topics: Iterable[TopicDescription],
    min_isr: Mapping[str, int],
    expected_brokers: int = 0,
) -> Verdict:
    """The verdict on a description of the cluster. `min_isr`: min.insync.replicas of each topic with a partition that is
    under-replicated or offline. No I/O.

    A broker that has never registered is not in the metadata, so only `expected_brokers` shows that one is missing."""
    partitions = [(topic.name, p) for topic in topics for p in topic.partitions]
    offline = [key for key in partitions if key[1].leader_id < 0]
    below = [(t, p) for t, p in partitions if len(p.isr) < p.effective_min_isr(min_isr.get(t, 1))]
    under = [key for key in partitions if key[1].is_under_replicated]
    fenced = [b for b in cluster.brokers if b.is_fenced]
    problems = [
        *([] if cluster.controller_id >= 0 else ["no controller is active"]),
        *_missing(len(cluster.brokers), expected_brokers),
        *(_about_broker(b) for b in cluster.brokers if b.is_fenced or b.in_controlled_shutdown),
        # Each partition is named once, with its worst problem.
        *_about(offline, "offline: it has no leader", _waits),
        *_about([key for key in below if key not in offline], "under its min.insync.replicas"),
        *_about([key for key in under if key not in below and key not in offline], "under-replicated"),
    ]
    facts = {
        "status": "not healthy" if problems else "healthy",
        "cluster_id": cluster.cluster_id,
        "controller_id": cluster.controller_id,
        "brokers": len(cluster.brokers),
        "fenced_brokers": [b.broker_id for b in fenced],
        "partitions": len(partitions),
        "offline_partitions": len(offline),
        "under_min_isr_partitions": len(below),
        "under_replicated_partitions": len(under),
    }
    summary = f"the cluster is healthy: {counted(len(cluster.brokers), 'broker')}, {count_partitions(len(partitions), target)}"
    return Verdict(not problems, target, problems, facts, summary)


def count_partitions(number: int, bootstrap: str) -> str:
    return counted(number, "partition") if number or not is_filtered(bootstrap) else describable("no partitions", bootstrap)


def _missing(registered: int, expected: int) -> list[str]:
    if registered >= expected:
        return []
    return [f"{counted(registered, 'broker')} {'is' if registered == 1 else 'are'} registered, and {expected} are expected"]


def _about_broker(broker: BrokerDescription) -> str:
    state = "is fenced" if broker.is_fenced else "is shutting down"
    return f"broker {broker.broker_id} ({broker.host}:{broker.port}) {state}"


def _waits(partition: PartitionDescription) -> str:
    """The end of the sentence about a partition without a leader: the brokers for which it waits."""
    return f"; {waits_for(partition)}"


def _about(
    found: list[tuple[str, PartitionDescription]], what: str, more_about: Callable[[PartitionDescription], str] = lambda p: ""
) -> list[str]:
    lines = [
        f"partition {topic}-{p.partition} is {what} (replicas {_list(p.replicas)}, in sync {_list(p.isr)}){more_about(p)}"
        for topic, p in found[:PARTITIONS_NAMED_MAX]
    ]
    more = len(found) - PARTITIONS_NAMED_MAX
    if more > 0:
        lines.append(f"{counted(more, 'more partition')} {'is' if more == 1 else 'are'} {what}")
    return lines


def _list(ids: Iterable[int]) -> str:
    return ",".join(map(str, ids)) or "none"
