"""The file `quorum-state` of one voter: read once at the start, replaced as a whole when epoch, vote or leader change."""

from __future__ import annotations

from collections.abc import Sequence

from strandline.controller.raft.election import ElectionState, QuorumFile, decode_quorum_state, encode_quorum_state
from strandline.protocol.errors import UsageError
from strandline.storage.files import Files, join

FILE_NAME = "quorum-state"
_HELP = "Restore it, or, while a majority of the other controllers is healthy, empty this directory as a whole"


class QuorumStateStore:
    """Reads and writes the file `quorum-state`."""

    def __init__(self, files: Files, directory: str, *, cluster_id: str, voter_ids: Sequence[int]) -> None:
        self.path = join(directory, FILE_NAME)
        self._files = files
        self._cluster_id = cluster_id
        self._voter_ids = tuple(voter_ids)

    def read(self) -> QuorumFile | None:
        """The content of the file; None if there is none. Raises UsageError if it is damaged, or of another cluster or other
        voters."""
        if not self._files.exists(self.path):
            return None
        return decode_quorum_state(self._files.read(self.path), self.path, self._cluster_id, self._voter_ids)

    def check(self, state: QuorumFile | None, log_end_offset: int) -> ElectionState:
        """The election state to start with. Raises UsageError if the file and the log beside it show that a vote or committed
        records are lost."""
        if state is None:
            if log_end_offset > 0:
                raise UsageError(
                    f"{self.path} is missing beside a metadata log that ends at offset {log_end_offset}: "
                    f"this voter's vote is lost. {_HELP}"
                )
            # An empty disk at the first start, or one that replaced a disk with state: the two look alike (`voter_recovery.py`).
            return ElectionState(recovering=len(self._voter_ids) > 1)
        if state.applied_offset > log_end_offset:
            raise UsageError(
                f"the metadata log beside {self.path} ends at offset {log_end_offset}, but records up to "
                f"{state.applied_offset} were committed: this voter has lost records and must not vote. {_HELP}"
            )
        return state.election

    def write(self, election: ElectionState, applied_offset: int) -> None:
        """Replace the file. It is durable when this returns."""
        self._files.write_atomic(self.path, encode_quorum_state(self._cluster_id, self._voter_ids, election, applied_offset))
