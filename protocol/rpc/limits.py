"""The limits of what one peer may claim of a server."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.protocol.errors import UsageError

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits per connection, and the limit of connections."""

    max_frame_bytes: int = 100 * MIB
    max_in_flight_per_connection: int = 1000
    """Unanswered requests of one connection; at this number the server stops reading from it."""
    in_flight_bytes_max: int = 256 * MIB
    """The largest total size of the frames of requests in flight, in bytes. A frame is read whole, so one frame may exceed
    this."""
    write_buffer_bytes_high: int = MIB
    """Unsent response bytes at which the server stops reading from the connection."""
    write_buffer_bytes_max: int = 256 * MIB
    """Unsent response bytes at which the server closes the connection. Larger than any single response."""
    write_stall_ms_max: int = 30_000
    """How long, in ms, a peer may leave its responses unread."""
    frame_ms_max: int = 30_000
    """How long, in ms, a frame may take from its first byte to its last. Time in which the server does not read does not
    count."""
    idle_ms_max: int = 600_000
    """How long, in ms, a connection may stay open without a request."""
    max_connections: int = 10_000
    """The largest number of connections. The process's limit of open files applies too; `reserved_files` of them (at most
    half) are kept for the logs."""
    reserved_files: int = 256
    accept_backlog: int = 1024

    def __post_init__(self) -> None:
        if min(self.max_frame_bytes, self.max_in_flight_per_connection, self.in_flight_bytes_max) < 1:
            raise UsageError("limits of a connection must be at least 1")
        if self.write_buffer_bytes_high > self.write_buffer_bytes_max:
            raise UsageError("write_buffer_bytes_high must not be larger than write_buffer_bytes_max")

    def connections_max(self, open_files_max: int) -> int:
        """The limit of connections for a process that may open `open_files_max` files."""
        return min(self.max_connections, max(open_files_max - self.reserved_files, open_files_max // 2))
