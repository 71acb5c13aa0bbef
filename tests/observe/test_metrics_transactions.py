"""A broker prints what its transaction coordinator does."""

from __future__ import annotations

from metrics_world import Watch
from waiting import until
from wire_cluster import WireCluster
from wire_transactions import SETTINGS, TransactionalProducer, committed_as


async def test_transactions_are_counted_from_the_first_partition_to_the_last_marker() -> None:
    async with WireCluster(brokers=1, **SETTINGS) as cluster:
        orders = await cluster.create("orders", partitions=2)
        producer, watch = TransactionalProducer(cluster), Watch(cluster)
        await producer.init()
        await producer.send(orders, "a")
        await producer.send(orders, "b", partition=1)
        scrape = watch.node(1)
        assert scrape.value("strandline_scrape_errors_total") == 0
        assert scrape.value("strandline_transaction_partitions", state="active") == 3
        assert scrape.value("strandline_transactional_ids", state="Ongoing") == 1
        await producer.end()
        await committed_as(cluster, orders, "a")
        await until(lambda: not len(cluster.server(1).opened.transactions.markers), "all markers are written")
        scrape = watch.node(1)
        assert scrape.value("strandline_transactional_ids", state="CompleteCommit") == 1
        assert scrape.value("strandline_transactions_ended_total", how="commit") == 1
        assert scrape.value("strandline_transactions_ended_total", how="timeout") == 0
        assert scrape.value("strandline_transaction_markers_total") == 2
        assert scrape.value("strandline_transactions_awaiting_markers") == 0
        assert scrape.value("strandline_transaction_markers_without_leader") == 0
        assert scrape.value("strandline_transaction_completion_seconds_count") == 1
        assert scrape.value("strandline_transaction_load_seconds_count") == 3
