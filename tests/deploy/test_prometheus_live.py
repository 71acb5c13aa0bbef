"""The proof: a real Prometheus scrapes real nodes; a broker is killed, the alerts fire, it returns, they resolve; and every
question of the dashboard has an answer.

A minute of the rules is a second here (`prometheus_process.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

import pytest
import pytest_asyncio
from dashboard_file import queries, substituted, variables
from load import Load, until
from prometheus_process import CLUSTER, Prometheus
from tools import tool

from strandline.local_cluster import LocalCluster

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

FAST_SESSIONS = {"broker.session.timeout.ms": 1500, "broker.heartbeat.interval.ms": 300}
NODES = 6
SINCE_THE_START = "2m"
"""A window that has all that happened here in it."""


class Watched(NamedTuple):
    cluster: LocalCluster
    prometheus: Prometheus
    load: Load


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def watched(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Watched]:
    """A cluster under load, of which Prometheus has seen every node, and with which it is content."""
    tool("prometheus")
    folder = tmp_path_factory.mktemp("watched")
    async with (
        LocalCluster(folder / "cluster", settings=FAST_SESSIONS) as cluster,
        Prometheus(folder / "prometheus", cluster) as prometheus,
        Load(cluster, "orders") as load,
    ):
        await until(prometheus.ready, "Prometheus is ready")
        await until(lambda: all_up(prometheus), "Prometheus has scraped every node")
        await until(lambda: silent(prometheus), "no alert is pending or firing")
        yield Watched(cluster, prometheus, load)


async def all_up(prometheus: Prometheus) -> bool:
    return len(await prometheus.query("up == 1")) == NODES


async def silent(prometheus: Prometheus) -> bool:
    return not await prometheus.alerts("pending") and not await prometheus.alerts("firing")


async def test_a_killed_broker_is_told_and_its_return_resolves_it(watched: Watched) -> None:
    cluster, prometheus, load = watched

    async def told() -> bool:
        return {"StrandlineUnderReplicated", "StrandlineTargetDown"} <= set(await prometheus.alerts())

    async def resolved() -> bool:
        return not {"StrandlineUnderReplicated", "StrandlineTargetDown"} & set(await prometheus.alerts())

    await load.progress()
    cluster.kill("broker-1")
    await until(told, "both alerts fire")
    firing = await prometheus.alerts()
    (down,) = firing["StrandlineTargetDown"]
    assert down["labels"]["instance"] == "broker-1"
    (under,) = firing["StrandlineUnderReplicated"]
    assert under["labels"]["cluster"] == CLUSTER
    assert float(under["value"]) == 3  # every partition of the topic has a replica there
    for alert in (down, under):
        # What a person reads has its values in it, and no complaint of the template.
        assert not {"{{", "<error", "<no value>"} & set(alert["annotations"]["summary"].split())
        assert "tested" in alert["annotations"]["summary"]
    assert "StrandlineUnderMinIsr" not in firing  # two of three are in sync: acks=all goes on

    await load.progress()
    await cluster.start_node("broker-1")
    await until(resolved, "both alerts have resolved")
    await until(lambda: all_up(prometheus), "the broker is scraped again")


async def test_every_query_of_the_dashboard_has_an_answer(watched: Watched) -> None:
    """Under load, and after a leader has moved: a broker is stopped in order and started again."""
    cluster, prometheus, load = watched
    cluster.terminate("broker-2")
    await cluster.wait_ended("broker-2")
    await cluster.start_node("broker-2")
    await cluster.wait_ready()
    await load.progress()
    values = {name: "|".join(await prometheus.label_values(*source)) for name, source in variables().items()}
    assert values["cluster"] == CLUSTER
    unanswered = {title: substituted(expr, values, SINCE_THE_START) for title, expr in queries()}
    assert unanswered

    async def answered() -> bool:
        for title, expr in list(unanswered.items()):
            if await prometheus.query(expr):
                del unanswered[title]
        return not unanswered

    try:
        await until(answered, "every query has an answer", 20)
    except AssertionError:
        pytest.fail("no answer to:\n" + "\n".join(f"{title}: {expr}" for title, expr in unanswered.items()))
    load._raise_if_broken()
    await asyncio.sleep(0)
