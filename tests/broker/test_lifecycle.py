"""The state of a broker: registration, unfencing, re-registration, duplicate ids, controlled shutdown (S51, F15, F16)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from strandline.broker.process import lifecycle as lifecycle_module
from strandline.broker.process.lifecycle import BrokerLifecycle
from strandline.broker.process.lifecycle_core import Identity, LifecycleCore, State
from strandline.controller.metadata.image import MetadataDelta, MetadataImage
from strandline.controller.metadata.records import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from strandline.protocol.errors import BrokerError, ErrorCode, StrandlineError, UsageError
from strandline.protocol.messages.cluster import (
    LOSS_MAYBE,
    LOSS_NO,
    LOSS_YES,
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    LossyPartitions,
)
from strandline.protocol.messages.common import Listener, Message
from strandline.storage.directory.log_dir import RecordLoss

IDENTITY = Identity(1, "c1", b"i" * 16, (Listener("PLAINTEXT", "h", 9092),), "a", (b"d" * 16,), -1)


def core() -> LifecycleCore:
    return LifecycleCore(IDENTITY, heartbeat_interval_ms=500, session_timeout_ms=3000)


def registered(epoch: int = 7) -> LifecycleCore:
    lifecycle = core()
    assert lifecycle.on_registration(BrokerRegistrationResponse(0, epoch), 0) is None
    return lifecycle


def beat(lifecycle: LifecycleCore, offset: int, response: BrokerHeartbeatResponse) -> BrokerHeartbeatRequest:
    request = lifecycle.heartbeat(offset)
    lifecycle.on_heartbeat(request, response)
    return request


def test_a_broker_wants_to_be_fenced_until_it_has_applied_its_own_registration() -> None:
    lifecycle = registered(7)
    assert beat(lifecycle, 6, BrokerHeartbeatResponse(0, is_fenced=True)).want_fence
    assert lifecycle.state is State.FENCED
    assert not beat(lifecycle, 7, BrokerHeartbeatResponse(0, is_caught_up=True, is_fenced=False)).want_fence
    assert lifecycle.state is State.RUNNING


def test_a_registration_tells_the_loss_until_a_controller_knows_it() -> None:
    """Once a controller has it, a later registration of the same process must not strike replicas that have caught up since."""
    key, other = (b"t" * 16, 3), (b"u" * 16, 0)
    for loss, code, named in (
        (None, LOSS_NO, []),
        (RecordLoss(False, ()), LOSS_MAYBE, []),
        (RecordLoss(True, (other, key)), LOSS_YES, [LossyPartitions(key[0], [3]), LossyPartitions(other[0], [0])]),
    ):
        identity = replace(IDENTITY, loss=loss, min_insync_replicas=2)
        lifecycle = LifecycleCore(identity, heartbeat_interval_ms=500, session_timeout_ms=3000)
        for _ in range(2):
            request = lifecycle.registration()
            assert (request.record_loss, request.lossy_partitions, request.min_insync_replicas) == (code, named, 2)
            lifecycle.on_registration(BrokerRegistrationResponse(ErrorCode.REQUEST_TIMED_OUT), 0)
        lifecycle.on_registration(BrokerRegistrationResponse(0, 7), 0)
        assert (lifecycle.registration().record_loss, lifecycle.registration().lossy_partitions) == (LOSS_NO, [])


def test_a_heartbeat_tells_a_loss_until_it_is_answered() -> None:
    lifecycle, key, later = registered(7), (b"t" * 16, 3), (b"t" * 16, 4)
    lifecycle.lossy[key] = None
    assert beat(lifecycle, 7, BrokerHeartbeatResponse(ErrorCode.REQUEST_TIMED_OUT)).lossy_partitions
    request = lifecycle.heartbeat(7)
    lifecycle.lossy[later] = None
    lifecycle.on_heartbeat(request, BrokerHeartbeatResponse(0))
    assert lifecycle.heartbeat(7).lossy_partitions == [LossyPartitions(later[0], [4])]


def test_a_broker_that_steps_back_wants_to_be_fenced_once() -> None:
    """Otherwise it would stay fenced. The answer to a heartbeat that did not ask for the fence does not count."""
    lifecycle = registered(7)
    early = lifecycle.heartbeat(7)
    lifecycle.wants_step_down = True
    lifecycle.on_heartbeat(early, BrokerHeartbeatResponse(0, is_fenced=True))
    assert beat(lifecycle, 7, BrokerHeartbeatResponse(0, is_fenced=True)).want_fence
    assert not beat(lifecycle, 7, BrokerHeartbeatResponse(0, is_fenced=False)).want_fence
    assert lifecycle.state is State.RUNNING


def test_a_heartbeat_answer_of_an_earlier_registration_is_ignored() -> None:
    """It would count the broker as unfenced, or let it stop, although no controller has said so for its new registration."""
    lifecycle = registered(7)
    early = lifecycle.heartbeat(7)
    lifecycle.on_registration_lost(7)
    assert lifecycle.on_registration(BrokerRegistrationResponse(0, 12), 0) is None
    state = lifecycle.state
    lifecycle.on_heartbeat(early, BrokerHeartbeatResponse(0, is_caught_up=True, is_fenced=False, should_shut_down=True))
    assert (lifecycle.state, lifecycle.broker_epoch, lifecycle.is_shutdown_granted) == (state, 12, False)


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_a_controller_that_does_not_know_the_broker_makes_it_register_again(code: ErrorCode) -> None:
    lifecycle = registered()
    beat(lifecycle, 9, BrokerHeartbeatResponse(code))
    assert lifecycle.state is State.UNREGISTERED
    assert lifecycle.registration().incarnation_id == IDENTITY.incarnation_id, "the same process, the same incarnation"


def test_a_late_stale_epoch_answer_does_not_undo_a_newer_registration() -> None:
    lifecycle = registered(7)
    old = lifecycle.heartbeat(8)
    lifecycle.on_registration(BrokerRegistrationResponse(0, 20), 0)
    lifecycle.on_heartbeat(old, BrokerHeartbeatResponse(ErrorCode.STALE_BROKER_EPOCH))
    assert lifecycle.state is State.FENCED


def test_a_duplicate_broker_id_is_retried_within_the_session_and_then_fatal() -> None:
    """The other process may have just been killed, and then its session ends (S51)."""
    lifecycle, refused = core(), BrokerRegistrationResponse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert lifecycle.on_registration(refused, 0.1) is None
    assert lifecycle.on_registration(refused, 2.9) is None
    assert lifecycle.on_registration(refused, 7.0) is None, "a controller that was paused has granted another session"
    problem = lifecycle.on_registration(refused, 10.2)
    assert isinstance(problem, UsageError)
    assert "another live process is registered as broker 1" in str(problem)


def test_time_without_a_controller_does_not_count_as_time_with_a_duplicate() -> None:
    """All nodes start together, and the quorum needs time: the new controller gives the dead process before us a whole
    session."""
    lifecycle, refused = core(), BrokerRegistrationResponse(ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert lifecycle.on_registration(BrokerRegistrationResponse(ErrorCode.REQUEST_TIMED_OUT), 0) is None
    assert lifecycle.on_registration(refused, 20.0) is None
    assert lifecycle.on_registration(refused, 22.9) is None
    assert lifecycle.on_registration(BrokerRegistrationResponse(ErrorCode.NOT_CONTROLLER), 23.0) is None
    assert lifecycle.on_registration(refused, 25.0) is None, "another controller: another whole session"
    assert lifecycle.on_registration(refused, 34.9) is None
    assert isinstance(lifecycle.on_registration(refused, 35.1), UsageError)


def test_registration_that_takes_too_long_names_the_last_reason() -> None:
    """`initial.broker.registration.timeout.ms` may be shorter than the sessions that the broker would wait for."""
    lifecycle = core()
    duplicate = lifecycle.on_registration_timeout(5000, ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    assert "another live process is registered as broker 1" in str(duplicate)
    other = lifecycle.on_registration_timeout(5000, ErrorCode.NOT_CONTROLLER)
    assert str(other) == "the broker could not register with a controller for 5 s (NOT_CONTROLLER)"


def test_another_cluster_is_fatal_at_once() -> None:
    problem = core().on_registration(BrokerRegistrationResponse(ErrorCode.INCONSISTENT_CLUSTER_ID), 0)
    assert isinstance(problem, UsageError)
    assert "another cluster than 'c1'" in str(problem)


def test_a_stopping_broker_asks_until_its_shutdown_is_granted() -> None:
    lifecycle = registered()
    beat(lifecycle, 7, BrokerHeartbeatResponse(0, is_fenced=False))
    lifecycle.wants_shutdown = True
    assert beat(lifecycle, 8, BrokerHeartbeatResponse(0, is_fenced=False)).want_shut_down
    assert (lifecycle.state, lifecycle.is_shutdown_granted) == (State.SHUTTING_DOWN, False)
    assert lifecycle.pause_ms(caught_up=True) < 50
    beat(lifecycle, 9, BrokerHeartbeatResponse(0, should_shut_down=True))
    assert lifecycle.is_shutdown_granted


# -- the shell ----------------------------------------------------------------------------------------------------------


class Controller:
    """Answers by script, and counts the requests."""

    def __init__(self) -> None:
        self.registrations: list[BrokerRegistrationRequest] = []
        self.heartbeats: list[BrokerHeartbeatRequest] = []
        self.on_heartbeat: Callable[[BrokerHeartbeatRequest], BrokerHeartbeatResponse] = lambda r: BrokerHeartbeatResponse(
            0, is_fenced=r.want_fence
        )
        self.on_registration: Callable[[], BrokerRegistrationResponse] = lambda: BrokerRegistrationResponse(0, 5)
        self.asked = asyncio.Event()

    async def request(self, api_key: int, body: Message, timeout_ms: int) -> Message:
        await asyncio.sleep(0)
        self.asked.set()
        if isinstance(body, BrokerRegistrationRequest):
            self.registrations.append(body)
            return self.on_registration()
        assert isinstance(body, BrokerHeartbeatRequest)
        self.heartbeats.append(body)
        return self.on_heartbeat(body)

    async def heard(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self.asked.clear()
                await self.asked.wait()


class Broker:
    """A lifecycle whose heartbeat interval is so long that only an immediate heartbeat can pass these tests."""

    def __init__(self) -> None:
        self.controller = Controller()
        self.image = MetadataImage.EMPTY
        self.fatal: list[StrandlineError] = []
        self.no_controller_listens = False
        self.lifecycle = BrokerLifecycle(
            IDENTITY,
            channel=self.controller,
            metadata_offset=lambda: self.image.offset,
            heartbeat_interval_ms=3_600_000,
            session_timeout_ms=7_200_000,
            registration_timeout_ms=60_000,
            on_fatal=self.fatal.append,
            no_controller_listens=lambda: self.no_controller_listens,
        )

    def apply(self, offset: int, *records: RegisterBrokerRecord | BrokerRegistrationChangeRecord) -> None:
        delta: MetadataDelta = self.image.apply(records, offset, 1)
        self.image = delta.image
        self.lifecycle.on_metadata(delta)

    def apply_registration(self, epoch: int = 5) -> None:
        self.apply(epoch, RegisterBrokerRecord(1, epoch, IDENTITY.incarnation_id, IDENTITY.listeners))


async def test_a_broker_is_unfenced_as_soon_as_it_has_applied_its_registration() -> None:
    broker = Broker()
    broker.lifecycle.start()
    await broker.controller.heard(lambda: len(broker.controller.heartbeats) == 1)
    assert broker.controller.heartbeats[0].want_fence
    broker.apply_registration()
    await broker.controller.heard(lambda: len(broker.controller.heartbeats) == 2)
    assert not broker.controller.heartbeats[1].want_fence
    assert not broker.lifecycle.ready.is_set(), "its own image does not say so yet"
    broker.apply(6, BrokerRegistrationChangeRecord(1, 5, fenced=-1))
    async with asyncio.timeout(5):
        await broker.lifecycle.ready.wait()
    await broker.lifecycle.stop()


async def test_a_fence_in_the_metadata_makes_a_heartbeat_at_once() -> None:
    broker = Broker()
    broker.lifecycle.start()
    broker.apply_registration()
    broker.apply(6, BrokerRegistrationChangeRecord(1, 5, fenced=-1))
    async with asyncio.timeout(5):
        await broker.lifecycle.ready.wait()
    sent = len(broker.controller.heartbeats)
    broker.apply(7, BrokerRegistrationChangeRecord(1, 5, fenced=1))
    assert not broker.lifecycle.ready.is_set()
    await broker.controller.heard(lambda: len(broker.controller.heartbeats) > sent)
    await broker.lifecycle.stop()


async def test_a_lost_registration_is_renewed_and_waiters_continue() -> None:
    broker = Broker()
    broker.lifecycle.start()
    async with asyncio.timeout(5):
        await broker.lifecycle.registered.wait()
        broker.controller.on_registration = lambda: BrokerRegistrationResponse(0, 30)
        await broker.lifecycle.renew(stale_epoch=5)
    assert broker.lifecycle.broker_epoch == 30
    await broker.lifecycle.stop()


async def test_a_controlled_shutdown_is_bounded() -> None:
    broker = Broker()
    broker.lifecycle.start()
    async with asyncio.timeout(5):
        await broker.lifecycle.registered.wait()
        assert not await broker.lifecycle.controlled_shutdown(timeout_ms=30)
    await broker.lifecycle.stop()


async def test_a_stopping_broker_does_not_wait_for_unreachable_controllers() -> None:
    """All nodes are stopped at the same time, and the controllers have stopped first."""
    broker = Broker()
    broker.lifecycle.start()
    async with asyncio.timeout(5):
        await broker.lifecycle.registered.wait()
        broker.no_controller_listens = True
        assert not await broker.lifecycle.controlled_shutdown(timeout_ms=60_000)
    await broker.lifecycle.stop()


async def test_a_stopping_broker_does_not_wait_long_for_silent_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker is cut off, or the quorum has no majority, so no heartbeat is answered."""
    monkeypatch.setattr(lifecycle_module, "SHUTDOWN_UNHEARD_MS", 100)
    broker = Broker()
    broker.lifecycle.start()

    def silence(_: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:
        raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)

    async with asyncio.timeout(5):
        await broker.lifecycle.registered.wait()
        broker.controller.on_heartbeat = silence
        assert not await broker.lifecycle.controlled_shutdown(timeout_ms=60_000)
    await broker.lifecycle.stop()


