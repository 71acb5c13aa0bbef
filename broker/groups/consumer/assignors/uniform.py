"""The assignor `uniform`: equal shares first, then as few moves as possible.

If all members subscribe to the same topics, their shares differ by at most one partition, and as few partitions move as possible.
Otherwise the shares are about as equal as the subscriptions allow (`balanced_shares.py` names the exceptions).
"""

from __future__ import annotations

from strandline.broker.groups.consumer.assignors.balanced_shares import BalancedShares
from strandline.broker.groups.consumer.assignors.equal_shares import assign_equal_shares
from strandline.broker.groups.consumer.assignors.spec import GroupSpec
from strandline.broker.groups.records.types import Partitions


def assign_uniformly(spec: GroupSpec) -> dict[str, Partitions]:
    if not spec.members:
        return {}
    return assign_equal_shares(spec) if spec.is_homogeneous else BalancedShares(spec).assign()
