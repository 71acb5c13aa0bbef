"""One voter of the metadata quorum, as the controller on top of it sees it: opened, started, appended to, stopped.

    opened_voter    the log and quorum-state on the disk, and the node that starts from them
    node_shell      sockets, timers and the disk around the node
    listener_feed   committed records and leaders, handed to the controller
    snapshot_taker  snapshots of the controller's state

An error after which the node must not continue (the disk failed, the leader asked it to truncate committed records, a bug)
stops it for good, because a node that continues could break a promise. The error is logged, the connections are closed, and
`on_fatal` is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from strandline.controller.metadata.voters import Voter
from strandline.controller.metrics import QuorumMetrics
from strandline.controller.raft.config import RaftConfig
from strandline.controller.raft.listener import QuorumListener
from strandline.controller.raft.listener_feed import ListenerFeed
from strandline.controller.raft.node import QUORUM_APIS
from strandline.controller.raft.node_shell import NodeShell
from strandline.controller.raft.opened_voter import OpenedVoter
from strandline.controller.raft.recovery_notice import RecoveryNotice
from strandline.controller.raft.snapshot_taker import SnapshotTaker
from strandline.protocol.doors import Doors
from strandline.protocol.errors import BrokerError, ErrorCode, UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.builder import encode_values
from strandline.protocol.rpc.server import ServerRequest
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity
from strandline.storage.files import DiskError, Files

logger = get_logger(__name__)


class Quorum:
    """One voter. `handlers` answers the quorum's requests; before `start()` and after a failure it refuses them with
    NOT_CONTROLLER."""

    @classmethod
    def open(
        cls,
        *,
        node_id: int,
        cluster_id: str,
        voters: Sequence[Voter],
        data_dir: str,
        files: Files,
        doors: Doors,
        config: RaftConfig,
        listener: QuorumListener,
        on_fatal: Callable[[BaseException], None],
        security: ClientSecurity = NO_SECURITY,
    ) -> Quorum:
        """Open the files of this voter (`OpenedVoter.open` names the errors)."""
        opened = OpenedVoter.open(
            node_id=node_id,
            cluster_id=cluster_id,
            voters=voters,
            data_dir=data_dir,
            files=files,
            doors=doors,
            config=config,
        )
        return cls(opened, doors, listener, on_fatal, security)

    def __init__(
        self,
        opened: OpenedVoter,
        doors: Doors,
        listener: QuorumListener,
        on_fatal: Callable[[BaseException], None],
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        """`security`: how this voter connects to the others."""
        self.node, self.log, self.voters = opened.node, opened.log, opened.voters
        state = opened.node.state
        self.node_id, self.config = state.node_id, state.config
        self.metrics = QuorumMetrics()
        self.failure: BaseException | None = None
        """The error that stopped this node for good."""
        self._doors = doors
        self._on_fatal = on_fatal
        self._shell = shell = NodeShell(
            opened, doors=doors, after_settling=self._after_settling, on_error=self._fail, security=security
        )
        self.handlers: Mapping[int, Callable[[ServerRequest], None]] = dict.fromkeys(QUORUM_APIS, shell.on_request)
        self._feed = ListenerFeed(
            state, self.log, listener, self, metrics=self.metrics, stopwatch=doors.stopwatch, schedule=shell.schedule
        )
        self._snapshots = SnapshotTaker(
            self.log,
            self._feed.applied,
            listener,
            node_id=self.node_id,
            config=self.config,
            wall_clock_ms=doors.wall_clock_ms,
            schedule=shell.schedule,
            on_error=self._fail,
        )
        self._recovery_notice = RecoveryNotice(state)
        self._closing: asyncio.Task[None] | None = None
        """Closes the connections of a node that failed."""

    # -- for the controller --------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.node.state.epoch

    @property
    def leader_id(self) -> int:
        return self.node.state.leader_id

    @property
    def is_leader(self) -> bool:
        """Whether this node leads the quorum. False after it has stopped or failed."""
        return self._shell.is_running and self.node.state.is_leader

    @property
    def has_vote(self) -> bool:
        """False while this voter recovers from the loss of its disk (`voter_recovery.py`)."""
        return self.node.state.recovery is None

    @property
    def high_watermark(self) -> int:
        return self.node.state.high_watermark

    @property
    def log_end_offset(self) -> int:
        return self.log.end_offset

    def append(self, records: Sequence[bytes], epoch: int) -> int:
        """Append one batch, which is applied whole or not at all, and return its last offset.

        Raises BrokerError NOT_CONTROLLER if this node does not lead `epoch` or its disk fails, and RECORD_LIST_TOO_LARGE above
        `batch_bytes_max`."""
        if not self._shell.is_running:
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"the metadata quorum of node {self.node_id} is not running")
        batch = bytearray(encode_values(records, self._doors.wall_clock_ms()))
        if len(batch) > self.config.batch_bytes_max:
            raise BrokerError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{len(batch)} bytes of metadata records in one batch")
        try:
            last_offset = self.node.append(batch, epoch)
            self.metrics.on_append(last_offset, self._doors.stopwatch())
            return last_offset
        except BrokerError:
            raise
        except (DiskError, UsageError) as e:
            self._fail(e)
            raise BrokerError(ErrorCode.NOT_CONTROLLER, f"controller {self.node_id} stops: {e}") from e
        except Exception as e:
            self._fail(e)
            raise
        finally:
            self._shell.schedule()

    async def take_snapshot(self) -> SnapshotId | None:
        """Write a snapshot now (`SnapshotTaker.take`). None if there is none to write, or the disk rejected it."""
        return await self._snapshots.take()

    # -- life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up the role that the log and `quorum-state` allow."""
        self.metrics.on_leader_known(False, self._doors.stopwatch())
        self._shell.start()
        if self._shell.is_running:
            self._recovery_notice.start()

    def _after_settling(self) -> None:
        self._feed.notify()
        self._snapshots.maybe_start()

    async def stop(self) -> None:
        """Stop in order: a leader resigns first, and waits up to an election timeout for its successor."""
        if not self._shell.is_running and self._closing is None:
            return
        if self._shell.is_running:
            await self._hand_over()
        await self._snapshots.stop()
        await (self._close_connections() if self._closing is None else self._closing)
        if self.failure is None:
            self.log.close()
        else:
            self.log.abandon()

    async def _hand_over(self) -> None:
        if self.node.state.is_leader and self.node.state.other_voters:
            self._shell.resign()
            await self._wait_for_successor(self.config.election_timeout_ms / 1000)
        self._halt()
        self._feed.resign()

    def _halt(self) -> None:
        self._shell.halt()
        self._recovery_notice.cancel()

    async def _wait_for_successor(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._shell.wait_for_leader()
        except TimeoutError:
            logger.warning("quorum.stopped_without_successor", node_id=self.node_id, controller_epoch=self.epoch)

    async def _close_connections(self) -> None:
        self._snapshots.cancel_retry()
        await self._shell.close()

    def _fail(self, error: BaseException) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._halt()
        # An error of the disk, or damage on it, explains itself. Any other error is a bug, and needs its traceback.
        bug = None if isinstance(error, (DiskError, UsageError)) else error
        logger.critical("quorum.failed", node_id=self.node_id, controller_epoch=self.epoch, reason=str(error), exc_info=bug)
        closing = self._close_connections()
        self._closing = asyncio.get_running_loop().create_task(closing, name="close the failed quorum node")
        self._on_fatal(error)
