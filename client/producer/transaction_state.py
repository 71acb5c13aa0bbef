"""The state machine of a producer's transaction: the calls that are allowed, and the effects of the coordinator's answers. Pure.

    UNINITIALIZED -> READY <-----------------------------------+
                       | begin                                 |
                       v            commit                     | ended
                 IN_TRANSACTION ---------------> COMMITTING ---+
                       |     |                        |        |
      a record failed  |     | abort                  | a record failed, or the coordinator has aborted it
                       v     v                        v        |
          ABORTABLE_ERROR ------> ABORTING -------------------+
                                  abort

    FATAL_ERROR: from any state. The coordinator refuses the producer; only a new one can go on.

Rules:

- **Atomicity.** If a record or the offsets may be missing in the transaction, also because a call was cancelled before the
  outcome was known, its state is ABORTABLE_ERROR, and no commit is sent.
- Once EndTxn was sent (`is_end_sent`), the coordinator decides the outcome. Until it answers, only the same request may be sent
  again, with the same epoch: the coordinator recognises it as a retry.
- If nothing of a transaction was sent, the coordinator does not know it, and it ends without a request. A failed transaction is
  aborted at the coordinator in any case, because that gives the producer its next epoch, which fences the batches that are still
  in flight (TV2 of KIP-890).
- If it is not clear whether the producer is fenced, the error is abortable: the answer to the abort shows it.
"""

from __future__ import annotations

from enum import Enum

from strandline.client.errors import (
    ClientError,
    ProducerFenced,
    TransactionAbortable,
    TransactionFailed,
    TransactionOutcomeUnknown,
    TransactionTimedOut,
    UsageError,
    copy_of,
    describe,
)
from strandline.protocol.errors import ERRORS, ErrorCode


class TxnState(Enum):
    """The states of the picture at the head of this module."""

    UNINITIALIZED = "uninitialized"
    READY = "ready"
    IN_TRANSACTION = "in transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "abortable error"
    FATAL_ERROR = "fatal error"


_S = TxnState

TRANSITIONS: dict[TxnState, frozenset[TxnState]] = {
    _S.UNINITIALIZED: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.READY: frozenset({_S.IN_TRANSACTION, _S.FATAL_ERROR}),
    _S.IN_TRANSACTION: frozenset({_S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.COMMITTING: frozenset({_S.READY, _S.IN_TRANSACTION, _S.ABORTABLE_ERROR, _S.FATAL_ERROR}),
    _S.ABORTABLE_ERROR: frozenset({_S.ABORTING, _S.FATAL_ERROR}),
    _S.ABORTING: frozenset({_S.READY, _S.FATAL_ERROR}),
    _S.FATAL_ERROR: frozenset(),
}
"""State -> the states that may follow."""

_FENCED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING})
"""Errors that mean, in the response of any API, that another producer has the transactional id, or that the id has expired."""
_MAY_BE_TIMED_OUT = _FENCED | frozenset(
    {ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE}
)
"""Errors that a producer may get if the coordinator has aborted its transaction, for example because it timed out."""


