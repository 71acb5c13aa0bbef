"""The observation points: every private name of the product that the simulator looks at, by class, and what it is needed for.

A product class that renames or drops one of these changes this list, too; `tests/testing/simulation/test_points.py` compares the
list with both sides. Public names are not listed. The mutations and the guards are not meant here: they change the inside of the
product on purpose, and name it as they need.
"""

from __future__ import annotations

POINTS: dict[str, dict[str, str]] = {
    "storage.log.log:Log": {"_append": "batches as they enter a log, also if the process dies in the middle (I4)"},
    "storage.log.epoch_cache:LeaderEpochCache": {
        "_epochs": "the epochs of a log, without a copy after each step (I11)",
        "_starts": "their first offsets (I11)",
    },
    "storage.directory.log_dir:LogDir": {
        "_close_orderly": "the moment from which the clean-shutdown marker is true (I25)",
        "_load": "whether a start trusts the marker of the process before it (I25)",
    },
    "storage.memory.memory_files:MemoryFile": {
        "_files": "the disk of a file, and so its process",
        "_inode": "the bytes of a file as the cache has them, and as the disk does",
    },
    "storage.memory.memory_files:MemoryFiles": {"_find": "the file of a path that a snapshot is written to (I18)"},
    "broker.partition.partition:Partition": {
        "_log_missing_records": "the report of a leader that its log had lost records (I20)",
        "_truncate": "each truncation, before and after (I6)",
    },
    "broker.partition.leader_state:LeaderState": {
        "_propose": "an AlterPartition request is made (I12)",
        "_install": "a committed ISR is taken over (I12)",
        "_on_refusal": "a refused proposal (I12)",
        "_drop_proposal": "a withdrawn proposal (I12)",
        "_is_in_sync": "a follower that waits for the start of the leader's epoch (marks)",
        "_smallest_log_end": "what the high watermark waits for (marks)",
    },
    "broker.purgatory:HighWatermarkWatchers": {
        "_waiting": "produce requests that wait for a high watermark (I17)",
        "_ended": "those whose leadership has ended (I17)",
    },
    "broker.partition.alter_partition:AlterPartitionQueue": {
        "_in_flight": "proposals that a response no longer decides (marks)",
        "_pending": "the proposals that wait (marks)",
        "_doubtful": "proposals that may have been committed (marks)",
    },
    "broker.produce.produce_handler:ProduceHandler": {
        "_append": "the batch that a produce request appended, and the offset that its answer needs (I15)",
        "_refuse": "a refused batch (marks)",
    },
    "broker.produce.produce_handler:DelayedProduce": {"_responses": "the outcome of an expired produce request (marks)"},
    "broker.fetch.fetch_handler:Fetch": {
        "_add_error": "an error for one partition (I9)",
        "_handler": "the broker that answers",
        "_reply": "what leaves for a consumer (I8, I9)",
        "_request": "whether its connection is still open",
        "_visit_for_consumer": "a consumer's fetch from a follower (marks)",
    },
    "broker.fetch.fetch_session:FetchSessionCache": {
        "_continue": "the next fetch of a session (marks)",
        "_full": "the first fetch of a session (marks)",
        "_slots": "the limit of sessions (I23)",
        "_try_evict": "a full cache evicts a session (marks)",
    },
    "broker.fetch.offsets_handler": {"_list": "an answer to ListOffsets (I10)"},
    "broker.replication.fetcher": {
        "_entries": "whether a partition was fetched again since a late response (marks)",
        "_generation": "whether a response is of an earlier connection (marks)",
    },
    "broker.purgatory:Purgatory": {
        "_queues": "the waiting operations, by time-out (I17)",
        "_timer": "the timer for their deadlines (I17)",
        "_timer_due": "when it fires (I17)",
    },
    "broker.process.server:BrokerServer": {"_stopped": "a second stop does nothing, and is not judged (I23)"},
    "broker.process.quorum_observer:QuorumObserver": {
        "_apply_committed": "the batches that a broker applies (I19)",
        "_broker_id": "which broker applies them",
        "_install": "a snapshot that replaces the image (I19)",
        "_waiting": "batches that wait for the quorum's high watermark (I19)",
    },
    "protocol.rpc.server_connection:ServerRequest": {"_is_answered": "a second answer to one request (I17)"},
    "controller.raft.quorum:Quorum": {
        "_store": "the file with the vote (I18)",
        "_transmit": "votes and fetches, as they leave (I18)",
    },
    "controller.raft.metadata_log:MetadataLog": {"_log": "the log below the metadata log"},
    "controller.raft.metadata_log:FileSink": {
        "_files": "the disk that a snapshot is written to",
        "_path": "its file",
        "_snapshot_id": "which snapshot it is (I19)",
    },
    "controller.raft.election_handler:ElectionHandler": {
        "_is_up_to_date": "a candidate's log was less complete (marks)",
        "_may_vote": "a vote was given or refused (marks)",
        "_would_vote": "a pre-vote was refused (marks)",
    },
    "controller.raft.transitions:RoleTransitions": {"_become": "a candidate that was not elected (marks)"},
    "controller.raft.epoch_announcements:EpochAnnouncements": {
        "_on_leader_resigned": "a leader resigned in favour of others (marks)"
    },
    "controller.raft.leader_handler:LeaderHandler": {"_hears_majority": "a leader that lost its majority (marks)"},
    "client.producer.producer:Producer": {"_cluster": "the topic id that the producer knows"},
    "client.consumer.consumer:Consumer": {"_subscription": "where the consumer reads from"},
    "client.consumer.offset_fetcher:OffsetFetcher": {"_on_end_offset": "a position was validated (marks)"},
    "client.producer.partition_queue:PartitionQueue": {
        "_bump_epoch": "a producer bumps its epoch for a partition (marks)",
        "_recovered": "a batch turned out to be in the log (marks)",
    },
}
"""`module:class` below `strandline.` (or a module) -> name -> what it is needed for."""
