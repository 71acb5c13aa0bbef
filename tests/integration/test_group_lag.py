"""Brokers measure the lag of their groups: equal to what a client counts, while leaders and coordinators come and go."""

from __future__ import annotations

import asyncio
from typing import Any

from metrics_world import Watch
from waiting import until
from wire_cluster import WireCluster
from wire_groups import GROUP, SETTINGS, Groups

from strandline.broker.groups.lag_monitor import LagMonitor
from strandline.client import Admin, TopicPartition

RECORDS, SECONDS, UNKNOWN = "strandline_group_lag_records", "strandline_group_lag_seconds", "strandline_group_lag_unknown"
LAG_SETTINGS: dict[str, Any] = {**SETTINGS, "group_lag_interval_ms": 50}

Lags = dict[tuple[str, str, int], int]


def printed(watch: Watch, name: str = RECORDS) -> Lags:
    """The series of all brokers. No two may print the same one."""
    found: Lags = {}
    for scrape in watch.brokers():
        for sample in scrape.samples:
            if sample.name == name:
                key = (sample.labels["group"], sample.labels["topic"], int(sample.labels["partition"]))
                assert key not in found
                found[key] = int(sample.value)
    return found


async def counted(admin: Admin, *groups: str) -> Lags:
    """The lags that the admin client computes from the committed offsets and ListOffsets."""
    lags: Lags = {}
    for group_id, found in (await admin.group_lag(groups)).items():
        assert found.error is None
        for tp, lag in found.partitions.items():
            assert isinstance(tp, TopicPartition)
            assert lag.lag is not None
            lags[group_id, tp.topic, tp.partition] = lag.lag
    return lags


def monitor_of(cluster: WireCluster, node: int) -> LagMonitor:
    monitor: LagMonitor = cluster.server(node).opened.group_lag
    return monitor


async def test_lag_is_the_one_that_a_client_counts() -> None:
    async with WireCluster(brokers=3, **LAG_SETTINGS) as cluster, cluster.admin() as admin:
        groups, watch = Groups(cluster), Watch(cluster)
        orders = await cluster.create("orders", partitions=4, replication_factor=3)
        bills = await cluster.create("bills", replication_factor=2)
        for partition in range(4):
            await cluster.produce(orders, *(["x"] * (partition + 1)), partition=partition)
        for group_id, offsets in (("a", {0: 0, 1: 1, 2: 3, 3: 9}), ("b", {0: 1, 3: 2}), ("c", {1: 0})):
            assert set(await groups.commit("", -1, orders.topic_id, offsets, group_id)) == {0}
        assert await groups.commit("", -1, bills.topic_id, {0: 0}, "c") == [0]

        expected = await counted(admin, "a", "b", "c")
        assert expected["a", "orders", 3] == 0
        assert expected["b", "orders", 3] == 2
        await until(lambda: printed(watch) == expected, "the brokers print what the client counts")
        assert sum(printed(watch, SECONDS).values()) > 0, "the records have old timestamps"
        assert printed(watch, SECONDS)["a", "orders", 2] == 0, "this group has read all"

        for _ in range(3):
            await cluster.produce(orders, "x", partition=2)
        await cluster.produce(bills, "x")
        expected = await counted(admin, "a", "b", "c")
        assert (expected["a", "orders", 2], expected["c", "bills", 0]) == (3, 1)
        await until(lambda: printed(watch) == expected, "the lag has grown")
        assert watch.sum(UNKNOWN) == 0


