"""The admin client without asyncio."""

from __future__ import annotations

from typing import Unpack

from strandline.client.admin.admin import Admin as AsyncAdmin
from strandline.client.option_docs import documents
from strandline.client.options import AdminOptions, ClientKeywords
from strandline.client.sync.calls import AdminCalls
from strandline.protocol.doors import Doors


@documents(AdminOptions)
class Admin(AdminCalls):
    """Creates, describes, changes and deletes topics, consumer groups and configuration, and describes the cluster and its
    quorum.

        with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
            admin.create_topics([NewTopic("orders", partitions=6, replication_factor=3)])

    Start it with `with`, or with `start()` and `stop()`. Several threads may call it. A call is sent again until it succeeds, its
    error is not retriable, or `timeout_ms` has passed (RequestTimeout)."""

    _NAME = "admin client"

    def __init__(self, *, doors: Doors | None = None, **options: Unpack[ClientKeywords]) -> None:
        super().__init__(AsyncAdmin(doors=doors, **options))

    def start(self) -> None:
        """Find the cluster; AuthenticationFailed if it rejects the client; NoBrokersAvailable if no bootstrap server answers
        within `connect_timeout_ms`; UsageError if the client was started before."""
        super().start()

    def stop(self) -> None:
        """Close the connections. A second call does nothing."""
        self._stop(self._client.stop, 0.0, None)

    def _exit(self, error: BaseException | None) -> None:
        self.stop()
