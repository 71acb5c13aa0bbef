"""The admin client: topics, groups, transactions, configs, the cluster, its features, the quorum, elections, reassignments,
access rules, users, quotas.

    async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("orders", partitions=3, replication_factor=3)])

`Admin` is started and stopped here. Its calls are in the classes that it derives from, one for each subject.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self, Unpack

from strandline.client.admin.acls import AclCalls
from strandline.client.admin.configs import ConfigCalls
from strandline.client.admin.features import FeatureCalls
from strandline.client.admin.groups import GroupCalls
from strandline.client.admin.quotas import QuotaCalls
from strandline.client.admin.reassignments import ReassignmentCalls
from strandline.client.admin.topics import TopicCalls
from strandline.client.admin.transactions import TransactionCalls
from strandline.client.admin.users import UserCalls
from strandline.client.cluster.cluster import Cluster
from strandline.client.errors import UsageError
from strandline.client.home import Home
from strandline.client.option_docs import documents
from strandline.client.options import AdminOptions, ClientKeywords, parse_options
from strandline.protocol.doors import Doors, real_doors


@documents(AdminOptions)
class Admin(
    TopicCalls, TransactionCalls, ReassignmentCalls, GroupCalls, ConfigCalls, FeatureCalls, AclCalls, UserCalls, QuotaCalls
):
    """Creates, describes, changes and deletes topics, consumer groups and configuration, ends transactions that hang, and
    describes the cluster and its quorum.

        async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
            await admin.create_topics([NewTopic("orders", partitions=6, replication_factor=3)])

    Start it with `async with`, or with `await start()` and `await stop()`. A call is sent again until it succeeds, its error is
    not retriable, or `timeout_ms` has passed (RequestTimeout)."""

    def __init__(self, *, doors: Doors | None = None, **options: Unpack[ClientKeywords]) -> None:
        super().__init__(parse_options(AdminOptions, options))
        self._doors = doors or real_doors()

    async def start(self) -> None:
        """Find the cluster; AuthenticationFailed if it rejects the client; NoBrokersAvailable if no bootstrap server answers
        within `connect_timeout_ms`; UsageError if the client was started before."""
        if self._cluster is not None or self._stopped:
            raise UsageError("the admin client was started before: create a new one")
        self._home = Home("admin client")
        self._cluster = Cluster(self.options, self._doors.random)
        try:
            await self._cluster.start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the connections. A second call does nothing."""
        if not self._stopped:
            self._check_caller()
            self._stopped = True
            if self._cluster is not None:
                await self._cluster.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        await self.stop()

    def health(self) -> dict[str, Any]:
        """`state` ("not started", "stopped", "ok" or "degraded"), `brokers_connected` and `last_error`."""
        if self._stopped or self._cluster is None:
            return {"state": "stopped" if self._stopped else "not started"}
        error = self._cluster.metadata.last_error
        return {
            "state": "ok" if error is None else "degraded",
            "brokers_connected": self._cluster.connections.brokers_connected,
            "last_error": None if error is None else str(error),
        }
