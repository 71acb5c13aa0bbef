"""The invariants of a simulated run, which must hold after every event, by their numbers: I1, I2, ...

    probes.py  ->  observer.Invariants  ->  the ghosts (ghosts.py, paths.py), then the checks of a family

| invariant | file | when it is checked |
|---|---|---|
| I1 election safety | leaders.py, logs.py | a role begins; a leader appends; the quorum elects |
| I2 membership | membership.py | each committed metadata batch |
| I3 ELR | membership.py | each committed metadata batch |
| I4 log matching | logs.py, watermark.py, rest.py, compaction.py | append; recovery; HW moves; bytes at rest |
| I5 offset order | logs.py, compaction.py | after a step that touched the log; append; recovery |
| I6 truncation | logs.py | each truncation |
| I7 completeness | watermark.py | HW of a leader moves; election; after a step that disturbed the partition |
| I8 visibility | reads.py | each fetch response to a consumer |
| I9 repeatable read | reads.py | each fetch response to a consumer, OFFSET_OUT_OF_RANGE too |
| I10 high watermark | watermark.py, reads.py | each move; recovery; each answer to a client |
| I11 epoch cache | logs.py | after a step that touched the log; append |
| I12 maximal ISR | watermark.py | after a step that changed the ISR, here or there |
| I13 ISR expansion | membership.py | the commit of an expansion |
| I14 epochs | membership.py | each committed metadata batch; after a role change; heartbeats |
| I15 ack truth | watermark.py | an acks=all success leaves the leader |
| I16 idempotence | producers.py | records become committed; producer states at rest |
| I17 purgatory | purgatory.py | each answer; sweeps; idle at rest |
| I18 quorum durability | quorum.py | a vote or a voter's fetch leaves; flush; quorum HW |
| I19 metadata | quorum.py, membership.py, leaders.py, logs.py | quorum HW; applied batches; a role begins; snapshots; at rest |
| I20 honesty | honesty.py | damage; truncation below the HW; failed disk; losses at rest |
| I22 topic identity | logs.py, observer.py | append; recovery; a partition is served |
| I23 resources | resources.py | sweeps; each orderly stop |
| I24 liveness | rest.py | `unsettled()` and `at_rest()`, called by the run |
| I25 clean starts | clean_starts.py | each start, as it has looked at its data directory |
| I26 compaction | compaction.py | each cleaning; append; recovery; fetch response to a consumer; at rest |
| I27 deleted keys | compaction.py | each cleaning; append; recovery; at rest |
| I28 balance | balance.py | each decision that returns leaders |
| I29 nearest replica | reads.py | each fetch response that sends a consumer to another replica |
| I30 recovery | membership.py | each committed metadata batch; a leader proposes an ISR |
| I31 reports | reports.py | each committed metadata batch; a leader that lacks committed records begins |
| I32 moved logs | observer.py | a copy in another log directory takes the place of a log |
| I33 no circles | circles.py | each fetch response |
| I34 reassignments | reassignments.py, the phases of a run | each committed change; when the faults are over |
| I35 throttle | reassignments.py | each fetch of an added replica |
| I36 owners | groups.py, the members of a run | each append and answer of a coordinator; each call that returns records |
| I37 commits | groups.py | each commit that a coordinator accepts; each answer to one |
| I38 committed offsets | groups.py, the members of a run | each answer with offsets; where a member begins to read |
| I39 coverage | the members of a run | when the faults are over |
| I40 coordinators | group_memory.py | at rest |
| I41 decisions | transactions.py | a leader appends a marker |
| I42 completion | transactions.py | a coordinator completes a transaction |
| I43 membership | transactions.py | a leader appends a record of a transaction |
| I44 stability | transactions.py, the readers of a run | each answer to a reader of committed records; when the faults are over |
| I45 fencing | fencing.py | records become committed; a record is rejected for its token; at rest |
| I46 takeovers | transactions.py | a process takes over a transactional id |
| I47 rights | rights.py | a request has passed its guards |
| I48 decisions | rights.py | each decision about a right; a consumer is given records |
| I49 nodes are never throttled | rights.py | a connection is muted |
| I50 sessions of groups | group_sessions.py | each heartbeat and its answer; a member is removed; a target is appended; at rest |

There is no I21: I36 to I40, about groups, have replaced it. The members of a run record the responses and records that they
receive (`cluster/groups/ledger.py`). "After a step" is `Invariants.after_step`; a sweep is one in a thousand of these; "at
rest" is `Invariants.at_rest`, when faults and clients have ended.

`Ghosts.permit_loss` says that more has failed than the cluster promises to survive: then I4 (its second half), I6, I7, I9,
I10, I13 and I15 are not checked for the partition, the loss is noted, and I20 must find it among the reported losses. If such a
run loses the disks of a majority of the controllers, only idle lists and resources can still be judged.
"""
