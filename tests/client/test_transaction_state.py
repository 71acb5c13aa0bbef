"""The state machine of a producer's transaction: which call is allowed when, and what each answer of the coordinator means."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from strandline.client.errors import (
    DeliveryFailed,
    ProducerFenced,
    StrandlineError,
    TransactionAbortable,
    TransactionFailed,
    TransactionOutcomeUnknown,
    TransactionTimedOut,
    UsageError,
)
from strandline.client.producer.transaction_state import TRANSITIONS, TransactionState, TxnState
from strandline.protocol.errors import ErrorCode

C, S = ErrorCode, TxnState
FAILURE = DeliveryFailed("the leader rejected the record", topic="orders", partition=0, code=C.RECORD_LIST_TOO_LARGE)


def in_state(wanted: TxnState, *, is_end_sent: bool = False) -> TransactionState:
    state = TransactionState("tx", 1_000)
    if wanted is S.UNINITIALIZED:
        return state
    state.initialized()
    if wanted is S.READY:
        return state
    state.begin(0.0)
    state.on_sent()
    if wanted is S.COMMITTING:
        state.begin_commit()
    elif wanted is S.ABORTING:
        state.begin_abort()
    elif wanted is S.ABORTABLE_ERROR:
        state.on_failed(FAILURE, 0.0)
    elif wanted is S.FATAL_ERROR:
        state.on_fatal(ProducerFenced("there is another"))
    if is_end_sent:
        state.on_end_sent()
    assert state.state is wanted
    return state


CALLS: dict[str, Callable[[TransactionState], None]] = {
    "begin": lambda state: state.begin(1.0),
    "send": lambda state: state.check_takes_records(),
    "commit": lambda state: state.begin_commit(),
    "abort": lambda state: state.begin_abort(),
}
OK = None
TABLE: dict[TxnState, dict[str, TxnState | type[StrandlineError] | None]] = {
    S.UNINITIALIZED: {"begin": UsageError, "send": UsageError, "commit": UsageError, "abort": UsageError},
    S.READY: {"begin": S.IN_TRANSACTION, "send": UsageError, "commit": UsageError, "abort": UsageError},
    S.IN_TRANSACTION: {"begin": UsageError, "send": OK, "commit": S.COMMITTING, "abort": S.ABORTING},
    S.COMMITTING: {"begin": UsageError, "send": UsageError, "commit": UsageError, "abort": UsageError},
    S.ABORTING: {"begin": UsageError, "send": UsageError, "commit": UsageError, "abort": OK},
    S.ABORTABLE_ERROR: {
        "begin": UsageError,
        "send": TransactionAbortable,
        "commit": TransactionAbortable,
        "abort": S.ABORTING,
    },
    S.FATAL_ERROR: {"begin": ProducerFenced, "send": ProducerFenced, "commit": ProducerFenced, "abort": ProducerFenced},
}


@pytest.mark.parametrize(("before", "call"), [(before, call) for before in TABLE for call in CALLS])
def test_calls_are_allowed_by_the_table(before: TxnState, call: str) -> None:
    state, expected = in_state(before), TABLE[before][call]
    if isinstance(expected, type):
        with pytest.raises(expected):
            CALLS[call](state)
        assert state.state is before, "a call that is refused changes nothing"
    else:
        CALLS[call](state)
        assert state.state is (expected or before)


def test_every_transition_leads_to_a_state_of_the_table() -> None:
    assert set(TRANSITIONS) == set(TxnState) == set(TABLE)
    assert not TRANSITIONS[S.FATAL_ERROR], "a producer that has failed stays so"


REFUSALS: list[tuple[ErrorCode, bool, TxnState | None, type[StrandlineError] | None]] = [
    # The response to EndTxn, whether it commits, the state after that (None: EndTxn is sent again), and the error.
    (C.CONCURRENT_TRANSACTIONS, True, None, None),
    (C.NOT_COORDINATOR, True, None, None),
    (C.COORDINATOR_LOAD_IN_PROGRESS, False, None, None),
    (C.UNKNOWN_SERVER_ERROR, True, None, None),
    (C.TRANSACTION_ABORTABLE, True, S.ABORTABLE_ERROR, TransactionAbortable),
    (C.INVALID_TXN_STATE, True, S.ABORTABLE_ERROR, TransactionAbortable),
    (C.INVALID_TXN_STATE, False, S.FATAL_ERROR, TransactionFailed),
    (C.PRODUCER_FENCED, True, S.FATAL_ERROR, ProducerFenced),
    (C.PRODUCER_FENCED, False, S.FATAL_ERROR, ProducerFenced),
    (C.INVALID_PRODUCER_EPOCH, True, S.FATAL_ERROR, ProducerFenced),
    (C.INVALID_PRODUCER_ID_MAPPING, False, S.FATAL_ERROR, ProducerFenced),
    (C.INVALID_REQUEST, True, S.FATAL_ERROR, TransactionFailed),
]


@pytest.mark.parametrize(("code", "commits", "after", "error"), REFUSALS)
def test_refusal_of_an_end_says_what_to_do(
    code: ErrorCode, commits: bool, after: TxnState | None, error: type[StrandlineError] | None
) -> None:
    before = S.COMMITTING if commits else S.ABORTING
    state = in_state(before, is_end_sent=True)
    assert state.on_end_refused(code, None, 0.1) is (after is None)
    assert state.state is (after or before)
    if error is not None:
        assert type(state.error) is error
        assert getattr(state.error, "code", None) == code


def test_failed_record_is_the_reason_of_the_abort() -> None:
    state = in_state(S.IN_TRANSACTION)
    assert state.on_failed(FAILURE, 0.5)
    assert not state.on_failed(DeliveryFailed("another"), 0.5), "the first one counts"
    with pytest.raises(TransactionAbortable, match="RECORD_LIST_TOO_LARGE") as caught:
        state.begin_commit()
    assert caught.value.__cause__ is FAILURE
    assert not caught.value.retriable


def test_failure_while_a_commit_waits_for_records_prevents_it() -> None:
    state = in_state(S.COMMITTING)
    assert state.on_failed(FAILURE, 0.5)
    with pytest.raises(TransactionAbortable):
        state.check_committable()


def test_failure_after_the_end_was_sent_changes_nothing() -> None:
    """The outcome is then the coordinator's decision. (No record can be waiting: the commit waited for all of them.)"""
    state = in_state(S.COMMITTING, is_end_sent=True)
    assert not state.on_failed(FAILURE, 0.5)
    assert state.state is S.COMMITTING


