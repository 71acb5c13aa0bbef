"""Nodes print the metrics of the catalogue with correct values, under load and when a broker dies."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from metrics_world import (
    ACTIVE_CONTROLLERS,
    AT_MIN_ISR,
    ERRORS,
    EXPANDS,
    LEADERS,
    MAX_LAG,
    OFFLINE,
    OPENMETRICS,
    REQUESTS,
    SHRINKS,
    UNDER_MIN_ISR,
    UNDER_REPLICATED,
    Scrape,
    Watch,
    role_of,
    traffic,
)
from raft_bench import fetch_request
from waiting import until
from wire_cluster import WireCluster
from wire_groups import Groups

from strandline.broker.process.server import BrokerServer
from strandline.controller.raft.roles import Leader
from strandline.controller.server import ControllerServer
from strandline.observe.catalog import ROWS
from strandline.observe.collector import make_registry
from strandline.observe.loop_lag import LoopLag
from strandline.protocol import apis
from strandline.protocol.doors import real_doors
from strandline.protocol.messages.admin import DeleteTopicsRequest, DeleteTopicState, MetadataTopic
from strandline.protocol.metrics import Histogram
from strandline.protocol.records.builder import encode_batch
from strandline.protocol.rpc.connection import Connection
from strandline.storage.files import DiskError

RECORDS = 10


async def load(cluster: WireCluster, name: str = "orders", **settings: Any) -> tuple[MetadataTopic, int]:
    """Create a topic with ten records, one batch each, on all replicas; returns the topic and the bytes of all batches."""
    topic = await cluster.create(name, replication_factor=len(cluster.brokers), **settings)
    for number in range(RECORDS):
        await cluster.produce(topic, f"record {number}")
    await cluster.in_step(topic.topic_id, list(cluster.brokers))
    batch = encode_batch([(None, b"record 0", [], 0)])
    return topic, RECORDS * len(batch)


# -- the catalogue ----------------------------------------------------------------------------------------------------


def has_lag_and_controller(cluster: WireCluster) -> bool:
    """Whether the nodes have the rows that come and go: those of the lag, until the next coordinator of the group has measured it
    too, and those that only an active controller prints, until one is elected. On a busy machine either may move."""
    monitors = [cluster.server(node).opened.group_lag for node in cluster.brokers]
    controllers = [cluster.server(node) for node in cluster.controllers]
    return any(lag.seconds is not None for monitor in monitors for lag in monitor.current()) and any(
        server.controller.active is not None and isinstance(server.quorum.node.state.role, Leader) for server in controllers
    )


@pytest.mark.parametrize("accept", ["", OPENMETRICS], ids=["text", "openmetrics"])
async def test_nodes_print_exactly_the_rows_of_their_role(tmp_path: Path, accept: str) -> None:
    """If no node prints a row, alerts on it never fire; a metric without a row is not documented.

    The files are real, because the size of the disk is among the rows. Some rows are printed by the active controller only.
    """
    async with WireCluster(controllers=3, brokers=3, files="disk", folder=tmp_path, group_lag_interval_ms=50) as cluster:
        topic, _ = await load(cluster)
        assert await Groups(cluster).commit("", -1, topic.topic_id, {0: 0}) == [0]
        leader = (await cluster.partition_of("orders")).leader_id
        await cluster.fetch(leader, topic.topic_id)
        watch = Watch(cluster)
        printed: dict[str, set[str]] = {"broker": set(), "controller": set()}
        await until(lambda: has_lag_and_controller(cluster), "the lag is measured, and a controller is active")
        for node in [*cluster.brokers, *cluster.controllers]:
            scrape = watch.node(node, accept)
            printed[role_of(node)] |= scrape.rows
            assert scrape.value("strandline_scrape_errors_total") == 0  # no await since the wait: nothing has moved
    for role, names in printed.items():
        assert names == {row.name for row in ROWS.values() if role in row.roles}


async def test_every_sample_has_the_labels_of_its_row() -> None:
    async with WireCluster(brokers=1) as cluster:
        await load(cluster)
        registry_of = Watch(cluster)
        for node in (1, 101):
            for sample in registry_of.node(node).samples:
                row = ROWS.get(sample.name)
                if row is not None:
                    assert tuple(sample.labels) in ((), tuple(sorted(row.labels)))


async def test_a_node_that_has_not_started_can_be_scraped() -> None:
    """The first scrape may arrive while a broker recovers its logs; values that do not exist yet are omitted."""
    async with WireCluster(brokers=1) as cluster:
        broker = BrokerServer(cluster.broker_config(7), real_doors(), cluster.disk(1))
        controller = ControllerServer(cluster.server(101).config, real_doors(), cluster.disk(101))
        for role, server in (("broker", broker), ("controller", controller)):
            scrape = Scrape(make_registry(role, server))
            assert scrape.value("strandline_scrape_errors_total") == 0
            assert scrape.sum("strandline_build_info", role=role) == 1
            assert scrape.value("strandline_uptime_seconds") >= 0
        assert Scrape(make_registry("broker", broker)).value("kafka_server_kafkaserver_brokerstate") == 1


async def test_a_failed_part_of_a_scrape_is_counted_and_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in one reading must not disable the alerts on all other metrics."""
    async with WireCluster(brokers=1) as cluster:
        watch = Watch(cluster)
        watch.node(1)

        def broken() -> int:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(cluster.server(1).replicas.purgatory, "take_all", broken)
            scrape = watch.node(1)
        assert scrape.value("strandline_scrape_errors_total") == 1
        assert scrape.value("kafka_server_replicamanager_partitioncount") == 0
        assert scrape.value("kafka_log_logmanager_offlinelogdirectorycount") == 0


