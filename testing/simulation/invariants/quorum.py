"""I18, I19: the metadata quorum, and all nodes that follow its log.

- **I18**: the state that a voter reports is on its disk. When a vote or a fetch is sent, the disk below the cache is checked. A
  leader commits only records that a majority has on its disks, and only up to a record of its own epoch.
- **I19**: there is one committed log. It grows when a leader raises the quorum's high watermark. The batches that a controller or
  broker applies are compared with it one by one, and the images that they build from it key by key.

A check raises `Violation`, with the number of its invariant, if the invariant does not hold.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.records import decode_record
from strandline.protocol.messages.common import SnapshotId
from strandline.protocol.records.batch import BatchHeader, read_header
from strandline.protocol.records.reader import decode_values
from strandline.testing.simulation.invariants import membership
from strandline.testing.simulation.invariants.bytes_on_disk import (
    durable_content,
    is_damaged,
    is_durable,
    knows_durability,
)
from strandline.testing.simulation.invariants.ghosts import Entry, Ghosts, ReplicaGhost
from strandline.testing.simulation.invariants.paths import Batch
from strandline.testing.simulation.invariants.violation import Violation

# -- the disk of a voter (I18) ----------------------------------------------------------------------------------------


def on_flushed(replica: ReplicaGhost) -> None:
    """The log reports that it is on the disk up to its end."""
    log, path = replica.log, replica.path
    if log is None:
        return
    for segment in log.segments[log.segment_for(replica.flushed) :]:
        if segment.size and not is_durable(segment.file):
            text = (
                f"node {replica.node} reports its metadata log as flushed up to {path.end}, but {segment.file.path} is not "
                "durable"
            )
            raise Violation("I18", text, node=replica.node)
    replica.flushed = path.end
    if path.epochs:
        replica.flushed_by_epoch[path.last_epoch] = max(path.end, replica.flushed_by_epoch.get(path.last_epoch, 0))


def on_fetch_leaves(ghosts: Ghosts, node: int, offset: int) -> None:
    replica = ghosts.metadata.log.replica(node)
    if offset > replica.flushed:
        text = f"voter {node} fetches from offset {offset}, but its disk holds only the records below {replica.flushed}"
        raise Violation("I18", text, node=node)


def on_vote_leaves(ghosts: Ghosts, voter: int, epoch: int, candidate: int, path: str) -> None:
    """A voter sends its vote for another candidate, or the request that implies a vote for itself."""
    before = ghosts.metadata.votes.setdefault((voter, epoch), candidate)
    if before != candidate:
        raise Violation(
            "I18", f"voter {voter} votes for {candidate} in epoch {epoch}, but it has already voted for {before}", node=voter
        )
    process = ghosts.processes.get(voter)
    if process is None or not knows_durability(process.files) or is_damaged(process.files, path):
        return
    content = durable_content(process.files, path)
    state = json.loads(content) if content else {}
    found = (state.get("leaderEpoch", -1), state.get("votedId", -1))
    if found != (epoch, candidate) and found[0] <= epoch:
        text = f"voter {voter} votes for {candidate} in epoch {epoch}, but its disk holds (epoch, vote) {found}"
        raise Violation("I18", text, node=voter)


# -- commits ----------------------------------------------------------------------------------------------------------


def on_high_watermark(ghosts: Ghosts, replica: ReplicaGhost, offset: int, *, leads_in: int | None) -> None:
    """A voter has raised the quorum's high watermark, and may thereby have committed batches."""
    log, path = ghosts.metadata.log, replica.path
    committed = log.committed
    if ghosts.metadata.is_given_up:
        return
    if leads_in is not None:
        _check_own_epoch(replica, offset, leads_in)
    if offset <= committed.end:
        if offset > path.start and path.epoch_at(offset - 1) != committed.epoch_at(offset - 1):
            if log.loss_permitted:
                _give_up(ghosts)
                return
            text = (
                f"controller {replica.node} has committed record {offset - 1} of epoch {path.epoch_at(offset - 1)}, but the "
                f"committed record at this offset is of epoch {committed.epoch_at(offset - 1)}"
            )
            raise Violation("I19", text, node=replica.node)
        return
    if leads_in is None:
        text = f"controller {replica.node} has {offset} as the quorum's high watermark, but it is {committed.end}"
        raise Violation("I19", text, node=replica.node)
    if not path.holds_all_of(committed):
        if log.loss_permitted:
            _give_up(ghosts)
            return
        parts = path.agrees_until(committed)
        text = f"controller {replica.node} leads in epoch {leads_in}, but lacks the committed metadata from offset {parts} on"
        raise Violation("I19", text, node=replica.node)
    _check_majority(ghosts, replica, offset, leads_in)
    begins = committed.end
    committed.follow(path, offset)
    for epoch, batch in log.tree.walk(path, begins, offset):
        _enter(ghosts, epoch, batch)


