"""The shell of unclean recovery: asks replicas for their logs, and submits the elections (`unclean_recovery.py` decides).

The active controller looks at the partitions without a leader when brokers, partitions or configurations have changed, when
`unclean.recovery.timeout.ms` ends for one of them, and every `unclean.leader.election.interval.ms`. A look that finds none costs
a dict lookup. One round of questions runs at a time; what changes meanwhile is looked at afterwards. Brokers that do not answer
are asked again after a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from strandline.controller.controller import ActiveState, Controller
from strandline.controller.decision import Decision
from strandline.controller.metadata.image import BrokerRegistration, MetadataDelta, MetadataImage
from strandline.controller.metadata.records import UncleanElectionRecord
from strandline.controller.unclean_election_requests import (
    UncleanRequest,
    elect_as_requested,
    questions_of,
    requested_places,
)
from strandline.controller.unclean_recovery import ELECTIONS_MAX, Question, RecoveryClock, ReplicaLog, recover
from strandline.protocol.apis import GET_REPLICA_LOG_INFO
from strandline.protocol.errors import BrokerError, ErrorCode, PeerError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import ElectLeadersRequest, ElectLeadersResponse
from strandline.protocol.messages.cluster import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfoTopic,
)
from strandline.protocol.partitions import TopicIdPartition
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import SecurityOf, without_security

logger = get_logger(__name__)

R = TypeVar("R")

RETRY_S = 1.0
ASK_TIMEOUT_MS = 2000
"""Timeout of the connection attempt, and again of the request."""

Logs = dict[TopicIdPartition, dict[int, ReplicaLog]]
"""The answers, by partition and broker."""
AskBroker = Callable[[BrokerRegistration, Sequence[TopicIdPartition]], Awaitable[GetReplicaLogInfoResponse]]


class UncleanSettings(NamedTuple):
    """The settings `unclean.leader.election.interval.ms` and `unclean.recovery.timeout.ms`."""

    interval_s: float
    timeout_s: float


class UncleanRecoverer:
    """Elects leaders uncleanly while this controller is active: by the strategies of the topics, and on request."""

    def __init__(
        self,
        controller: Controller,
        settings: Callable[[], UncleanSettings],
        *,
        wall_clock_ms: Callable[[], int],
        ask: AskBroker,
    ) -> None:
        """`settings` returns the present settings."""
        self._controller = controller
        self._settings = settings
        self._wall_clock_ms = wall_clock_ms
        self._ask_broker = ask
        self._clock = RecoveryClock(settings().timeout_s)
        self._timer: asyncio.TimerHandle | None = None
        self._round: asyncio.Task[None] | None = None
        """The round of questions that is under way."""
        self._look_again = False
        """Something has changed since the round began."""
        controller.on_delta = self._on_delta

    # -- from the controller ------------------------------------------------------------------------------------------

    def on_active(self) -> None:
        self.on_inactive()
        self._clock = RecoveryClock(self._settings().timeout_s)
        self._arm(0)

    def on_inactive(self) -> None:
        self._look_again = False
        for pending in self._timer, self._round:
            if pending is not None:
                pending.cancel()
        self._timer = self._round = None

    async def stop(self) -> None:
        running = self._round
        self.on_inactive()
        if running is not None:
            await asyncio.gather(running, return_exceptions=True)

    def _on_delta(self, delta: MetadataDelta) -> None:
        active = self._controller.active
        if active is None or not active.index.has_leaderless:
            return
        if delta.changed_brokers or delta.changed_configs or delta.changed_partitions:
            if self._round is not None:
                self._look_again = True
            else:
                self._arm(0)

    # -- by strategy --------------------------------------------------------------------------------------------------

    def _arm(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        controller = self._controller
        active = controller.active
        if active is None or self._round is not None:
            return
        now, settings = controller.now(), self._settings()
        self._clock.timeout_s = settings.timeout_s
        look = self._clock.look(controller.image, active.index.without_leader(), now)
        if look.due:
            self._round = asyncio.get_running_loop().create_task(self._run(look.due), name="unclean-recovery")
        else:
            until = settings.interval_s if look.next_at is None else min(settings.interval_s, max(0.0, look.next_at - now))
            self._arm(until)

    async def _run(self, due: list[Question]) -> None:
        """Ask the replicas and elect leaders, in one round. The next look follows at once if something has changed or a leader
        was elected, otherwise after `RETRY_S`."""
        delay_s = RETRY_S
        try:
            logs = await self._ask(due)
            if await self._elect(due, logs):
                delay_s = 0
        except BrokerError as e:
            logger.info("unclean_recovery.retried", reason=str(e))
        except Exception:
            logger.exception("unclean_recovery.failed")
        finally:
            if self._round is asyncio.current_task():
                self._round = None
                self._arm(0 if self._look_again else delay_s)
                self._look_again = False

    async def _elect(self, due: list[Question], logs: Logs) -> list[UncleanElectionRecord]:
        controller = self._controller

        def decide(_: ActiveState) -> Decision[list[UncleanElectionRecord]]:
            now = controller.now()
            return recover(
                controller.image,
                due,
                lambda key: logs.get(key, {}),
                timeouts=lambda key: self._clock.timeouts(key, now),
                now_ms=self._wall_clock_ms(),
            )

        return await self._submit(decide)

    async def _submit(self, decide: Callable[[ActiveState], Decision[R]]) -> R:
        """Submit the decision, and return its reply when its records are committed. Raises the BrokerError with which it was
        refused."""
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def on_reply(reply: R | BrokerError) -> None:
            if done.done():
                return
            if isinstance(reply, BrokerError):
                done.set_exception(reply)
            else:
                done.set_result(reply)

        self._controller.submit(decide, on_reply)
        return await done

    # -- on request ---------------------------------------------------------------------------------------------------

    async def handle(self, request: UncleanRequest) -> None:
        """Answer an ElectLeaders request for unclean elections: ask the replicas of all its partitions, and decide."""
        controller, body = self._controller, request.body
        assert isinstance(body, ElectLeadersRequest)
        controller.require_active()
        places = list(requested_places(controller.image, body).items())
        response = ElectLeadersResponse(0, [])
        for start in range(0, len(places), ELECTIONS_MAX):
            part = dict(places[start : start + ELECTIONS_MAX])
            response.results += (await self._elect_requested(part)).results
        request.reply(response)

    async def _elect_requested(self, places: dict[tuple[str, int], int]) -> ElectLeadersResponse:
        controller = self._controller
        questions = questions_of(controller.image, places)
        logs = await self._ask(questions)

        def decide(_: ActiveState) -> Decision[ElectLeadersResponse]:
            return elect_as_requested(controller.image, places, questions, logs, now_ms=self._wall_clock_ms())

        return await self._submit(decide)

    # -- asking -------------------------------------------------------------------------------------------------------

    async def _ask(self, questions: Sequence[Question]) -> Logs:
        """Ask every live broker that has a replica of these partitions. Brokers that do not answer are left out."""
        image = self._controller.image
        wanted: dict[int, list[TopicIdPartition]] = {}
        for key, _ in questions:
            partition = image.partition(key)
            for broker_id in () if partition is None else partition.replicas:
                if broker_id in image.brokers and image.brokers[broker_id].is_active:
                    wanted.setdefault(broker_id, []).append(key)
        found = await asyncio.gather(*(self._ask_one(image, broker_id, keys) for broker_id, keys in wanted.items()))
        logs: Logs = {}
        for broker_id, answers in zip(wanted, found, strict=True):
            for key, log in answers.items():
                logs.setdefault(key, {})[broker_id] = log
        return logs

    async def _ask_one(
        self, image: MetadataImage, broker_id: int, keys: Sequence[TopicIdPartition]
    ) -> dict[TopicIdPartition, ReplicaLog]:
        try:
            response = await self._ask_broker(image.brokers[broker_id], keys)
        except (BrokerError, PeerError) as e:
            logger.info("unclean_recovery.broker_not_asked", broker_id=broker_id, partitions=len(keys), reason=str(e))
            return {}
        return logs_in(response)


def logs_in(response: GetReplicaLogInfoResponse) -> dict[TopicIdPartition, ReplicaLog]:
    """The logs in a response. A replica that does not exist on the broker (yet) is left out; a damaged one has the log end -1."""
    logs: dict[TopicIdPartition, ReplicaLog] = {}
    for topic in response.topics:
        for info in topic.partitions:
            if info.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                logs[topic.topic_id, info.partition] = ReplicaLog(response.broker_epoch, -1, -1, -1, True)
            elif not info.error_code:
                logs[topic.topic_id, info.partition] = ReplicaLog(
                    response.broker_epoch,
                    info.last_written_leader_epoch,
                    info.log_end_offset,
                    info.high_watermark,
                    info.may_lack_records,
                )
    return logs


async def ask_broker(
    broker: BrokerRegistration, keys: Sequence[TopicIdPartition], to_listener: SecurityOf = without_security
) -> GetReplicaLogInfoResponse:
    """Ask a broker on a connection of its own. Raises BrokerError or PeerError if it does not answer in time."""
    endpoint = broker.endpoint()
    if endpoint is None:
        raise BrokerError(ErrorCode.BROKER_NOT_AVAILABLE, f"broker {broker.broker_id} has registered no address")
    connection = await Connection.connect(
        endpoint.host,
        endpoint.port,
        client_id="controller-recovery",
        connect_timeout_ms=ASK_TIMEOUT_MS,
        security=to_listener(endpoint.name),
    )
    topics: dict[bytes, list[int]] = {}
    for topic_id, index in keys:
        topics.setdefault(topic_id, []).append(index)
    request = GetReplicaLogInfoRequest(
        broker.broker_id, [ReplicaLogInfoTopic(topic_id, indexes) for topic_id, indexes in topics.items()]
    )
    try:
        answer = await connection.request(GET_REPLICA_LOG_INFO, request, timeout_ms=ASK_TIMEOUT_MS)
    finally:
        connection.close()
    assert isinstance(answer, GetReplicaLogInfoResponse)
    return answer