async def test_a_controller_that_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller moves many leaders, and answers each heartbeat that it has not finished, so it is not silent."""
    monkeypatch.setattr(lifecycle_module, "SHUTDOWN_UNHEARD_MS", 1800)  # longer than a busy machine stops this process
    broker = Broker()
    broker.lifecycle.start()
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(30):
        await broker.lifecycle.registered.wait()
        lets_go_at = loop.time() + 2.2
        broker.controller.on_heartbeat = lambda r: BrokerHeartbeatResponse(0, should_shut_down=loop.time() > lets_go_at)
        assert await broker.lifecycle.controlled_shutdown(timeout_ms=60_000)
    await broker.lifecycle.stop()


async def test_a_heartbeat_is_given_up_long_before_the_session_ends() -> None:
    """Otherwise one lost heartbeat would cost the session."""
    broker = Broker()
    timeouts: list[int] = []
    answer = broker.controller.request

    async def request(api_key: int, body: Message, timeout_ms: int) -> Message:
        if isinstance(body, BrokerHeartbeatRequest):
            timeouts.append(timeout_ms)
        return await answer(api_key, body, timeout_ms)

    broker.controller.request = request  # type: ignore[method-assign]
    broker.lifecycle.start()
    await broker.controller.heard(lambda: bool(timeouts))
    assert timeouts[0] <= 7_200_000 / 3
    await broker.lifecycle.stop()


async def test_leaving_ends_with_the_heartbeat_that_allows_it() -> None:
    broker = Broker()
    broker.lifecycle.start()
    async with asyncio.timeout(5):
        await broker.lifecycle.registered.wait()
        broker.controller.on_heartbeat = lambda r: BrokerHeartbeatResponse(0, should_shut_down=r.want_shut_down)
        assert await broker.lifecycle.controlled_shutdown(timeout_ms=5000)
    await broker.lifecycle.stop()


async def test_a_fatal_refusal_reaches_the_owner_and_ends_the_attempts() -> None:
    broker = Broker()
    broker.controller.on_registration = lambda: BrokerRegistrationResponse(ErrorCode.INCONSISTENT_CLUSTER_ID)
    broker.lifecycle.start()
    await broker.controller.heard(lambda: bool(broker.fatal))
    assert isinstance(broker.fatal[0], UsageError)
    assert len(broker.controller.registrations) == 1
    await broker.lifecycle.stop()


async def test_a_controller_that_can_not_be_reached_is_asked_again() -> None:
    broker = Broker()
    answers: list[Callable[[], BrokerRegistrationResponse]] = [
        lambda: BrokerRegistrationResponse(ErrorCode.NOT_CONTROLLER),
        lambda: BrokerRegistrationResponse(ErrorCode.REQUEST_TIMED_OUT),
        lambda: BrokerRegistrationResponse(0, 5),
    ]

    def answer() -> BrokerRegistrationResponse:
        if len(answers) == 3:
            answers.pop(0)
            raise BrokerError(ErrorCode.REQUEST_TIMED_OUT)
        return answers.pop(0)()

    broker.controller.on_registration = answer
    broker.lifecycle.start()
    async with asyncio.timeout(5):
        await broker.lifecycle.registered.wait()
    assert broker.fatal == []
    await broker.lifecycle.stop()


async def test_time_without_a_controller_does_not_count_against_a_duplicate_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first answer comes late, and the second one soon after it. Only the time between the two counts."""
    monkeypatch.setattr(lifecycle_module, "RETRY_MS", 1)
    controller, fatal = Controller(), []
    lifecycle = BrokerLifecycle(
        IDENTITY,
        channel=controller,
        metadata_offset=lambda: -1,
        heartbeat_interval_ms=10,
        session_timeout_ms=100,
        registration_timeout_ms=60_000,
        on_fatal=fatal.append,
    )
    start = asyncio.get_running_loop().time()
    answered = []

    async def request(api_key: int, body: Message, timeout_ms: int) -> Message:
        if not answered:
            await asyncio.sleep(0.15)  # no active controller yet
        answered.append(asyncio.get_running_loop().time() - start)
        taken = len(answered) > 3 or not isinstance(body, BrokerRegistrationRequest)
        return BrokerRegistrationResponse(0 if taken else ErrorCode.DUPLICATE_BROKER_REGISTRATION, 5)

    controller.request = request  # type: ignore[method-assign]
    with capture_logs() as said:
        lifecycle.start()
        async with asyncio.timeout(5):
            while not fatal and not lifecycle.registered.is_set():
                await asyncio.sleep(0.001)
    assert fatal == []
    assert [each["log_level"] for each in said if each["event"] == "broker.duplicate_id_found"] == ["info"]
    await lifecycle.stop()