def _give_up(ghosts: Ghosts) -> None:
    """Give up judging: epochs, topics and brokers that existed before may reappear, so the record of them is of no use."""
    ghosts.metadata.is_given_up = True


def _check_own_epoch(replica: ReplicaGhost, offset: int, epoch: int) -> None:
    written_in = replica.path.epoch_at(offset - 1)
    if written_in != epoch:
        text = (
            f"controller {replica.node} leads in epoch {epoch} and commits up to {offset}, but the last record there is of epoch "
            f"{written_in}, not of its own"
        )
        raise Violation("I18", text, node=replica.node)


def _check_majority(ghosts: Ghosts, replica: ReplicaGhost, offset: int, epoch: int) -> None:
    log, voters = ghosts.metadata.log, ghosts.metadata.voters
    have = [n for n in voters if n in log.replicas and log.replicas[n].flushed_by_epoch.get(epoch, 0) >= offset]
    if voters and 2 * len(have) <= len(voters) and not log.loss_permitted:
        text = (
            f"controller {replica.node} commits up to {offset} in epoch {epoch}, but of the voters {list(voters)} only {have} "
            "have it on disk"
        )
        raise Violation("I18", text, node=replica.node)


def _enter(ghosts: Ghosts, epoch: int, batch: Batch) -> None:
    metadata = ghosts.metadata
    payload = metadata.payloads.pop((epoch, batch.base), b"")
    values: tuple[bytes, ...] = ()
    if payload and not batch.is_control:
        values = tuple(bytes(value or b"") for value in decode_values(payload, 0, read_header(payload)))
    entry = Entry(batch.base, batch.next - 1, epoch, batch.crc, values)
    metadata.entries.append(entry)
    metadata.by_base[entry.base] = entry
    records = [decode_record(value) for value in values]
    changed = membership.replay(ghosts, entry.base, records)
    metadata.image = metadata.image.apply(records, entry.last, epoch).image
    metadata.images[entry.last] = metadata.image
    if changed[0] or changed[1]:
        metadata.changes.append((entry.last, tuple(changed[0]), tuple(changed[1])))
        membership.compare_with_image(ghosts, metadata.image, changed)


def on_leader(ghosts: Ghosts, replica: ReplicaGhost, epoch: int) -> None:
    """I19: an elected leader has every committed record."""
    log = ghosts.metadata.log
    if replica.path.holds_all_of(log.committed):
        return
    if log.loss_permitted:
        _give_up(ghosts)
    else:
        parts = replica.path.agrees_until(log.committed)
        text = f"controller {replica.node} is elected in epoch {epoch}, but lacks the committed metadata from offset {parts} on"
        raise Violation("I19", text, node=replica.node)


# -- nodes that apply the log (I19) -----------------------------------------------------------------------------------


def on_applied(ghosts: Ghosts, role: str, node: int, batch: tuple[int, int, int], values: Sequence[bytes] | None) -> None:
    """A node has applied a batch. `batch`: base offset, last offset, epoch. `values`: the records, if they are available."""
    metadata = ghosts.metadata
    if not metadata.entries:
        return
    entry = metadata.by_base.get(batch[0])
    if entry is None or entry[:3] != batch or (values is not None and tuple(values) != entry.values):
        text = f"{role} {node} applies the metadata batch {batch} (base, last, epoch), but "
        if entry is None:
            text += f"no committed batch begins there: the committed log is {metadata.log.committed}"
        elif entry[:3] != batch:
            text += f"the committed batch there is {entry[:3]}"
        else:
            text += "its records differ from those of the committed batch"
        raise Violation("I19", text, node=node)


