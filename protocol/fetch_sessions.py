"""The epochs of an incremental fetch session (KIP-227), which a follower or consumer and its leader count alike.

A session begins with a full fetch of epoch 0, which lists all partitions. Each further fetch has the next epoch, and lists only
what changed since the one before. A fetch of epoch -1 belongs to no session, and closes the one that it names."""

from __future__ import annotations

from strandline.protocol.errors import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
EPOCH_MAX = 2**31 - 1
SESSION_ERRORS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""The errors after which a fetcher begins a new session."""


def next_epoch(epoch: int) -> int:
    """The epoch after this one. It wraps to 1, since 0 asks for a new session."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == EPOCH_MAX else epoch + 1
