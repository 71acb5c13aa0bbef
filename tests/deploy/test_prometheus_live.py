"""A real Prometheus scrapes real nodes. When a broker is killed the alerts fire, when it returns they resolve, and every query
of the dashboard returns series.

A minute of the rules is a second here (`prometheus_process.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from dashboard_file import queries, substituted, variables
from load import Load
from prometheus_process import CLUSTER, Prometheus, eventually
from tools import tool

from strandline.client import Admin
from strandline.local_cluster import LocalCluster

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

SETTINGS = {
    "broker.session.timeout.ms": 1500,
    "broker.heartbeat.interval.ms": 300,
    "group.lag.interval.ms": 200,
    "offsets.topic.num.partitions": 1,
}
NODES = 6
SINCE_THE_START = "5m"
"""A window that covers everything since the start of the tests in this module."""
BOUND_S = 30.0
OF_THE_MACHINE = {"StrandlineDiskFilling"}
"""Alerts that depend on the machine that runs the tests: this one fires if it has little free space."""


class Watched(NamedTuple):
    cluster: LocalCluster
    prometheus: Prometheus
    load: Load
    admin: Admin


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    """A cluster under load, with a group that has read nothing; Prometheus has scraped every node, and no alert fires."""
    tool("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    async with (
        LocalCluster(folder / "cluster", settings=SETTINGS) as cluster,
        Prometheus(folder / "prometheus", cluster) as prometheus,
        Load(cluster, "orders") as load,
        Admin(bootstrap_servers=cluster.bootstrap) as admin,
    ):
        await commit(admin)
        await eventually(prometheus.ready, "Prometheus is ready", BOUND_S)
        await eventually(lambda: all_up(prometheus), "Prometheus has scraped every node", BOUND_S)
        await eventually(lambda: content(prometheus), "no alert is pending or firing", BOUND_S)
        yield Watched(cluster, prometheus, load, admin)


async def commit(admin: Admin) -> None:
    (result,) = (await admin.alter_group_offsets("readers", {("orders", 0): 0})).values()
    assert result.code == 0, result


async def all_up(prometheus: Prometheus) -> bool:
    return len(await prometheus.query("up == 1")) == NODES


async def content(prometheus: Prometheus) -> bool:
    return not {*await prometheus.alerts("pending"), *await prometheus.alerts("firing")} - OF_THE_MACHINE


async def chosen(prometheus: Prometheus) -> dict[str, str]:
    """Return each variable of the dashboard with all values that Grafana would offer, given the variables before it."""
    values: dict[str, str] = {}
    for name, (series, label) in variables().items():
        values[name] = "|".join(await prometheus.label_values(substituted(series, values, ""), label))
    assert values["cluster"] == CLUSTER
    assert len(values["instance"].split("|")) == NODES
    return values


async def test_a_killed_broker_fires_alerts_that_resolve_on_its_return(watched: Watched) -> None:
    cluster, prometheus, load, _ = watched

    async def told() -> bool:
        return {"StrandlineUnderReplicated", "StrandlineTargetDown"} <= set(await prometheus.alerts())

    await load.progress(300)
    cluster.kill("broker-1")
    await cluster.wait_ended("broker-1")
    await eventually(told, "both alerts fire", BOUND_S)
    firing = await prometheus.alerts()
    (down,) = firing["StrandlineTargetDown"]
    assert down["labels"]["instance"] == "broker-1"
    (under,) = firing["StrandlineUnderReplicated"]
    assert float(under["value"]) == 4  # every partition of the topic, and the one of the groups, has a replica there
    for alert in (down, under):
        assert alert["labels"]["cluster"] == CLUSTER
        # The texts for people contain the values, and no error of the template.
        assert CLUSTER in alert["annotations"]["summary"]
        assert not [word for word in ("{{", "<error", "<no value>") if word in str(alert["annotations"])]
    assert "StrandlineUnderMinIsr" not in firing  # two of three replicas are in sync, so acks=all is still accepted

    await load.progress(300)
    await cluster.start_node("broker-1")
    await eventually(lambda: content(prometheus), "every alert has resolved", BOUND_S)
    await eventually(lambda: all_up(prometheus), "the broker is scraped again", BOUND_S)


async def test_every_query_of_the_dashboard_returns_series(watched: Watched) -> None:
    """The cluster is under load, and had a fail-over of a leader, of a coordinator and of the controller, which some queries
    need."""
    cluster, prometheus, load, admin = watched
    ((active, _),) = await prometheus.query("kafka_controller_kafkacontroller_activecontrollercount == 1")
    (offsets,) = await admin.describe_topics(["__consumer_offsets"])
    for name in (f"broker-{offsets.partitions[0].leader_id}", active["instance"]):
        cluster.kill(name)
        await cluster.wait_ended(name)
        await load.progress(300)
        await cluster.start_node(name)
    await cluster.wait_ready()
    values = await chosen(prometheus)
    unanswered = {title: substituted(expr, values, SINCE_THE_START) for title, expr in queries()}
    assert unanswered

    async def answered() -> bool:
        await commit(admin)
        for title, expr in list(unanswered.items()):
            if await prometheus.query(expr):
                del unanswered[title]
        return not unanswered

    try:
        await eventually(answered, "every query has an answer", BOUND_S)
    except TimeoutError:
        pytest.fail("no answer to:\n" + "\n".join(f"{title}: {expr}" for title, expr in unanswered.items()))
    await load.progress(300)
