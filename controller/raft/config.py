"""The durations and sizes of the quorum."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """Durations and sizes of the quorum, with Kafka's names where Kafka has the key."""

    election_timeout_ms: int = 500
    """How long a candidate waits for votes, and a voter for the candidate it voted for. Jitter extends it up to twice that."""
    fetch_timeout_ms: int = 1000
    """After this time without a successful fetch, a follower asks for pre-votes. After 1.5 times that without fetches of a
    majority, a leader resigns."""
    request_timeout_ms: int = 1000
    """A request to another voter fails after this time without a response."""
    election_backoff_ms_max: int = 100
    """Upper bound of the jitter before a voter without a leader asks for pre-votes."""
    election_backoff_ms_min: int = 10
    retry_backoff_ms: int = 20
    """Pause before a failed request is sent again."""
    reconnect_backoff_ms_max: int = 100
    """Connection attempts to a voter that cannot be reached start at `retry_backoff_ms` and double up to this."""
    fetch_wait_ms_max: int = 500
    """How long the leader may park an empty fetch; below `fetch_timeout_ms`, so that an idle quorum stays quiet."""
    fetch_bytes_max: int = 8 * 1024 * 1024
    snapshot_chunk_bytes_max: int = 1024 * 1024
    batch_bytes_max: int = 8 * 1024 * 1024
    """The largest size of one append. It is one batch, and is applied whole or not at all."""
    segment_bytes: int = 16 * 1024 * 1024
    snapshot_after_bytes: int = 20 * 1024 * 1024
    """A snapshot is due when this many bytes were committed since the last one, or `snapshot_after_records` records."""
    snapshot_after_records: int = 200_000
    snapshot_retry_ms: int = 60_000
    """Pause before the next attempt after the disk rejected a snapshot."""
    apply_bytes_max: int = 4 * 1024 * 1024
    """Committed bytes handed to the listener in one event-loop iteration."""

    def __post_init__(self) -> None:
        if self.fetch_wait_ms_max >= self.fetch_timeout_ms:
            raise UsageError(
                f"the fetch wait ({self.fetch_wait_ms_max} ms) must be shorter than "
                f"controller.quorum.fetch.timeout.ms ({self.fetch_timeout_ms} ms)"
            )
        if not 0 < self.election_backoff_ms_min <= self.election_backoff_ms_max:
            raise UsageError("the election backoff needs 0 < min <= max")

    @property
    def check_quorum_timeout_ms(self) -> float:
        """A leader resigns after this time without fetches of a majority (KAFKA-15489)."""
        return self.fetch_timeout_ms * 1.5