# -- load -------------------------------------------------------------------------------------------------------------


async def test_bytes_and_records_match_the_load() -> None:
    async with WireCluster(brokers=3) as cluster:
        topic, size = await load(cluster)
        leader = (await cluster.partition_of("orders")).leader_id
        _, values = await cluster.fetch(leader, topic.topic_id)
        assert len(values) == RECORDS
        watch = Watch(cluster)
        led = watch.node(leader)
        for labels in ({}, {"topic": "orders"}):
            assert led.value(traffic("bytesin"), **labels) == size
            assert led.value(traffic("messagesin"), **labels) == RECORDS
            assert led.value(traffic("bytesout"), **labels) == size
            assert led.value(traffic("replicationbytesout"), **labels) == 2 * size
            assert led.value(traffic("totalproducerequests"), **labels) == RECORDS
            assert led.value(traffic("failedproducerequests"), **labels) == 0
        assert watch.sum(traffic("replicationbytesin"), topic="orders") == 2 * size
        assert watch.sum(traffic("bytesin"), topic="orders") == size
        for scrape in watch.brokers():
            assert scrape.value("kafka_log_log_logendoffset", topic="orders", partition="0") == RECORDS
            assert scrape.value("kafka_log_log_size", topic="orders", partition="0") == size
            assert scrape.sum("strandline_log_dir_used_bytes") == size
            assert scrape.value(MAX_LAG, clientId="Replica") == 0


async def test_a_throttled_reassignment_is_measured() -> None:
    """The rate is so low that the move does not end. Without a throttle it ends, and all copied bytes are counted."""
    async with WireCluster(brokers=2) as cluster, cluster.admin() as admin:
        topic = await cluster.create("orders", replicas=[[1]])
        for number in range(RECORDS):
            await cluster.produce(topic, f"record {number}")
        watch = Watch(cluster)
        assert watch.sum("strandline_throttled_partitions") == 0
        await admin.alter_partition_reassignments({("orders", 0): [2]}, throttle_rate=1)
        for node, direction in ((1, "out"), (2, "in")):
            await until(lambda n=node, d=direction: watch.node(n).value("strandline_throttled_partitions", direction=d) == 1)
            assert watch.node(node).value("strandline_replication_throttle_rate_bytes", direction=direction) == 1
        assert watch.node(1).value("kafka_server_replicamanager_reassigningpartitions") == 1
        assert watch.node(1).value(UNDER_REPLICATED) == 0
        size = watch.node(1).value("kafka_log_log_size", topic="orders", partition="0")
        await admin.alter_partition_reassignments({("orders", 0): [2]})
        await until(lambda: watch.node(2).value(LEADERS) == 1)
        assert watch.sum("strandline_throttled_partitions") == watch.sum("strandline_replication_throttle_rate_bytes") == 0
        for node, name in ((1, "reassignmentbytesout"), (2, "reassignmentbytesin")):
            assert watch.node(node).value(traffic(name)) == size


