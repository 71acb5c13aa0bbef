"""Assigns partitions to fetchers: one fetcher per leader and fetcher id.

If `num.replica.fetchers` is above 1, the partitions of a leader are spread over several connections by a hash of topic name and
partition. Python's own hash differs from process to process, so it cannot be used: every process must assign a partition to the
same fetcher id. A fetcher without partitions is closed at the end of the event-loop iteration and not at once, because a new
leader epoch of the same leader removes a partition and adds it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from zlib import crc32

from strandline.broker.partition.partition import Partition
from strandline.broker.replication.fetcher import FetcherCore, FetcherSettings
from strandline.broker.replication.fetcher_shell import Fetcher
from strandline.broker.replication.throttle import ReplicationThrottle
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.loggers import get_logger
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.storage.files import DiskError

logger = get_logger(__name__)

CONNECT_TIMEOUT_MS = 1000

FetcherKey = tuple[int, int]
"""Leader id, and number of the fetcher for this leader (from 0 to num.replica.fetchers - 1)."""


def fetcher_id(topic: str, partition: int, fetchers: int) -> int:
    """The fetcher id of a partition: the same in every process and on every machine."""
    return (31 * crc32(topic.encode()) + partition) % fetchers


class FetcherManager:
    """All fetchers of a broker (implements `FetcherPort`)."""

    def __init__(
        self,
        *,
        broker_id: int,
        broker_epoch: Callable[[], int],
        fetchers_per_leader: int,
        settings: FetcherSettings,
        address_of: Callable[[int], tuple[str, int] | None],
        on_progress: Callable[[list[TopicIdPartition]], None],
        on_disk_error: Callable[[DiskError], None],
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        self._throttle = ReplicationThrottle()
        """Limits what this broker receives for replicas that reassignments add."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._fetchers_per_leader = fetchers_per_leader
        self._settings = settings
        self._address_of = address_of
        self._security = security
        self._on_progress = on_progress
        self._on_disk_error = on_disk_error
        self._fetchers: dict[FetcherKey, Fetcher] = {}
        self._fetcher_of: dict[TopicIdPartition, Fetcher] = {}
        """The fetcher of each partition. It may have stopped fetching the partition (fenced, failed disk)."""
        self._reap_scheduled = False
        self._closed = False
        """Set when the broker stops. It still follows the metadata for a moment, but no longer starts a fetcher."""

    def add(self, partition: Partition, leader_id: int) -> None:
        """Fetch the partition from this leader from now on, from its log end."""
        if self._closed:
            return
        fetcher = self._fetcher_for(partition, leader_id)
        before = self._fetcher_of.get(partition.key)
        if before is not None and before is not fetcher:
            self._detach(partition.key, before)
        self._fetcher_of[partition.key] = fetcher
        fetcher.add(partition)

    def remove(self, key: TopicIdPartition) -> None:
        fetcher = self._fetcher_of.pop(key, None)
        if fetcher is not None:
            self._detach(key, fetcher)

    def on_reader(self, key: TopicIdPartition) -> None:
        fetcher = self._fetcher_of.get(key)
        if fetcher is not None:
            fetcher.on_reader(key)

    def hurry(self, leader_id: int) -> None:
        """Connect to this leader now instead of at the end of a back-off, because a new process of it has registered."""
        for number in range(self._fetchers_per_leader):
            fetcher = self._fetchers.get((leader_id, number))
            if fetcher is not None:
                fetcher.hurry()

    def resize(self, fetchers_per_leader: int) -> None:
        """Spread the partitions of each leader over this many fetchers from now on. A partition that gets another fetcher is
        fetched again from its log end. Its former fetcher ignores it in the response that it still waits for."""
        self._fetchers_per_leader = fetchers_per_leader
        for key, fetcher in list(self._fetcher_of.items()):
            partition = fetcher.core.partition(key)
            # None: the fetcher has stopped fetching the partition, and only new metadata starts it again.
            if partition is not None and self._fetcher_for(partition, fetcher.leader_id) is not fetcher:
                self.add(partition, fetcher.leader_id)

    def use_settings(self, settings: FetcherSettings) -> None:
        """Use these settings from the next fetch of each fetcher on."""
        self._settings = settings
        for fetcher in self._fetchers.values():
            fetcher.core.settings = settings

    def close(self) -> None:
        self._closed = True
        for fetcher in self._fetchers.values():
            fetcher.close()
        self._fetchers.clear()
        self._fetcher_of.clear()

    def __len__(self) -> int:
        return len(self._fetchers)

    # -- for metrics --------------------------------------------------------------------------------------------------

    def lags(self) -> Iterator[tuple[str, Partition, int]]:
        """Yield each partition with its fetcher's name and its lag: the number of records behind the leader's high watermark."""
        for (leader_id, number), fetcher in self._fetchers.items():
            name = f"ReplicaFetcher-{number}-{leader_id}"
            for partition, lag in fetcher.core.lags():
                yield name, partition, lag

    @property
    def connected(self) -> int:
        """How many fetchers have a connection to their leader."""
        return sum(fetcher.is_connected for fetcher in self._fetchers.values())

    @property
    def fetches(self) -> int:
        """How many fetches the present fetchers have sent."""
        return sum(fetcher.core.fetches for fetcher in self._fetchers.values())

    @property
    def given_up(self) -> int:
        """The number of partitions that their fetcher has stopped fetching: fenced, or after an error."""
        return len(self._fetcher_of) - sum(len(fetcher.core) for fetcher in self._fetchers.values())

    def _fetcher_for(self, partition: Partition, leader_id: int) -> Fetcher:
        number = fetcher_id(partition.topic, partition.key[1], self._fetchers_per_leader)
        fetcher = self._fetchers.get((leader_id, number))
        if fetcher is None:
            fetcher = self._fetchers[leader_id, number] = self._new_fetcher(leader_id, number)
        return fetcher

    def _new_fetcher(self, leader_id: int, number: int) -> Fetcher:
        client_id = f"broker-{self._broker_id}-fetcher-{number}"

        async def connect(on_lost: Callable[[Connection, Exception | None], None]) -> Connection:
            address = self._address_of(leader_id)
            if address is None:
                raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"the address of broker {leader_id} is not known")
            return await Connection.connect(
                *address,
                client_id=client_id,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                on_lost=on_lost,
                security=self._security,
            )

        core = FetcherCore(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch,
            settings=self._settings,
            on_disk_error=self._on_disk_error,
            throttle=self._throttle,
        )
        return Fetcher(leader_id=leader_id, broker_id=self._broker_id, core=core, connect=connect, on_progress=self._on_progress)

    def _detach(self, key: TopicIdPartition, fetcher: Fetcher) -> None:
        fetcher.remove(key)
        if not len(fetcher.core) and not self._reap_scheduled:
            self._reap_scheduled = True
            asyncio.get_running_loop().call_soon(self._reap)

    def _reap(self) -> None:
        self._reap_scheduled = False
        for key in [key for key, fetcher in self._fetchers.items() if not len(fetcher.core)]:
            self._fetchers.pop(key).close()