class TransactionState:
    """The transaction of one producer. Times are on the loop's clock."""

    def __init__(self, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self._timeout_ms = timeout_ms
        self.state = _S.UNINITIALIZED
        self.number = 0
        """The number of transactions that were begun. A call that waits compares it, so that its record is not added to a later
        transaction."""
        self.has_sent = False
        """A record was handed over, offsets were sent, or the transaction has failed: EndTxn must end it."""
        self.is_end_sent = False
        """EndTxn was sent and not answered: the coordinator decides the outcome."""
        self._began_at = 0.0
        self._end_attempts = 0
        """The number of times that EndTxn was sent for this transaction."""
        self._error: ClientError | None = None
        """Why the transaction cannot be committed, or why the producer cannot go on."""
        self.was_committed = False
        """Whether the last transaction that has ended was committed."""
        self.committed = self.aborted = 0
        """The numbers of transactions that were committed and aborted."""

    def _become(self, state: TxnState) -> None:
        assert state in TRANSITIONS[self.state], f"{self.state} -> {state}"
        self.state = state

    # -- what the program does ----------------------------------------------------------------------------------------

    def initialized(self) -> None:
        """The producer has its id and epoch."""
        self._become(_S.READY)

    def begin(self, now: float) -> None:
        """Begin a transaction. UsageError while another one is open; raises the error of a producer that cannot go on."""
        if self.state is not _S.READY:
            self._raise_fatal()
            raise UsageError(f"a transaction of this producer has not ended ({self.state.value}): commit or abort it first")
        self._become(_S.IN_TRANSACTION)
        self.number += 1
        self.has_sent = self.is_end_sent = False
        self._end_attempts = 0
        self._began_at, self._error = now, None

    @property
    def takes_records(self) -> bool:
        """Whether records may be handed over."""
        return self.state is _S.IN_TRANSACTION

    @property
    def is_open(self) -> bool:
        """Whether a transaction was begun and has not ended."""
        return self.state in (_S.IN_TRANSACTION, _S.COMMITTING, _S.ABORTING, _S.ABORTABLE_ERROR)

    def check_takes_records(self, number: int | None = None) -> None:
        """Raise the reason if no record may be handed over now. `number`: that of the transaction in which the call began."""
        if number is not None and number != self.number:
            raise UsageError("the transaction in which this call began has ended; nothing was sent")
        if self.state is _S.IN_TRANSACTION:
            return
        self._raise_fatal()
        self._raise_abortable()
        if self.is_open:
            raise UsageError(f"the transaction takes no more records ({self.state.value})")
        raise UsageError(
            "a producer with a transactional_id sends in a transaction: `async with producer.transaction()`, or "
            "`await producer.begin_transaction()`"
        )

    def begin_commit(self) -> None:
        """Accept no more records: the commit waits for those that were handed over. Raises TransactionAbortable if one has
        failed."""
        self._raise_fatal()
        self._raise_abortable()
        if self.state is _S.COMMITTING and self.is_end_sent:
            return
        if self.state is not _S.IN_TRANSACTION:
            raise UsageError(self._nothing_to("commit"))
        self._become(_S.COMMITTING)

    def interrupt_commit(self) -> None:
        """The commit was cancelled while it waited for records: the transaction is open again."""
        if self.state is _S.COMMITTING and not self.is_end_sent:
            self._become(_S.IN_TRANSACTION)

    def check_committable(self) -> None:
        """Called when every record is acknowledged or has failed. Raises the reason if the transaction cannot be committed."""
        self._raise_fatal()
        self._raise_abortable()

    def begin_abort(self) -> None:
        """Accept no more records. The caller drops those that were handed over."""
        self._raise_fatal()
        if self.state is _S.ABORTING:
            return
        if self.state is _S.COMMITTING and self.is_end_sent:
            raise UsageError("the commit was sent, and may be decided: call commit_transaction() again to learn the outcome")
        if self.state not in (_S.IN_TRANSACTION, _S.ABORTABLE_ERROR):
            raise UsageError(self._nothing_to("abort"))
        self._become(_S.ABORTING)

    def _nothing_to(self, what: str) -> str:
        return f"there is no transaction to {what} ({self.state.value})"

    def _raise_fatal(self) -> None:
        if self.state is _S.FATAL_ERROR:
            assert self._error is not None, "it is set with the state"
            raise copy_of(self._error)

    def _raise_abortable(self) -> None:
        if self.state is _S.ABORTABLE_ERROR:
            assert self._error is not None, "it is set with the state"
            raise copy_of(self._error)

    # -- what happens to it -------------------------------------------------------------------------------------------

    def on_sent(self) -> None:
        """A record or offsets of the transaction are about to be sent."""
        self.has_sent = True

    def on_failed(self, error: BaseException, now: float) -> bool:
        """A record or offsets of the transaction failed, or it is not known whether they did. Returns whether the transaction
        could be committed until now."""
        if self.state not in (_S.IN_TRANSACTION, _S.COMMITTING) or self.is_end_sent:
            return False
        code = getattr(error, "code", None)
        if code in _FENCED:
            self.on_fatal(self._fenced(code, str(error), now))
            return True
        self.has_sent = True
        self._fail(str(error) or type(error).__name__, code, now, error)
        return True

    def _fail(self, reason: str, code: ErrorCode | None, now: float, cause: BaseException | None = None) -> None:
        kind, text = TransactionAbortable, f"the transaction of {self.transactional_id!r} cannot be committed: {reason}"
        if code in _MAY_BE_TIMED_OUT and self._is_late(now):
            kind, text = TransactionTimedOut, f"{text}; {self._late_text(now)}"
        self._error = error = kind(text)
        error.code, error.__cause__ = code, cause
        self._become(_S.ABORTABLE_ERROR)

    def on_fatal(self, error: ClientError) -> None:
        """The producer can send nothing more."""
        if self.state is not _S.FATAL_ERROR:
            self._error = error
            self._become(_S.FATAL_ERROR)

    @property
    def error(self) -> ClientError | None:
        """Why the transaction cannot be committed, or why the producer cannot go on; None if both can."""
        return self._error if self.state in (_S.ABORTABLE_ERROR, _S.FATAL_ERROR) else None

    # -- EndTxn -------------------------------------------------------------------------------------------------------

    @property
    def needs_end(self) -> bool:
        """Whether EndTxn must be sent to end the transaction."""
        return self.has_sent

    def on_end_sent(self) -> None:
        """EndTxn is about to be sent: from now on, only its answer determines the outcome."""
        assert self.state in (_S.COMMITTING, _S.ABORTING), f"nothing ends while {self.state}"
        self.is_end_sent = True
        self._end_attempts += 1

    def on_ended(self) -> None:
        """The transaction was committed or aborted, as the program requested."""
        self.was_committed = self.state is _S.COMMITTING
        if self.was_committed:
            self.committed += 1
        else:
            self.aborted += 1
        self.is_end_sent = False
        self._become(_S.READY)

    def on_end_refused(self, code: ErrorCode, message: str | None, now: float) -> bool:
        """EndTxn was answered with an error. Returns whether to send it again. If not, `state` and `error` contain the result."""
        if ERRORS[code].retriable or code == ErrorCode.UNKNOWN_SERVER_ERROR:
            return True
        text = describe(code, message)
        is_commit = self.state is _S.COMMITTING
        self.is_end_sent = False
        if is_commit and code in (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE):
            self._fail(text, code, now)
        elif code in _FENCED or code == ErrorCode.INVALID_PRODUCER_EPOCH:
            if is_commit and self._end_attempts > 1:
                text += "; an earlier attempt to commit was not answered, so the transaction may be committed"
            self.on_fatal(self._fenced(code, text, now))
        else:
            what = "committed" if is_commit else "aborted"
            error = TransactionFailed(f"the transaction of {self.transactional_id!r} was not {what}: {text}")
            error.code = code
            self.on_fatal(error)
        return False

    def outcome_unknown(self, last: BaseException | None, elapsed_ms: float) -> TransactionOutcomeUnknown:
        """The error for a caller whose time to wait for the answer to EndTxn has passed."""
        what = "committed" if self.state is _S.COMMITTING else "aborted"
        text = f"it is not known whether the transaction of {self.transactional_id!r} is {what}"
        error = TransactionOutcomeUnknown(f"{text}: {last}" if last else text, api="EndTxn", elapsed_ms=elapsed_ms)
        error.__cause__ = last
        return error

    # -- texts --------------------------------------------------------------------------------------------------------

    def _fenced(self, code: ErrorCode | None, reason: str, now: float) -> ProducerFenced:
        text = f"this producer has lost the transactional id {self.transactional_id!r}: {reason}"
        if self._is_late(now):
            text += f"; {self._late_text(now)}"
        error = ProducerFenced(text)
        error.code = code
        return error

    def _is_late(self, now: float) -> bool:
        return self.is_open and (now - self._began_at) * 1000 >= self._timeout_ms

    def _late_text(self, now: float) -> str:
        took_s = now - self._began_at
        return f"it has taken {took_s:.1f} s, and transaction_timeout_ms is {self._timeout_ms} ms"