async def test_requests_are_counted_and_timed_by_api() -> None:
    """With acks=all the total time exceeds the handler's time, because the request waits for the followers."""
    async with WireCluster(brokers=3) as cluster:
        await load(cluster)
        leader = (await cluster.partition_of("orders")).leader_id
        scrape = Watch(cluster).node(leader)
        name = "kafka_network_requestmetrics_"
        assert scrape.value(REQUESTS, request="Produce") == RECORDS
        assert scrape.value(name + "totaltimems_count", request="Produce") == RECORDS
        assert scrape.value(name + "totaltimems_bucket", request="Produce", le="+Inf") == RECORDS
        assert scrape.value(name + "requestqueuetimems_count", request="Produce") == RECORDS
        total, local = (scrape.value(name + n, request="Produce") for n in ("totaltimems_sum", "localtimems_sum"))
        assert 0 < local < total < 10_000
        assert scrape.value(ERRORS, request="Produce", error="NONE") == RECORDS
        assert scrape.value(REQUESTS, request="FetchFollower") == scrape.value(REQUESTS, request="Fetch") > 0
        assert scrape.value(name + "requestbytes_sum", request="Produce") > RECORDS * 61


async def test_errors_are_counted_by_code_and_failed_produces_by_topic() -> None:
    """The long session keeps a busy machine from adding an error: a broker that was paused for half a session rejects records."""
    async with WireCluster(brokers=2, broker_session_timeout_ms=30_000) as cluster:
        topic, _ = await load(cluster)
        follower = 3 - (await cluster.partition_of("orders")).leader_id
        await cluster.produce_to(follower, topic.topic_id, "x")
        await cluster.produce_to(follower, bytes(16), "x")
        scrape = Watch(cluster).node(follower)
        assert scrape.value(ERRORS, request="Produce", error="NOT_LEADER_OR_FOLLOWER") == 1
        assert scrape.value(ERRORS, request="Produce", error="UNKNOWN_TOPIC_ID") == 1
        assert scrape.value(ERRORS, request="Produce", error="NONE") == 0
        assert scrape.value(traffic("failedproducerequests"), topic="orders") == 1
        assert scrape.value(traffic("failedproducerequests")) == 2


async def test_the_total_includes_deleted_topics() -> None:
    """To `rate()` a counter that decreases looks like a restart."""
    async with WireCluster(brokers=1) as cluster:
        topic, size = await load(cluster)
        watch = Watch(cluster)
        request = DeleteTopicsRequest([DeleteTopicState(None, topic.topic_id)])
        await cluster.ask(1, apis.DELETE_TOPICS, request)
        await until(lambda: not cluster.server(1).replicas.partitions, "the topic is gone")
        scrape = watch.node(1)
        assert scrape.value(traffic("bytesin")) == size
        assert scrape.sum(traffic("bytesin"), topic="orders") == 0
        assert scrape.sum("kafka_log_log_logendoffset") == 0


async def test_a_deleted_topic_has_no_series() -> None:
    """A gauge that stayed would keep an alert firing for ever. A new topic of the same name starts at 0."""
    async with WireCluster(brokers=3, broker_session_timeout_ms=2000) as cluster:
        topic, _ = await load(cluster, min_insync_replicas="3")
        watch = Watch(cluster)
        await cluster.kill(3)
        await until(lambda: watch.sum(UNDER_REPLICATED) == watch.sum(UNDER_MIN_ISR) == 1, "a replica is missing")
        await cluster.ask(1, apis.DELETE_TOPICS, DeleteTopicsRequest([DeleteTopicState(None, topic.topic_id)]))
        await until(lambda: not any(cluster.server(node).replicas.partitions for node in cluster.running), "the topic is gone")
        for scrape in watch.brokers():
            assert [s for s in scrape.samples if s.labels.get("topic") == "orders"] == []
            assert scrape.value(UNDER_REPLICATED) == scrape.value(UNDER_MIN_ISR) == scrape.value(MAX_LAG, clientId="Replica") == 0
        assert watch.active.value(OFFLINE) == watch.active.value("kafka_controller_kafkacontroller_globalpartitioncount") == 0
        await cluster.create("orders", replicas=[[1]])
        scrape = watch.node(1)
        assert scrape.value(traffic("messagesin"), topic="orders") == 0
        assert scrape.value("kafka_cluster_partition_underreplicated", topic="orders", partition="0") == 0


