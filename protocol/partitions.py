"""The name that a partition has inside the system: its topic's id and its number.

A topic's name can be given to another topic after the first one is deleted, the id cannot. Requests, images and logs are
therefore keyed by the id, and a request that names a deleted topic finds nothing (KIP-516)."""

TopicIdPartition = tuple[bytes, int]
"""Topic id (16 bytes, as in `partition.metadata`) and partition number (from 0).

A plain tuple and not a class: one is made for each partition of each request, and used as a key."""
