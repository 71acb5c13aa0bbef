"""The errors of the client: one tree, each with `retriable`, and with the facts in its message.

StrandlineError
  UsageError            the caller's mistake
    BufferFull          no room now; the same call may succeed later (retriable)
    RecordTooLarge      rejected before anything was sent
    ClientClosed        the client was stopped, or not started
  ClientError           the cluster, or reaching it, failed; has topic, partition, broker, api, attempts, elapsed time
    NoBrokersAvailable  none of the bootstrap addresses (or of the advertised ones) answers
    UnknownTopic        the cluster answered that it does not know the topic or partition
    RequestFailed       a broker answered with an error code
      AuthorizationFailed             the client's principal lacks a right; one class per kind of resource:
        TopicAuthorizationFailed, GroupAuthorizationFailed, TransactionalIdAuthorizationFailed, ClusterAuthorizationFailed
    AuthenticationFailed  the cluster does not accept the client's credentials or certificate, or the client not the server's
    RequestTimeout      no response came in time
    DeliveryFailed      a record was rejected, and is not sent again
      DeliveryNotAuthorized   the principal may not write to the topic (a TopicAuthorizationFailed, too)
      OffsetConflict    the log end is not at the offset that `expect_offset` names; nothing was written
      TokenFenced       a record with a higher `fencing_token` was appended before; nothing was written
      ProducerFenced    a newer producer has the name or the transactional id: this one can send nothing more
      DeliveryTimeout   its `delivery_timeout_ms` has passed; if it was sent, it is not known whether it was written
    OffsetOutOfRange    the position is outside the log and no reset policy says what to do
    LogTruncated        records that were read are no longer in the log (an unclean election); names the divergence
    TopicRecreated      the topic was deleted and recreated under its name: the position is an offset of a deleted log
    CorruptRecords      a fetched batch failed its checksum or cannot be read
    CommitFailed        offsets were not committed, because the partitions are no longer the consumer's
    GroupMembershipFailed   the coordinator of the group does not accept the consumer
      GroupMembershipNotAuthorized   the principal may not read the group (a GroupAuthorizationFailed, too)
    RebalanceCallbackFailed a callback of `subscribe` has raised an error
    HandlerFailed       the handler of `Consumer.run` has raised an error, and the record may be neither retried nor dead-lettered
    TransactionAbortable    the transaction cannot be committed: abort it, and go on with the next one
      TransactionTimedOut   it has taken more than `transaction_timeout_ms`
    TransactionFailed   the producer can begin no more transactions: start over with a new one
      TransactionOutcomeUnknown   it is not known whether the transaction is committed
    VersionConflict     a key of a `Table` has another version than a write expects (table/entry.py)
"""

from __future__ import annotations

from ssl import SSLCertVerificationError, SSLError
from typing import Any

from strandline.protocol.errors import ERRORS, BrokerError, ErrorCode, StrandlineError, UsageError, to_code

__all__ = [
    "AuthenticationFailed",
    "AuthorizationFailed",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "ClusterAuthorizationFailed",
    "CommitFailed",
    "CorruptRecords",
    "DeliveryFailed",
    "DeliveryNotAuthorized",
    "DeliveryTimeout",
    "GroupAuthorizationFailed",
    "GroupMembershipFailed",
    "GroupMembershipNotAuthorized",
    "HandlerFailed",
    "LogTruncated",
    "NoBrokersAvailable",
    "OffsetConflict",
    "OffsetOutOfRange",
    "ProducerFenced",
    "RebalanceCallbackFailed",
    "RecordTooLarge",
    "RequestFailed",
    "RequestTimeout",
    "StrandlineError",
    "TokenFenced",
    "TopicAuthorizationFailed",
    "TopicRecreated",
    "TransactionAbortable",
    "TransactionFailed",
    "TransactionOutcomeUnknown",
    "TransactionTimedOut",
    "TransactionalIdAuthorizationFailed",
    "UnknownTopic",
    "UsageError",
    "authentication_error",
    "delivery_failed",
    "describe",
    "no_such_partition",
    "request_failed",
    "to_client_error",
]


class BufferFull(UsageError):
    """`buffer_memory` is used up by records that are not acknowledged yet, or an earlier call for the topic waits.
    `await producer.send(...)` waits for room instead."""

    retriable = True


class RecordTooLarge(UsageError):
    """The record alone is larger than `max_request_size`. It was not sent."""


class ClientClosed(UsageError):
    """The client is stopped (or was never started)."""