async def test_lag_is_printed_by_the_present_coordinator() -> None:
    async with WireCluster(brokers=3, **LAG_SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        orders = await cluster.create("orders", replication_factor=3)
        await cluster.produce(orders, "x", "x")
        assert await groups.commit("", -1, orders.topic_id, {0: 1}) == [0]
        await until(lambda: printed(watch) == {(GROUP, "orders", 0): 1}, "the coordinator prints the lag")
        before = await groups.coordinator()
        await cluster.kill(before)
        await until(lambda: printed(watch) == {(GROUP, "orders", 0): 1}, "its successor prints the lag")
        await cluster.start(before)
        await until(lambda: printed(watch) == {(GROUP, "orders", 0): 1}, "one of them does")


async def test_lag_of_a_partition_without_a_leader_is_unknown() -> None:
    """The last value stays for a while, and the number of unknown ones says that it is old."""
    async with WireCluster(brokers=3, **LAG_SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        coordinator = await groups.coordinator()
        leader = next(node for node in cluster.running if node != coordinator)
        orders = await cluster.create("orders", replicas=[[leader]])
        await cluster.produce(orders, "x", "x")
        assert await groups.commit("", -1, orders.topic_id, {0: 1}) == [0]
        await until(lambda: printed(watch) == {(GROUP, "orders", 0): 1}, "the lag is known")
        await cluster.kill(leader)
        await until(lambda: watch.sum(UNKNOWN) == 1, "the lag is not known any more")
        assert printed(watch) == {(GROUP, "orders", 0): 1}
        await cluster.start(leader)
        await until(lambda: watch.sum(UNKNOWN) == 0, "the leader is back")


async def test_brokers_without_offsets_measure_nothing() -> None:
    """A feature that is not used costs nothing: no task, no timer, no connection."""
    async with WireCluster(brokers=3, **LAG_SETTINGS) as cluster:
        groups = Groups(cluster)
        orders = await cluster.create("orders", replication_factor=3)
        coordinator = await groups.coordinator()
        await groups.join("m1", "orders")
        for node in cluster.running:
            assert not monitor_of(cluster, node).is_running
        assert await groups.commit("", -1, orders.topic_id, {0: 0}, "others") == [0]
        other = await groups.coordinator("others")
        assert [node for node in cluster.running if monitor_of(cluster, node).is_running] == [other]
        assert coordinator in cluster.running


async def test_last_offset_ends_the_rounds() -> None:
    async with WireCluster(brokers=1, **LAG_SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        orders = await cluster.create("orders")
        assert await groups.commit("", -1, orders.topic_id, {0: 0}) == [0]
        await until(lambda: printed(watch) == {(GROUP, "orders", 0): 0}, "the lag is measured")
        async with cluster.admin() as admin:
            await admin.delete_groups([GROUP])
        await until(lambda: not monitor_of(cluster, 1).is_running, "the rounds end")
        assert printed(watch) == {}
        assert await groups.commit("", -1, orders.topic_id, {0: 0}) == [0]
        await until(lambda: printed(watch) == {(GROUP, "orders", 0): 0}, "the rounds begin again")


async def test_lag_is_turned_off_and_on_while_brokers_run() -> None:
    async with WireCluster(brokers=1, **LAG_SETTINGS) as cluster, cluster.admin() as admin:
        groups, watch = Groups(cluster), Watch(cluster)
        orders = await cluster.create("orders", partitions=3)
        assert await groups.commit("", -1, orders.topic_id, {0: 0, 1: 0, 2: 0}) == [0, 0, 0]
        await until(lambda: len(printed(watch)) == 3, "the lag is measured")
        await admin.alter_configs("broker", "", {"group.lag.max.series": "2"})
        await until(lambda: len(printed(watch)) == 2, "only some lags are printed")
        assert watch.node(1).value("strandline_group_lag_omitted") == 1
        await admin.alter_configs("broker", "", {"group.lag.interval.ms": "0"})
        await until(lambda: printed(watch) == {}, "the lag is not measured any more")
        assert not monitor_of(cluster, 1).is_running
        await admin.alter_configs("broker", "", {"group.lag.interval.ms": "20"})
        await until(lambda: len(printed(watch)) == 2, "the lag is measured again")


async def test_many_offsets_are_measured_in_parts(monkeypatch: Any) -> None:
    """Each part is a bounded request to each leader."""
    monkeypatch.setattr("strandline.broker.groups.lag_monitor.PART", 3)
    monkeypatch.setattr("strandline.broker.groups.lag_monitor.PAUSE_S", 0.001)
    async with WireCluster(brokers=2, **LAG_SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        orders = await cluster.create("orders", partitions=10, replication_factor=2)
        codes = await groups.commit("", -1, orders.topic_id, dict.fromkeys(range(10), 0))
        assert codes == [0] * 10
        await cluster.produce(orders, "x", partition=7)
        await until(lambda: printed(watch).get((GROUP, "orders", 7)) == 1, "the lag is measured")
        assert len(printed(watch)) == 10


async def test_connections_between_brokers_are_closed_when_idle() -> None:
    async with WireCluster(brokers=2, **LAG_SETTINGS) as cluster:
        groups = Groups(cluster)
        coordinator = await groups.coordinator()
        other = next(node for node in cluster.running if node != coordinator)
        orders = await cluster.create("orders", replicas=[[other]])
        assert await groups.commit("", -1, orders.topic_id, {0: 0}) == [0]
        monitor = monitor_of(cluster, coordinator)
        await until(lambda: monitor.connected_to == [other], "the leader is asked")
        assert await groups.commit("", -1, (await cluster.create("bills", replicas=[[coordinator]])).topic_id, {0: 0}) == [0]
        async with cluster.admin() as admin:
            await admin.delete_topics(["orders"])
        await until(lambda: monitor.connected_to == [], "no leader elsewhere has to be asked")
        assert monitor.is_running
        await asyncio.wait_for(cluster.stop(coordinator), 10)
        assert not monitor.is_running


async def test_failed_round_ends_and_the_next_commit_begins_anew(monkeypatch: Any) -> None:
    """A bug in the measurement must neither stop the coordinator nor be repeated in a loop."""
    async with WireCluster(brokers=1, **LAG_SETTINGS) as cluster:
        groups, watch = Groups(cluster), Watch(cluster)
        orders = await cluster.create("orders")
        monitor = monitor_of(cluster, 1)
        with monkeypatch.context() as patch:
            patch.setattr(monitor.table, "publish", None)
            assert await groups.commit("", -1, orders.topic_id, {0: 0}) == [0]
            await until(lambda: not monitor.is_running, "the round has failed")
        assert printed(watch) == {}
        assert await groups.commit("", -1, orders.topic_id, {0: 0}) == [0]
        await until(lambda: printed(watch) == {(GROUP, "orders", 0): 0}, "the lag is measured")