async def test_an_unregistered_observer_gets_no_series() -> None:
    """Any client of the port may fetch with any replica id, and with a new one each time."""
    async with WireCluster(brokers=2) as cluster:
        watch = Watch(cluster)
        quorum, lag = cluster.server(101).quorum, "strandline_raft_replica_lag"
        connection = await Connection.connect("127.0.0.1", cluster.port(101), client_id="stranger")
        for stranger in range(900, 1000):
            request = fetch_request(stranger, quorum.epoch, 0, 0, cluster_id=None, wait_ms=0)
            await connection.request(apis.FETCH, request, timeout_ms=10_000)
        connection.close()
        replicas = {sample.labels["replica"] for sample in watch.active.samples if sample.name == lag}
        assert replicas == {"1", "2"}
        assert watch.active.value("kafka_server_raft_metrics_number_of_observers") == 102


async def test_a_blocked_loop_shows_in_the_next_scrape() -> None:
    lag = LoopLag(asyncio.get_running_loop(), Histogram())
    async with WireCluster(brokers=1) as cluster:
        registry = make_registry("broker", cluster.server(1), loop_lag=lag)
        lag.start()
        time.sleep(0.5)  # noqa: ASYNC251 - the loop must be blocked
        await until(lambda: lag.recent_max_s > 0, "the timer has fired")
        scrape = Scrape(registry)
        lag.stop()
    assert scrape.value("strandline_event_loop_lag_max_seconds") > 0.15
    assert scrape.value("strandline_event_loop_lag_seconds_sum") > 0.15


async def test_two_nodes_in_one_process_do_not_mix() -> None:
    """Each node has its own registry, so a partition counts only for its leader."""
    async with WireCluster(brokers=2) as cluster:
        await load(cluster)
        watch = Watch(cluster)
        leader = (await cluster.partition_of("orders")).leader_id
        assert watch.node(leader).value(LEADERS) == 1
        assert watch.node(3 - leader).value(LEADERS) == 0
        assert watch.node(leader).value(REQUESTS, request="Produce") == RECORDS
        assert watch.node(3 - leader).sum(REQUESTS, request="Produce") == 0
        ids = [watch.node(node).samples for node in (1, 2)]
        assert [{s.labels["node_id"] for s in found if s.name == "strandline_build_info"} for found in ids] == [{"1"}, {"2"}]


# -- a broker dies ----------------------------------------------------------------------------------------------------


async def test_a_killed_broker_and_its_return_show() -> None:
    """The number of under-replicated partitions rises and returns to 0, no partition is offline, no election is unclean, and
    the controller measured the fail-over."""
    async with WireCluster(controllers=3, brokers=3, broker_session_timeout_ms=2000) as cluster:
        topic = await cluster.create("orders", partitions=3, replication_factor=3, min_insync_replicas="2")
        await cluster.produce(topic, "x")
        watch = Watch(cluster)
        assert sum(scrape.value(ACTIVE_CONTROLLERS) for scrape in watch.controllers()) == 1
        assert watch.sum(UNDER_REPLICATED) == watch.sum(AT_MIN_ISR) == watch.sum(SHRINKS) == 0
        assert watch.sum(LEADERS) == 3

        await cluster.kill(1)
        await until(lambda: watch.sum(UNDER_REPLICATED) == 3, "three partitions lack a replica")
        assert watch.sum(LEADERS) == watch.sum(AT_MIN_ISR) == 3
        assert watch.sum(UNDER_MIN_ISR) == 0
        assert watch.sum(SHRINKS) == 3
        assert watch.sum("kafka_cluster_partition_underreplicated", topic="orders") == 3
        active = watch.active
        assert active.value("strandline_failover_seconds_count") == 1
        assert active.value("strandline_elections_total") == 1
        assert active.value("kafka_controller_kafkacontroller_fencedbrokercount") == 1
        assert active.value("kafka_controller_kafkacontroller_activebrokercount") == 2
        assert active.value("kafka_controller_kafkacontroller_preferredreplicaimbalancecount") == 1
        assert watch.sum("strandline_leader_takeover_seconds_count") >= 1

        await cluster.start(1)
        await until(lambda: watch.sum(UNDER_REPLICATED) == 0, "all replicas are in sync again")
        assert watch.sum(EXPANDS) == 3
        assert watch.active.value("kafka_controller_kafkacontroller_fencedbrokercount") == 0
        assert all(scrape.value(OFFLINE) == 0 for scrape in watch.controllers())
        assert watch.active.value("kafka_controller_controllerstats_uncleanleaderelections_total") == 0


