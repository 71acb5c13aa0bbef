"""Makes several clusters for one test: `await make_cluster(brokers=1)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.testing.kit.cluster import Cluster


class ClusterFactory:
    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        self.clusters: list[Cluster] = []
        """Clusters that this factory made and has not closed."""

    async def __call__(self, **options: Any) -> Cluster:
        """Start a cluster and return it when it is ready. It is closed at the end of the test, or earlier by its `close()`."""
        merged = {**self._options, **options}
        if merged.get("folder") is not None and "folder" not in options:
            merged["folder"] = merged["folder"] / str(len(self.clusters) + 1)
        cluster = Cluster(**merged)
        await cluster.start()
        self.clusters.append(cluster)
        return cluster

    async def close(self) -> None:
        while self.clusters:
            await self.clusters.pop().close()
