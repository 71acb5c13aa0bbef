"""Takes the samples of `strandline top`, over one connection to the cluster that is opened again when it fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from strandline.cli.common import CONNECT_TIMEOUT_MS
from strandline.cli.group import states_of
from strandline.cli.top_rates import GroupSample, Sample
from strandline.cli.topic_offsets import offsets_at
from strandline.protocol.errors import StrandlineError
from strandline.reach import reach

if TYPE_CHECKING:
    from strandline.client import Admin, LogDirDescription, TopicDescription, TopicPartition

TIMEOUT_MS = 2000
LATEST = -1


class Sampler:
    """Asks the cluster at this address, from the event loop that calls it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin: Admin | None = None

    async def sample(self) -> Sample:
        """The cluster now. Raises StrandlineError if no broker answers; the next call connects again."""
        try:
            return await self._sample(await self._connected())
        except StrandlineError:
            await self.close()
            raise

    async def close(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            await admin.stop()

    async def _connected(self) -> Admin:
        from strandline.client import Admin

        if self._admin is None:
            admin = Admin(**reach(self.bootstrap), connect_timeout_ms=CONNECT_TIMEOUT_MS)
            await admin.start()
            self._admin = admin
        return self._admin

    async def _sample(self, admin: Admin) -> Sample:
        cluster, topics = await asyncio.gather(
            admin.describe_cluster(timeout_ms=TIMEOUT_MS), admin.describe_topics(timeout_ms=TIMEOUT_MS)
        )
        ids = [broker.broker_id for broker in cluster.brokers if not broker.is_fenced]
        dirs, ends, groups = await asyncio.gather(
            admin.describe_log_dirs(ids, timeout_ms=TIMEOUT_MS), _ends(admin, topics), _groups(admin)
        )
        sizes = {broker_id: _sizes(found) for broker_id, found in dirs.items()}
        return Sample(asyncio.get_running_loop().time(), cluster, topics, ends, sizes, groups)


async def _ends(admin: Admin, topics: list[TopicDescription]) -> dict[TopicPartition, int]:
    from strandline.client import TopicPartition

    led = [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions if p.leader_id >= 0]
    return await offsets_at(admin, led, LATEST)


async def _groups(admin: Admin) -> list[GroupSample]:
    """The groups; none from a cluster that does not know them."""
    try:
        listing = await admin.list_groups(timeout_ms=TIMEOUT_MS)
        states = await states_of(admin, [group.group_id for group in listing.groups])
    except StrandlineError:
        return []
    return [GroupSample(s.group_id, s.description.state, len(s.description.members), s.lag.total) for s in states]


def _sizes(dirs: list[LogDirDescription]) -> dict[TopicPartition, int]:
    return {tp: info.size_bytes for one in dirs for tp, info in one.replicas.items()}