async def test_offline_and_under_min_isr_partitions_are_counted() -> None:
    async with WireCluster(brokers=2, broker_session_timeout_ms=2000) as cluster:
        await cluster.create("alone", replicas=[[1]])
        await cluster.create("both", replicas=[[1, 2]], min_insync_replicas="2")
        watch = Watch(cluster)
        assert watch.active.value(OFFLINE) == 0
        await cluster.kill(1)
        await until(lambda: watch.active.value(OFFLINE) == 1, "the partition without another replica is offline")
        await until(lambda: watch.sum(UNDER_MIN_ISR) == 1, "the other one is under its minimum")
        assert watch.node(2).value("kafka_cluster_partition_underminisr", topic="both", partition="0") == 1
        assert watch.node(2).value("kafka_cluster_partition_insyncreplicascount", topic="both", partition="0") == 1


async def test_a_change_of_the_quorum_leader_shows() -> None:
    async with WireCluster(controllers=3, brokers=1) as cluster:
        watch = Watch(cluster)
        epoch = watch.active.value("kafka_server_raft_metrics_current_epoch")
        (leader,) = {scrape.value("kafka_server_raft_metrics_current_leader") for scrape in watch.controllers()}
        assert watch.node(int(leader)).value("kafka_server_raft_metrics_current_state", state="leader") == 1
        assert watch.node(int(leader)).value("strandline_raft_commit_seconds_count") > 0
        await cluster.stop(int(leader))

        def agreed() -> bool:
            leaders = {scrape.value("kafka_server_raft_metrics_current_leader") for scrape in watch.controllers()}
            return len(leaders) == 1 and not leaders & {leader, -1.0}

        await until(agreed, "the others have another leader")
        await until(lambda: sum(s.value(ACTIVE_CONTROLLERS) for s in watch.controllers()) == 1, "it is active")
        assert watch.active.value("kafka_server_raft_metrics_current_epoch") > epoch
        for scrape in watch.controllers():
            assert scrape.value("strandline_raft_leader_changes_total") >= 2
            assert scrape.value("strandline_raft_leaderless_seconds_count") >= 1
        await until(lambda: watch.node(1).value("strandline_metadata_lag") == 0, "the broker follows")
        await until(lambda: watch.node(1).value("strandline_raft_leader_changes_total") >= 2, "the broker knows")


async def test_a_failed_log_directory_shows() -> None:
    async with WireCluster(brokers=2) as cluster:
        await load(cluster)
        watch = Watch(cluster)
        path = cluster.server(1).config.data_dirs[0]
        assert watch.node(1).value("kafka_log_logmanager_logdirectoryoffline", logDirectory=path) == 0

        def fail() -> Scrape:
            cluster.server(1).replicas.on_disk_error(DiskError("append", path, 5))
            return watch.node(1)

        scrape = await cluster.inside(1, fail)
        assert scrape.value("kafka_log_logmanager_logdirectoryoffline", logDirectory=path) == 1
        assert scrape.value("kafka_log_logmanager_offlinelogdirectorycount") == 1
        assert scrape.value("kafka_server_replicamanager_offlinereplicacount") == 1
        assert scrape.value("strandline_loss_possible_total", cause="offline_log_dir") == 1
