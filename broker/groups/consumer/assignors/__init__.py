"""The server-side assignors: they decide which member of a group is to own which partitions.

    spec.py             the argument and the result of an assignor
    uniform.py          `uniform`: equal shares, and as few moves as possible
    equal_shares.py     its method for members that all subscribe to the same topics
    balanced_shares.py  its method for all other groups
    range_assignor.py   `range`: contiguous ranges, the same ones in each topic

An assignor is a function. Its result does not depend on the order of dicts and sets in its argument, so every coordinator
computes the same assignment for the same group. Neither of the two looks at racks; those of Kafka 4.3 do not, either.
"""

from __future__ import annotations

from strandline.broker.groups.consumer.assignors.range_assignor import assign_ranges
from strandline.broker.groups.consumer.assignors.spec import Assignor
from strandline.broker.groups.consumer.assignors.uniform import assign_uniformly

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""Name in requests and in the configuration -> assignor."""
