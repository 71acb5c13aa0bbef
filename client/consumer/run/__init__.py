"""`Consumer.run`: hands the records of a consumer to a handler, and commits what is finished.

    run.py        the call, and what a consumer has for it        settings.py   its arguments; what happens to a failed record
    schedule.py   which records may be handled now (pure)         taken.py      what may be committed (pure)
    runner.py     the shell: takes records, calls, settles        handlers.py   calls on the event loop or on a thread
    backoff.py    when a failed record is handled again (pure)    outbox.py     sends to the retry and dead-letter topics
    headers.py    the headers of records there (pure)             counters.py   metrics
    transactional.py   the shell of a run with `transactional=True`, which works in another way

**What holds.** Each record is handled at least once. It is committed only when it and all records before it in its partition are
finished: handled, or acknowledged in the retry topic or dead-letter topic. No two members handle records of one partition at the
same time; within a member, those of a lane are handled one after the other (schedule.py).

**What may happen at the same time, and why nothing goes wrong:**

- *A partition is to go while its records wait or run.* What waits is dropped at once: it is unfinished, so it is not committed,
  and the next owner reads it. What runs may finish until nine tenths of the time for the revocation have passed; coroutines are
  cancelled then. Only after that the partition is committed, `on_revoked` is called, and the coordinator hears of it.
- *A call finishes while its partition is being given up.* Either it has ended before the last commit, and is in it. Or it was
  abandoned, and does not count. There is no time between, because the commit takes the offsets of one moment.
- *A partition is lost* (the coordinator has removed the member). Another member may read it already. Coroutines are cancelled at
  once, and whatever comes of a call does not count.
- *The membership is in doubt*: no heartbeat has succeeded for a session. Another member may have the partitions, or not. Nothing
  starts, and coroutines are cancelled. Their records are handled again when a heartbeat shows that the partitions are still ours.
- *A partition returns while a call of its last stay still runs*, on a thread, or in a coroutine that ignores its cancellation.
  Such a call is an orphan: nothing of the partition starts until it has ended. A commit of the handler for it fails meanwhile.
- *A call never returns.* What counts for `max_poll_interval_ms` is the oldest call, so the others do not hide it. The heartbeats
  leave the group, all partitions are lost, and the consumer joins again when the call has ended. A slow handler with many short
  calls is not affected: records that wait do not count.
- *The process is paused and returns.* Before each call it is checked that the membership is still certain.
- *A record has failed and waits for its next attempt, and the partition goes.* The delay is forgotten; the next owner handles the
  record at once, as its first attempt. With a retry topic, the attempt and its time are in the record there.
- *The process ends between the acknowledgement of a dead letter and the commit.* The record is handled again, and there may be a
  second dead letter. None is lost.
- *The program seeks while records wait.* What was taken before counts no more: neither handled nor committed.
- *The consumer is stopped, or the task of `run` is cancelled.* As with a revocation, within `drain_timeout_ms`, or the time limit
  of `stop`. The positions are set back to the first unfinished records, so whatever commits later commits nothing else.

A thread cannot be stopped. A plain handler that has not returned when its time is up goes on beside the next owner's, and its log
line says so (`consumer.revocation_cut_off`). A program that cannot bear that uses coroutines, or a longer `rebalance_timeout_ms`.
"""
