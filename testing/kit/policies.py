"""Which topics are, or were, compacted. The kit asks the cluster, as a client does, and declares it in histories.

A cleaner that removes records of any other topic breaks a promise. So this follows the configuration of the topics, and not what
the cleaners have done.
"""

from __future__ import annotations

from collections.abc import Iterable

from strandline.client import Admin
from strandline.testing.history import History

CLEANUP_POLICY, DELETE_RETENTION_MS = "cleanup.policy", "delete.retention.ms"
DECIDING = frozenset((CLEANUP_POLICY, DELETE_RETENTION_MS, "log.cleanup.policy", "log.cleaner.delete.retention.ms"))
"""The keys, of topics and brokers, that decide what cleaners may remove."""
CERTAIN = 0.9
"""Share of the time for which tombstones are kept that a test can rely on: it is measured with the brokers' clocks."""


class Policies:
    """The topics of one cluster that a cleaner may have changed. A topic stays here when its policy changes again."""

    def __init__(self) -> None:
        self.clocks_are_right = True
        """Whether the brokers' clocks go at the speed of the history's clock."""
        self._kept_s: dict[str, float] = {}
        """Compacted topic -> the shortest time for which its tombstones were kept, in seconds."""
        self._keyed = (CLEANUP_POLICY, DELETE_RETENTION_MS)

    def __contains__(self, topic: str) -> bool:
        """Whether the topic was compacted at any look (`look`), even if its policy has changed since."""
        return topic in self._kept_s

    async def look(self, admin: Admin, topics: Iterable[str], history: History) -> None:
        """Look up the present policy of these topics, and declare the partitions of compacted ones in the history."""
        for topic in topics:
            found = {entry.name: entry.value for entry in await admin.describe_configs("topic", topic, self._keyed)}
            if "compact" in (found[CLEANUP_POLICY] or "").split(","):
                kept_s = CERTAIN * int(found[DELETE_RETENTION_MS] or 0) / 1000 if self.clocks_are_right else 0.0
                self._kept_s[topic] = min(kept_s, self._kept_s.get(topic, kept_s))
            if topic in self._kept_s:
                (description,) = await admin.describe_topics([topic])
                for partition in description.partitions:
                    history.compacted((topic, partition.partition), delete_retention_s=self._kept_s[topic])
