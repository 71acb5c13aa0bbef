"""`Consumer.run`: hands the records of a consumer to a handler, and commits what is finished.

    run.py        the call, and what a consumer has for it        settings.py   its arguments; what happens to a failed record
    schedule.py   which records may be handled now (pure)         taken.py      what may be committed (pure)
    runner.py     the shell: takes records, calls, settles        handlers.py   calls on the event loop or on a thread
    backoff.py    when a failed record is handled again (pure)    outbox.py     sends to the retry and dead-letter topics
    headers.py    the headers of records there (pure)             counters.py   metrics
    transactional.py   the shell of a run with `transactional=True`, which works in another way

**Invariants.** Each record is handled at least once. It is committed only when it and all records before it in its partition are
finished: handled, skipped, or acknowledged in the retry topic or dead-letter topic. No two members handle records of one
partition at the same time (the exceptions are below); within a member, the records of a lane are handled one after the other
(schedule.py).

**Events that may coincide, and why the invariants hold:**

- *A partition is revoked while its records wait or are being handled.* Records that wait are dropped at once: they are
  unfinished, so they are not committed, and the next owner reads them. Calls may finish until nine tenths of the time for the
  revocation have passed; then coroutines are cancelled. Only after that is the partition committed, `on_revoked` called, and the
  coordinator notified.
- *A call finishes while its partition is being given up.* If it ends before the last commit, the commit includes its records.
  Otherwise it was abandoned, and its result is ignored. There is no case in between, because the commit reads all offsets in one
  iteration of the event loop.
- *A partition is lost* (the coordinator has removed the member). Another member may read it already. Coroutines are cancelled at
  once, and the results of running calls are ignored.
- *The membership is in doubt*: no heartbeat has succeeded for the length of a session, so another member may have the partitions.
  No call begins, and coroutines are cancelled. Their records are handled again when a heartbeat shows that the member still owns
  the partitions.
- *A partition is assigned again while a call from its earlier assignment still runs*, on a thread, or in a coroutine that ignores
  its cancellation. Such a call is an orphan: no other call of the partition begins until it has ended, and a commit of the
  handler for the partition fails meanwhile.
- *A call never returns.* `max_poll_interval_ms` limits the oldest running call, whatever other calls do. When it is exceeded, the
  heartbeats leave the group, all partitions are lost, and the consumer joins again when the call has ended. Records that wait do
  not count, so a handler with many short calls is not affected.
- *The process is paused and resumed.* Before each call the runner checks that the membership is not in doubt.
- *A partition is revoked while a failed record waits for its next attempt.* The delay is forgotten; the next owner handles the
  record at once, as its first attempt. With a retry topic, the number and the time of the attempt are in the record's headers.
- *The process ends between the acknowledgement of a dead letter and the commit.* The record is handled again, and there may be a
  second dead letter. No record is lost.
- *The program seeks while records wait.* Records that were taken before the seek are neither handled nor committed.
- *The consumer is stopped, or the task of `run` is cancelled.* Calls end as in a revocation, within `drain_timeout_ms`, or the
  time limit of `stop`. The positions are set back to the first unfinished records, so a later commit includes no unfinished
  record.

A thread cannot be stopped. If a plain handler has not returned when its time is up, it still runs while the next owner handles
the same records, and the log has `consumer.revocation_cut_off`. To avoid that, write the handler as a coroutine function, or set
a longer `rebalance_timeout_ms`.
"""
