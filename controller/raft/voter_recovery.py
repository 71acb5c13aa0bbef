"""A voter whose disk is empty, and may have replaced one that was not: it has no vote until it has learned enough.

Raft rests on what a voter remembers. A voter that lost its disk (its volume) and begins anew could vote a second time in
an epoch, which makes two leaders in it; help a leader into office that lacks records which were committed because this
very voter had them; or let a leader commit that it had voted out of office. And at the first start of a cluster every disk
is empty. From its own disk a voter cannot tell the one from the other, so in both cases it begins as a *learner*, which
grants no vote, real or pre-, and does not stand. That is durable (`learner` in quorum-state; no quorum-state at all means
the same), so that a restart on the way lifts nothing.

    1. It asks every other voter for its epoch, and takes the highest over. Until all have answered it does not even fetch.
    2. Then it follows as any follower does, and what it fetches counts.
    3. It becomes a voter again when all epochs are still 0, its own too (nobody has ever opened one, so nothing was voted on
       or committed); or when it follows the leader of its present epoch, has flushed its log up to the high watermark which
       that leader told, and that covers a record of the leader's own epoch.

**No promise to an older epoch.** If the lost disk held a vote in epoch e for A, then A had epoch e on its disk before it
asked for that vote, so A tells an epoch of at least e. With (1) the learner fetches from no leader of an epoch before e: a
leader that it helped to depose cannot commit with its help. It must hear *all* the others, not a majority: the one whose
candidacy is still under way may be any of them.

**No second vote in an epoch.** As above, the learner is in epoch e or a later one when it becomes a voter. In a later one
there is nothing to repeat. In e itself it knows a leader by then (3), and a voter that knows the leader of its epoch grants
no vote in it.

**No committed record is lost.** A record that was committed with the help of the lost disk was counted by a leader L of an
epoch e, and as above the learner is in an epoch E >= e when it becomes a voter. If E > e, the elections in between were
decided without it (it has no vote), by voters that remember, so the leader of E has the record, before the first record of
its own epoch; the learner holds all up to there. If E = e, the leader is L, and its high watermark was told after the
learner's first fetch, which moved what L counts for it back to what it really has.
Assumed: that a fetch of the process on the lost disk does not reach L after its successor has begun to fetch. L refuses
what comes on a connection that a voter had used before its present one, and connections end with their process.

**A leader can always be elected, if only one disk is lost at a time.** An epoch above 0 exists only once a majority had a
vote (a candidate needs their pre-votes, and takes up its own vote only after that is on its disk), and each of those has
it for as long as its disk lasts. When a majority of the disks is lost at once, nobody can tell any more what was
committed: then no leader is elected, and the learners say what they wait for.

The price: at the first start, and after the loss of a disk, every controller has to be up once. At the first start that is
a round trip after the last one came: it asks all others, and who is asked asks back at once. (Should the first leader die
within that round trip, the third voter waits for it to come back.) Asking is a pre-vote that
nobody counts: the answers name the epochs, and the leader where there is one.
"""

from __future__ import annotations

from strandline.controller.raft.base import NodeBase, logger
from strandline.controller.raft.roles import Follower, Unattached, VoterWithoutState
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages.cluster import VoteRequest, VoteResponse

_NO_ANSWER = frozenset({ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INCONSISTENT_VOTER_SET, ErrorCode.INVALID_REQUEST})


class Learning(NodeBase):
    def miss_leader(self, now: float) -> None:
        """No leader, and the patience is over: ask for pre-votes, or, without a vote, look around for a leader."""
        lessons = self.lessons
        if lessons is None:
            self.become_prospective(now)
            self.tick_prospective(now)
            return
        for voter_id in self.other_voters:
            lessons.ask_at.setdefault(voter_id, now)
        deadline = now + self.election_timeout()
        if isinstance(self.role, Unattached):
            self.role.deadline = deadline
        else:
            self.become_unattached(self.epoch, deadline)
        self.tick_learning(lessons, now)

    def tick_learning(self, lessons: VoterWithoutState, now: float) -> None:
        for voter_id in [voter_id for voter_id, at in lessons.ask_at.items() if at <= now]:
            del lessons.ask_at[voter_id]
            body = VoteRequest(
                self.cluster_id, voter_id, self.epoch, self.node_id, self.log.last_epoch, self.log.end_offset, pre_vote=True
            )
            self.send(voter_id, apis.VOTE, body, after_sync=False)

    def on_sign_of_life(self, voter_id: int, now: float) -> None:
        """It asks us, so it can be asked. What its request says may be old; only an answer to our own question counts."""
        lessons = self.lessons
        if lessons is not None and voter_id in lessons.unheard and voter_id in lessons.ask_at:
            lessons.ask_at[voter_id] = now
            self.tick_learning(lessons, now)

    def on_told(self, from_id: int, response: VoteResponse, now: float) -> None:
        """Another voter's epoch, and its leader if it knows one."""
        assert self.lessons is not None
        if response.error_code in _NO_ANSWER:
            self.on_not_told(from_id, now)
            return
        self.hear(response.error_code, response.leader_id, response.leader_epoch, now)
        self.lessons.unheard.discard(from_id)
        self.maybe_take_up_vote()
        if self.may_fetch and isinstance(self.role, Follower) and not self.role.has_fetched:
            self.role.fetch_at = now
            self.tick_follower(now)

    def on_not_told(self, voter_id: int, now: float) -> None:
        assert self.lessons is not None
        if voter_id in self.lessons.unheard:
            self.lessons.ask_at[voter_id] = now + self.config.election_backoff_ms_max / 1000

    def maybe_take_up_vote(self) -> None:
        """In two steps, so that nobody acts on a vote that a crash would take away again: the disk first, then the vote."""
        if self.lessons is None:
            return
        if self.election.learner:
            if self._has_learned(self.lessons):
                self._elect(self.election._replace(learner=False))
        elif not self.election_dirty:
            self.lessons = None
            logger.info(
                "quorum.vote_taken_up", node_id=self.node_id, controller_epoch=self.epoch, log_end_offset=self.log.end_offset
            )

    def _has_learned(self, lessons: VoterWithoutState) -> bool:
        if lessons.unheard:
            return False
        if self.epoch == 0:
            return True
        role = self.role
        if not isinstance(role, Follower) or role.told_high_watermark < 0:
            return False
        return self.log.flushed_offset >= role.told_high_watermark and self._covers_own_epoch(role.told_high_watermark)

    def _covers_own_epoch(self, high_watermark: int) -> bool:
        """Whether a record of the present epoch is below: only then is all that earlier epochs committed below, too."""
        snapshot_id = self.log.latest_snapshot_id
        if snapshot_id is not None and snapshot_id.epoch == self.epoch:
            return True
        return self.log.last_epoch == self.epoch and self.log.end_offset_for_epoch(self.epoch - 1).end_offset < high_watermark