def on_observed(ghosts: Ghosts, node: int, headers: Iterable[BatchHeader], delta: MetadataDelta | None) -> None:
    """A broker has applied committed batches to its image."""
    for header in headers:
        on_applied(ghosts, "broker", node, (header.base_offset, header.last_offset, header.leader_epoch), None)
    if delta is not None:
        compare_images(ghosts, f"broker {node}", node, delta.before.offset, delta.image)


def compare_images(ghosts: Ghosts, holder: str, node: int, since: int, image: MetadataImage) -> None:
    """Everything that changed after `since` is in the image as it is in ours."""
    metadata = ghosts.metadata
    if not metadata.entries:
        return
    ours = metadata.image_at(image.offset)
    if ours is None:
        text = (
            f"{holder} has an image up to offset {image.offset}, but no committed batch ends there (the log is committed up to "
            f"{metadata.end})"
        )
        raise Violation("I19", text, node=node)
    first = bisect_right(metadata.changes, since, key=lambda change: change[0])
    for last, partitions, brokers in metadata.changes[first:]:
        if last > image.offset:
            break
        for key in partitions:
            if image.partition(key) != ours.partition(key):
                name = ghosts.partitions[key].name
                text = (
                    f"at metadata offset {image.offset}, {holder} has {image.partition(key)} for {name}, but the committed "
                    f"records result in {ours.partition(key)}"
                )
                raise Violation("I19", text, partition=name, node=node)
        for broker in brokers:
            if image.brokers.get(broker) != ours.brokers.get(broker):
                theirs, right = image.brokers.get(broker), ours.brokers.get(broker)
                text = (
                    f"at metadata offset {image.offset}, {holder} has {theirs} for broker {broker}, but the committed records "
                    f"result in {right}"
                )
                raise Violation("I19", text, node=node)


def on_snapshot(ghosts: Ghosts, node: int, snapshot_id: SnapshotId, image: MetadataImage | None) -> None:
    """A controller has written or received a snapshot."""
    metadata, end = ghosts.metadata, snapshot_id.end_offset
    if not metadata.entries:
        return
    if end > metadata.end:
        raise Violation(
            "I19", f"controller {node} has a snapshot up to {end}, but the log is committed only up to {metadata.end}", node=node
        )
    ours = metadata.image_at(end - 1)
    if ours is None or ours.epoch != snapshot_id.epoch:
        text = f"controller {node} has a snapshot up to {end} of epoch {snapshot_id.epoch}, but no committed batch ends there"
        raise Violation("I19", text, node=node)
    if image is not None:
        check_same_state(f"controller {node}", node, image, ours)


def check_same_state(holder: str, node: int, image: MetadataImage, ours: MetadataImage) -> None:
    """The whole state at the same offset is the same, however it was reached."""
    delta = ours.delta_to(image)
    if not delta.is_empty or image.next_producer_id != ours.next_producer_id or image.partition_count != ours.partition_count:
        keys = [f"{key[0].hex()[:8]}-{key[1]}" for key in delta.changed_partitions]
        text = (
            f"{holder} differs from the committed metadata at offset {image.offset} in partitions {keys}, brokers "
            f"{delta.changed_brokers}, configs {delta.changed_configs}"
        )
        raise Violation("I19", text, node=node)


def check_states(ghosts: Ghosts) -> None:
    """Check every image that is at a committed offset as a whole. Runs at rest only."""
    for process in [*ghosts.live_brokers(), *ghosts.live_controllers()]:
        image = _image_of(process.server)
        ours = None if image is None else ghosts.metadata.image_at(image.offset)
        if image is not None and ours is not None:
            check_same_state(f"node {process.node}", process.node, image, ours)


def _image_of(server: Any) -> MetadataImage | None:
    if hasattr(server, "lifecycle"):
        image: MetadataImage = server.metadata.image
        return image
    return server.controller.committed if server.has_quorum else None