def test_commit_of_unknown_outcome_may_only_be_repeated() -> None:
    state = in_state(S.COMMITTING, is_end_sent=True)
    unknown = state.outcome_unknown(None, 60_000)
    assert isinstance(unknown, TransactionOutcomeUnknown)
    state.interrupt_commit()
    assert state.state is S.COMMITTING
    with pytest.raises(UsageError, match="may be decided"):
        state.begin_abort()
    state.begin_commit()
    state.on_ended()
    assert (state.state, state.committed) == (S.READY, 1)


@pytest.mark.parametrize("code", [C.INVALID_PRODUCER_EPOCH, C.INVALID_TXN_STATE, C.TRANSACTION_ABORTABLE])
@pytest.mark.parametrize(("now", "kind"), [(0.9, TransactionAbortable), (1.1, TransactionTimedOut)])
def test_error_of_a_late_transaction_depends_on_code_and_time(code: ErrorCode, now: float, kind: type[StrandlineError]) -> None:
    state = in_state(S.IN_TRANSACTION)
    state.on_failed(DeliveryFailed("refused", code=code), now)
    assert type(state.error) is kind


def test_fenced_producer_needs_no_abort() -> None:
    state = in_state(S.IN_TRANSACTION)
    assert state.on_failed(DeliveryFailed("refused", code=C.PRODUCER_FENCED), 2.0)
    assert state.state is S.FATAL_ERROR
    assert "transaction_timeout_ms is 1000 ms" in str(state.error), "that may be why"


def test_fenced_after_a_lost_answer_leaves_the_outcome_open() -> None:
    state = in_state(S.COMMITTING, is_end_sent=True)
    state.on_end_sent()
    state.on_end_refused(C.PRODUCER_FENCED, None, 0.1)
    assert "may be committed" in str(state.error)


def test_call_of_an_earlier_transaction_is_refused() -> None:
    state = in_state(S.IN_TRANSACTION)
    number = state.number
    state.begin_abort()
    state.on_ended()
    state.begin(1.0)
    state.check_takes_records()
    with pytest.raises(UsageError, match="has ended"):
        state.check_takes_records(number)


def test_transaction_that_has_failed_is_ended_at_the_coordinator() -> None:
    """This holds also if the producer believes that nothing was sent: the abort gives it the next epoch."""
    state = TransactionState("tx", 1_000)
    state.initialized()
    state.begin(0.0)
    assert not state.needs_end
    state.on_failed(FAILURE, 0.1)
    assert state.needs_end
