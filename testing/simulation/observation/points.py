"""The observation points: the public names of the product through which the simulator looks at a run.

The probes and the marks wrap functions: a call of one is an event of the run. The invariants read attributes that say what no
message shows. Each of these functions and attributes is listed here with its purpose, so that a change of the product finds what
depends on it. The product class documents the name like any other; it calls no hook, and a run without a simulator pays nothing.

`tests/testing/simulation/test_points.py` compares the list with both sides, and checks that no module below `testing/` uses a
private name of the product. Ordinary attributes of domain objects (offsets of a log, the role of a partition, the metadata image)
are not listed. The mutations and the guards are not meant here: they change the inside of the product on purpose, and name it as
they need.
"""

from __future__ import annotations

POINTS: dict[str, dict[str, str]] = {
    "storage.log.log:Log": {
        "open, roll, flush": "what a start finds (I4, I5), a new segment (trace), what is on the disk (I18)",
        "append_batches": "batches as they enter a log, also if the process dies in the middle (I4)",
        "append_as_leader": "a repeated batch of a producer (marks)",
        "truncate_to, truncate_fully_and_start_at": "each truncation, before and after (I6)",
        "update_high_watermark": "the high watermark of a replica (I7, I10)",
        "replace_segments": "a cleaner puts a rewritten segment in the place of others (I26, I27)",
        "increment_log_start_offset, delete_old_segments": "the start of a log (I5)",
        "expire_producers": "a log that forgets producers need not recognise their batches (I16)",
    },
    "storage.log.log_state:LogState": {"mark_corrupt": "a log finds damage and counts it (I20)"},
    "storage.log.epoch_cache:LeaderEpochCache": {"epochs, starts": "the epochs of a log, without a copy after each step (I11)"},
    "storage.log.recovery": {
        "apply_checkpoints": "the disk had lost what a checkpoint covers (marks)",
        "load_epochs": "the epochs were read from the batches (marks)",
    },
    "storage.log.producer_recovery": {"replay_producers": "the producers were read from the batches (marks)"},
    "storage.log.segment:Segment": {"rebuild_indexes": "an index did not fit its segment (marks)"},
    "storage.log.truncation": {"truncate_to": "a truncation that removed epochs and no record (marks)"},
    "storage.directory.log_dir:LogDir": {
        "load": "whether a start trusts the marker of the process before it (I25)",
        "close_cleanly": "the moment from which the clean-shutdown marker is true (I25)",
        "close, delete_log, set_aside": "the logs that a process no longer has",
    },
    "storage.disk:DiskError": {"__init__": "the errors of the disk (marks)"},
    "storage.memory.memory_files:MemoryFile": {
        "files": "the disk of a file, and so its process",
        "inode": "the bytes of a file as the cache has them, and as the disk does",
        "close": "the files that a process has open (I23)",
    },
    "storage.memory.memory_files:MemoryFiles": {
        "open": "the files that a process has open (I23)",
        "find": "the file of a path that a snapshot is written to (I19)",
    },
    "protocol.rpc.server_connection:ServerRequest": {
        "reply": "the responses to clients (I8, I15)",
        "is_answered": "a second answer to one request (I17)",
        "received_at": "which offsets were the newest when the request arrived (I38)",
    },
    "protocol.rpc.server_connection:ServerConnection": {
        "principal": "the sender of a request (I47)",
        "mute": "a connection is throttled (I49)",
    },
    "broker.process.wiring": {"guarded_handlers": "the handlers behind the guards of a broker (I47)"},
    "controller.server": {"authorized": "the handlers behind the guards of a controller (I47)"},
    "controller.metadata.security.access:Access": {
        "may, sees, topic_refusal": "decisions about rights, with the metadata by which they were made (I48)",
    },
    "client.cluster.throttle_times:ThrottleTimes": {"on_throttled": "a client is throttled (marks)"},
    "protocol.rpc.connection:Connection": {
        "hold_back": "a connection logs in again (marks)",
        "api_key_of": "which request a response answers, for the rules of the network",
    },
    "protocol.rpc.dial": {"forget": "look-ups of a process that was killed"},
    "broker.groups.coordinator:GroupCoordinator": {"config": "the settings for a second load (I40)"},
    "broker.coordination.coordinator:Coordinator": {
        "shard_of": "requests to a broker that does not coordinate the group, or not yet (marks)",
        "read_committed": "whether the committed offsets are known when they are asked for (marks)",
        "shards": "the groups of a broker, and whether they are loaded (I40)",
    },
    "broker.coordination.coordinator:ActiveShard": {
        "shard, loader, is_current, leader_state": "the memory of a coordinator (I40)",
    },
    "broker.coordination.replies:DelayedReplies": {
        "on_complete, on_failed, on_expiration": "replies that waited for the high watermark (marks)",
    },
    "broker.coordination.loader:ShardLoader": {"cancel": "a load that a change of leadership overtook (marks)"},
    "broker.groups.shard:GroupShard": {
        "commit_offsets": "the commits that are accepted (I37)",
        "delete_group": "a group is deleted (marks)",
        "groups, offsets, image, deadlines, consumer": "the state of a coordinator (I40), and why a member is removed (I36)",
    },
    "broker.groups.offsets:OffsetStore": {
        "expire, delete_topics": "offsets that expire, or whose topic was deleted (marks)",
        "offsets_of, groups_with_offsets, on_high_watermark": "the committed offsets of a coordinator (I40)",
    },
    "broker.groups.consumer.group:ConsumerGroup": {
        "check_offset_commit": "commits of older epochs, and of members that were removed (marks)",
        "owners, targets, resolved, topic_counts, regex_counts, static_members": "the state of a group at its coordinator (I40)",
    },
    "broker.groups.consumer.protocol:ConsumerProtocol": {
        "heartbeat": "the sessions of members (I50), and a second process with the instance id of a member (marks)",
        "on_loaded": "the sessions at a new coordinator (I50)",
        "advance": "the steps of a rebalance (marks)",
        "remove_expired, on_connection_lost": "members that may not know their removal yet (I36), and ends of sessions (I50)",
    },
    "broker.groups.consumer.membership": {"check_epoch": "members that have lost a response, or are fenced (marks)"},
    "broker.groups.consumer.draft:Draft": {"replace, put_regex": "static members that return, and patterns (marks)"},
    "broker.groups.classic.group:ClassicGroup": {
        "begin_generation, check_generation": "the generations of a classic group (marks)",
    },
    "broker.groups.classic.protocol:ClassicProtocol": {"join": "a static member that returns (marks)"},
    "broker.groups.migration.conversions:Conversions": {"upgrade, downgrade": "groups that change their protocol (marks)"},
    "broker.groups.member_connections:MemberConnections": {"check": "late requests of members (marks)"},
    "broker.partition.partition:Partition": {
        "__init__, stop": "the replicas that a broker serves",
        "make_leader, make_follower": "the roles (I1, I14), and the report of a leader that its log had lost records (I20)",
        "use_log": "a copy in another log directory takes the place of a log (I32)",
        "truncate_to": "each truncation, and whether one below the high watermark is counted (I20)",
        "truncate_to_divergence, divergence": "histories that diverge (trace, marks)",
        "append_fetched, leading_follower": "a late fetch response, a fetch of an earlier leadership (marks)",
    },
    "broker.partition.leader_state:LeaderState": {
        "propose": "an AlterPartition request is created (I12, I30)",
        "install_isr": "a committed ISR is installed (I12)",
        "on_refusal": "a refused proposal (I12)",
        "drop_proposal": "a withdrawn proposal (I12)",
        "maybe_finish_recovery": "the end of a recovery after an unclean election (marks)",
        "is_throttled": "records are withheld from a follower (I35)",
        "is_in_sync": "a follower that waits for the start of the leader's epoch (marks)",
        "maybe_increment_high_watermark, smallest_log_end": "what the high watermark waits for (marks)",
        "on_follower_fetch": "a fetch of an earlier process of a follower (marks)",
    },
    "broker.partition.alter_partition:AlterPartitionQueue": {
        "on_response, superseded": "proposals that a response no longer decides (marks)",
        "on_lost, doubtful": "proposals that may have been committed (marks)",
    },
    "broker.partition.log_failures:LogFailures": {
        "on_disk_error, failed_dirs, offline": "the report of a broker that a disk failed (I20)"
    },
    "broker.purgatory:DelayedOperation": {"complete": "an operation is completed a second time (marks)"},
    "broker.purgatory:Purgatory": {
        "park": "a produce request waits for the high watermark (marks)",
        "queues": "the waiting operations, by time-out (I17)",
        "timer_due": "when the timer for their deadlines fires (I17)",
    },
    "broker.purgatory:WatermarkWatchers": {"operations": "produce requests that wait for a high watermark (I17)"},
    "broker.produce.produce_handler:ProduceHandler": {
        "append": "the batch that a produce request appended, and the offset that its answer needs (I15)",
        "refuse": "a refused batch (marks)",
    },
    "broker.produce.produce_handler:DelayedProduce": {
        "wait_for": "a produce request waits for the high watermark (trace)",
        "on_complete, on_expiration, on_failed, responses": "its outcome (marks)",
    },
    "broker.fetch.fetch_handler:Fetch": {
        "reply": "the responses to consumers (I8, I9, I29), and those without news (I33)",
        "maybe_nominate": "a leader sends a consumer to another replica (marks)",
        "add_error": "an error for one partition (I9)",
        "handler": "the broker that answers",
        "request": "whether its connection is still open",
        "visit_for_consumer": "a consumer's fetch from a follower (marks)",
        "try_complete, on_expiration": "why a parked fetch is answered (marks)",
    },
    "broker.fetch.fetch_session:FetchSessionCache": {
        "full_fetch, incremental_fetch": "the first and the next fetch of a session (marks)",
        "try_evict": "a full cache evicts a session (marks)",
        "slots": "the limit of sessions (I23)",
    },
    "broker.fetch.offsets_handler": {
        "list_offset": "an answer to ListOffsets (I10)",
        "find_offset": "a leader whose high watermark does not show yet which records are committed (marks)",
    },
    "broker.replication.fetcher:FetcherCore": {
        "on_response": "a fetch response (marks)",
        "on_reader": "a follower has a reader (marks)",
        "generation": "whether the response is of an earlier session (marks)",
        "awaits": "whether a partition was fetched again since a late response (marks)",
    },
    "broker.process.server:BrokerServer": {
        "__init__, start, stop, kill": "the life of a process, and what is left of it (I23)",
        "authorizer": "whether requests need rights (I48)",
        "is_stopping": "a second stop does nothing, and is not judged (I23)",
    },
    "broker.process.quorum_observer:QuorumObserver": {
        "apply_committed": "the batches that a broker applies (I19)",
        "waiting": "batches that wait for the quorum's high watermark (I19)",
        "install_snapshot": "a snapshot that replaces the image (I19)",
        "truncate": "fetched batches that were never committed (marks)",
        "broker_id": "which broker applies them",
    },
    "broker.process.pause_detector": {"refuse_produce": "a produce request met a broker that had just been paused (marks)"},
    "controller.server:ControllerServer": {"__init__, start, stop": "the life of a process, and what is left of it (I23)"},
    "controller.controller:Controller": {
        "on_committed": "the batches that a controller applies (I19)",
        "on_resign": "a controller is no longer active (trace)",
    },
    "controller.controller": {"fence_broker": "the elections of a fenced broker's partitions (marks)"},
    "controller.feature_upgrade": {"update_features": "the level of the metadata is raised, or not (marks)"},
    "controller.leader_balancer": {"move_leaders_back": "leaders return to their preferred replicas (marks)"},
    "controller.handlers": {
        "alter_partition": "an accepted ISR (I13)",
        "alter_partition_reassignments": "the targets of reassignments, in the order of the decisions (I34)",
        "heartbeat": "a heartbeat of an earlier process (I14)",
    },
    "controller.cluster_control": {
        "check_registration, register_again": "the registrations of brokers (marks)",
        "transition, fence_broker, elect_leaderless": "the elections that a broker's new state causes (marks)",
        "check_broker_epoch": "a request of an earlier process (marks)",
    },
    "controller.replication_control": {
        "change_partition, elect_preferred": "elections (marks)",
        "check_broker_epoch": "a request of an earlier process (marks)",
    },
    "controller.raft.quorum:Quorum": {"start": "the voters"},
    "controller.raft.node_shell:NodeShell": {
        "transmit": "votes and fetches, as they are sent (I18)",
        "store": "the file with the vote (I18)",
    },
    "controller.raft.metadata_log:MetadataLog": {
        "log": "the log below the metadata log",
        "clean": "the log is cut behind a snapshot (marks)",
    },
    "controller.raft.metadata_log:FileSink": {
        "freeze, snapshot_id": "a snapshot is complete, and up to which offset (I19)",
        "files, path": "its file, and the disk",
    },
    "controller.raft.raft_state:RaftState": {"advance_high_watermark": "what the quorum commits (I18)"},
    "controller.raft.election_handler:ElectionHandler": {
        "would_vote, lose_pre_vote": "pre-votes (marks)",
        "may_vote, is_up_to_date": "votes, and why one was refused (marks)",
    },
    "controller.raft.transitions:RoleTransitions": {"start, become": "restarted leaders, lost elections (marks)"},
    "controller.raft.epoch_announcements:EpochAnnouncements": {
        "on_leader_resigned": "a leader resigned in favour of others (marks)"
    },
    "controller.raft.leader_fetches:LeaderFetches": {"on_fetch_request": "a fetch of an earlier connection (marks)"},
    "controller.raft.leader_handler:LeaderHandler": {
        "start_epoch": "a candidate becomes the leader (I18)",
        "hears_majority": "a leader that lost its majority (marks)",
        "maybe_advance_high_watermark": "records of older epochs that a majority has (marks)",
    },
    "client.cluster.any_broker": {"follows_controller": "a broker answered with old metadata (marks)"},
    "client.cluster.cluster:Cluster": {"suspect": "a request is overdue (marks)"},
    "client.cluster.metadata:MetadataCache": {"update_leader": "a client gets the new leader from an error response (marks)"},
    "client.consumer.fetch_session:FetchSession": {"on_response": "a consumer loses its session (marks)"},
    "client.consumer.fetcher": {"truncated": "a consumer finds that records were truncated (marks)"},
    "client.consumer.preferred_replicas:PreferredReplicas": {"fail": "a consumer goes back to the leader (marks)"},
    "client.consumer.offset_fetcher": {"truncated": "a consumer finds that records were truncated (marks)"},
    "client.consumer.offset_fetcher:OffsetFetcher": {"on_end_offset": "a position was validated (marks)"},
    "client.producer.partition_queue:PartitionQueue": {
        "on_failed, abandon_attempts": "a batch is sent again (marks)",
        "maybe_recover": "the batches in flight are sent again, in order (marks)",
        "bump_epoch": "a producer bumps its epoch for a partition (marks)",
    },
}
"""`module:class` below `strandline.` (or a module) -> names, with a comma between them -> what they are needed for."""