class ClientError(StrandlineError):
    """The cluster, or reaching it, failed. The facts are attributes (None if they are not known), and are part of the message."""

    def __init__(
        self,
        message: str,
        *,
        topic: str | None = None,
        partition: int | None = None,
        broker_id: int | None = None,
        api: str | None = None,
        attempts: int | None = None,
        elapsed_ms: float | None = None,
        code: ErrorCode | int | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.broker_id = broker_id
        self.api = api
        self.attempts = attempts
        self.elapsed_ms = elapsed_ms
        self.code = None if code is None else to_code(code)
        if self.code is not None and not type(self).retriable:
            self.retriable = ERRORS[self.code].retriable
        super().__init__(message + self._facts())

    def _facts(self) -> str:
        facts: list[str] = []
        if self.topic is not None:
            facts.append(self.topic if self.partition is None else f"{self.topic}-{self.partition}")
        if self.broker_id is not None:
            facts.append(f"broker {self.broker_id}")
        if self.api is not None:
            facts.append(self.api)
        if self.attempts is not None:
            facts.append("1 attempt" if self.attempts == 1 else f"{self.attempts} attempts")
        if self.elapsed_ms is not None:
            facts.append(f"after {self.elapsed_ms:.0f} ms")
        if self.code is not None:
            facts.append(self.code.name)
        return f" ({', '.join(facts)})" if facts else ""


def copy_of(error: BaseException) -> BaseException:
    """A copy of a stored error, to be raised once. An error that is raised refers to all frames that it passes through; raising
    the stored error itself would keep those frames, too."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    copy.__cause__, copy.__suppress_context__ = error.__cause__, error.__suppress_context__
    return copy


class NoBrokersAvailable(ClientError):
    """None of the bootstrap addresses, or none of the addresses that the brokers advertise, answered in time."""

    retriable = True


class UnknownTopic(ClientError):
    """The cluster answered that it has no such topic or partition. Retriable, because the topic may be created."""

    retriable = True


def no_such_partition(count: int) -> str:
    """The message of an UnknownTopic for a partition of a topic with `count` partitions."""
    return f"there is no such partition: the topic has {count} partition{'' if count == 1 else 's'}"


class RequestFailed(ClientError):
    """A broker rejected the request: `code` is the reason, and `retriable` is that of the code."""


class AuthenticationFailed(ClientError):
    """The cluster does not accept the client's credentials or certificate, does not offer its mechanism, or the client does not
    accept the server's certificate. It is raised at once, because another attempt would fail as well. A running client raises it
    from its calls after its credential was withdrawn; each call checks whether the credential is valid again."""


class AuthorizationFailed(RequestFailed):
    """The client's principal lacks a right (an ACL). Each kind of resource has its own class; the message names the resource. It
    is not retriable: an administrator must grant the right (`strandline acl add`)."""


class TopicAuthorizationFailed(AuthorizationFailed):
    """The principal lacks a right on a topic."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics, as in Kafka's TopicAuthorizationException."""
        return () if self.topic is None else (self.topic,)


class GroupAuthorizationFailed(AuthorizationFailed):
    """The principal lacks a right on a consumer group."""


class TransactionalIdAuthorizationFailed(AuthorizationFailed):
    """The principal lacks a right on a transactional id, or on a producer name."""


class ClusterAuthorizationFailed(AuthorizationFailed):
    """The principal lacks a right on the cluster."""


class RequestTimeout(ClientError):
    """The call has waited for its time limit. The outcome of a request that was sent is not known."""

    retriable = True


class DeliveryFailed(ClientError):
    """The record was rejected, and is not sent again. `is_invalid_record`: True if this record breaks a rule of its topic; False
    if it is valid and was rejected because other records of its batch are not; None if the error is not one of single records."""

    is_invalid_record: bool | None = None


class DeliveryNotAuthorized(DeliveryFailed, TopicAuthorizationFailed):
    """The principal may not write to the record's topic. Records of other topics are not affected."""


class DeliveryTimeout(DeliveryFailed):
    """`delivery_timeout_ms` passed before the record was acknowledged. If it was sent, it may be in the log all the same."""

    retriable = True


class OffsetConflict(DeliveryFailed):
    """The record was sent with `expect_offset`, and the partition's log end was another one. The record is not in the log.

    If `log_end_offset` is higher, all records below it are committed: a consumer can read them, and decide what to do. If it is
    lower, a deposed leader that does not know yet that it was replaced may have answered. So the client looks up the leader and
    sends the record once more before it raises this error; a second answer may still come from a deposed leader, if the brokers
    do not know the new one yet."""

    def __init__(
        self,
        *,
        expected_offset: int,
        log_end_offset: int,
        topic: str,
        partition: int,
        broker_id: int | None = None,
        attempts: int | None = None,
        elapsed_ms: float | None = None,
    ) -> None:
        self.expected_offset = expected_offset
        self.log_end_offset = log_end_offset
        """The offset after the last record of the log, at the time when the leader rejected this record."""
        super().__init__(
            f"the record expects offset {expected_offset}, but the log end is {log_end_offset}; nothing was written",
            topic=topic,
            partition=partition,
            broker_id=broker_id,
            attempts=attempts,
            elapsed_ms=elapsed_ms,
            code=ErrorCode.UNEXPECTED_LOG_END,
        )


class TokenFenced(DeliveryFailed):
    """The record was sent with a `fencing_token`, and an earlier record has carried a higher one. The record is not in the log.
    The higher token is committed, so every later record with a lower token fails, too."""

    def __init__(
        self,
        *,
        fencing_token: int,
        highest_token: int,
        topic: str,
        partition: int,
        broker_id: int | None = None,
        attempts: int | None = None,
        elapsed_ms: float | None = None,
    ) -> None:
        self.fencing_token = fencing_token
        """The token of the record."""
        self.highest_token = highest_token
        """The highest token of the partition, at the time when the leader rejected the record."""
        super().__init__(
            f"fencing token {fencing_token} is fenced: a record with token {highest_token} came before; nothing was written",
            topic=topic,
            partition=partition,
            broker_id=broker_id,
            attempts=attempts,
            elapsed_ms=elapsed_ms,
            code=ErrorCode.FENCED_TOKEN,
        )


class ProducerFenced(DeliveryFailed):
    """A newer producer has this producer's name, in the same or a higher work epoch, or its transactional id. This producer can
    send nothing more (KIP-98)."""


class TransactionAbortable(ClientError):
    """The transaction cannot be committed: a record or the offsets could not be stored (`__cause__`), or it has timed out. Abort
    it, and the same producer can begin the next transaction (KIP-1050). `Producer.transaction` aborts it automatically."""


class TransactionTimedOut(TransactionAbortable):
    """The transaction has taken more than the producer's `transaction_timeout_ms`, and the coordinator has aborted it."""


class TransactionFailed(ClientError):
    """The coordinator rejects this producer for good, and it can send nothing more. The transaction is not committed. A new
    producer with the same transactional id aborts it."""


class TransactionOutcomeUnknown(TransactionFailed):
    """The coordinator did not answer in time whether the transaction is committed, or aborted. Call `commit_transaction` (or
    `abort_transaction`) again to get the outcome. Or start a new producer with the same transactional id: when its `start` has
    returned, the transaction is over, and a `read_committed` consumer sees whether its records are there."""


class OffsetOutOfRange(ClientError):
    """There is no position, or it is not in the log, and `auto_offset_reset` is "error"."""


class LogTruncated(ClientError):
    """Records that this consumer has read are no longer in the log: an unclean election removed them (KIP-320)."""

    def __init__(
        self,
        message: str,
        *,
        topic: str,
        partition: int,
        position: int,
        position_epoch: int,
        diverging_offset: int,
        diverging_epoch: int,
    ) -> None:
        self.position = position
        self.position_epoch = position_epoch
        self.diverging_offset = diverging_offset
        """The first offset whose record differs from the one that was read; -1 if the log does not know the epoch."""
        self.diverging_epoch = diverging_epoch
        super().__init__(message, topic=topic, partition=partition)


class TopicRecreated(ClientError):
    """The topic was deleted and recreated under its name, while it was assigned. The position is an offset of the old topic's
    log, and means nothing in the new log: `seek` to read the new topic. Raised with `auto_offset_reset="error"`; with another
    policy the consumer logs a warning and continues by the policy.

    Kafka's Java consumer knows topic ids too (KIP-516), but accepts any id that the newest metadata has for the name
    (KAFKA-12257): it continues at the old offset in the new log, so that records are skipped or read twice, or the reset policy
    applies if the offset is outside the log. Only the leader epochs (KIP-320) may prevent that, by chance."""

    def __init__(self, *, topic: str, partition: int, position: int, topic_id: bytes) -> None:
        self.position = position
        """The offset of the next record in the deleted log."""
        self.topic_id = topic_id
        """The id of the topic that has the name now."""
        text = f"the topic was deleted and recreated; the position {position} is an offset of the deleted log: seek to continue"
        super().__init__(text, topic=topic, partition=partition)


class CorruptRecords(ClientError):
    """A fetched batch cannot be read: its checksum is wrong, its records are malformed, or its compression is not supported. Its
    records are not returned, and the position stays before the batch, unless `on_corrupt_batch="skip"`."""

    def __init__(
        self, cause: str, *, topic: str, partition: int, first_offset: int, last_offset: int, code: ErrorCode | int | None = None
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        """The offset of the batch's last record; -1 if it is not known, because the header is damaged. Such a batch cannot be
        skipped."""
        if last_offset >= 0:
            text = f"the batch at offset {first_offset} (to {last_offset}) cannot be read: {cause}; to continue after it, "
            text += f'set on_corrupt_batch="skip" or seek to {last_offset + 1}'
        else:
            text = f"the batch at offset {first_offset} cannot be read: {cause}; its end is not known: seek behind it to continue"
        super().__init__(text, topic=topic, partition=partition, code=code)


class CommitFailed(ClientError):
    """The offsets were not committed, because the partitions are no longer this consumer's: they were revoked, or the member has
    lost them. The member that owns them now continues from the last commit. Another attempt fails as well."""


class GroupMembershipFailed(ClientError):
    """The consumer is not a member of its group, and trying again would not help: the coordinator rejects it (see `code`), or a
    background task of the consumer has ended. All calls that return records raise it. The consumer has lost its partitions."""


class GroupMembershipNotAuthorized(GroupMembershipFailed, GroupAuthorizationFailed):
    """The principal may not be a member of the group (it needs READ)."""


class RebalanceCallbackFailed(ClientError):
    """A callback of `subscribe` has raised an error (`__cause__`). The rebalance goes on, and the next call that returns records
    raises this once."""


class HandlerFailed(ClientError):
    """The handler of `Consumer.run` has raised an error (`__cause__`) for a record that may not be handled again, and there is no
    dead-letter topic; or the record could not be delivered to it. The record is not committed: the next `run` begins with it."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int, attempts: int) -> None:
        self.offset = offset
        """The record's offset in its topic and partition."""
        super().__init__(f"{message}; the record at offset {offset}", topic=topic, partition=partition, attempts=attempts)


def describe(code: ErrorCode | int, message: str | None = None) -> str:
    """The message for a code: the broker's own, if it sent one."""
    return message or ERRORS[to_code(code)].meaning


AUTHENTICATION_CODES = frozenset(
    {
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        ErrorCode.ILLEGAL_SASL_STATE,
    }
)
"""Codes of a failed authentication that would fail again in another attempt."""
_BY_CODE: dict[ErrorCode, type[RequestFailed]] = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: TopicAuthorizationFailed,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: GroupAuthorizationFailed,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: TransactionalIdAuthorizationFailed,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ClusterAuthorizationFailed,
}
AUTHORIZATION_CODES = frozenset(_BY_CODE)
"""Codes that mean that the principal lacks a right."""


def request_failed(message: str, *, code: ErrorCode | int, **facts: Any) -> RequestFailed:
    """The error for a code: RequestFailed, or its subclass for the right that is missing."""
    return _BY_CODE.get(to_code(code), RequestFailed)(message, code=code, **facts)


def delivery_failed(message: str, *, code: ErrorCode | int, **facts: Any) -> DeliveryFailed:
    """The error for a record that was rejected with a code."""
    is_denied = code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return (DeliveryNotAuthorized if is_denied else DeliveryFailed)(message, code=code, **facts)


def authentication_error(error: BrokerError, address: str) -> AuthenticationFailed | None:
    """AuthenticationFailed if another attempt to connect to the address would fail in the same way; None if the network, or a
    broker that is not ready, may be the reason."""
    text = error.message or ERRORS[error.code].meaning
    if error.code in AUTHENTICATION_CODES:
        return AuthenticationFailed(text if address in text else f"{address}: {text}", code=error.code)
    if _is_certificate_refused(error.__cause__):
        return AuthenticationFailed(text if address in text else f"{address}: {text}")
    return None


def _is_certificate_refused(cause: BaseException | None) -> bool:
    """Whether one end of the connection does not accept the certificate of the other end."""
    return isinstance(cause, SSLCertVerificationError) or (isinstance(cause, SSLError) and cause.reason in _REFUSALS)


_REFUSALS = {
    "SSLV3_ALERT_BAD_CERTIFICATE",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_HANDSHAKE_FAILURE",  # TLS 1.2 has no other alert for a missing certificate.
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    "TLSV1_ALERT_UNKNOWN_CA",
}
"""TLS alerts with which a broker rejects the certificate of its client."""


def to_client_error(error: BaseException, *, api: str | None = None, broker_id: int | None = None) -> StrandlineError:
    """The error of a connection as an error of the client. A BrokerError becomes the error for its code; any other error of this
    package is returned as it is."""
    if isinstance(error, BrokerError):
        text = describe(error.code, error.message)
        if error.code in AUTHENTICATION_CODES:
            return AuthenticationFailed(text, code=error.code)
        if error.code == ErrorCode.REQUEST_TIMED_OUT:
            return RequestTimeout(text, api=api, broker_id=broker_id, code=error.code)
        return request_failed(text, api=api, broker_id=broker_id, code=error.code)
    if isinstance(error, StrandlineError):
        return error
    return ClientError(f"{type(error).__name__}: {error}", api=api, broker_id=broker_id)
