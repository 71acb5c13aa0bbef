"""The exceptions of aiokafka 0.14, and the translation of this client's errors into them.

Names, numbers and base classes are aiokafka's, so that `except` clauses still work. Texts and flags are those of our table of
error codes. An exception that stands for an error of this client has that error as its `__cause__`, with all its fields.
"""

from __future__ import annotations

from typing import Any

from strandline.client import errors
from strandline.client.consumer.records import TopicPartition
from strandline.protocol.errors import ERRORS, ErrorCode, StrandlineError


class KafkaError(RuntimeError):
    """Base class of the errors of cluster and client."""

    retriable = False
    invalid_metadata = False
    """Whether the error means that the metadata was out of date."""

    def __str__(self) -> str:
        name = type(self).__name__
        return f"{name}: {super().__str__()}" if self.args else name


class UnsupportedByStrandline(KafkaError, NotImplementedError):
    """A part of aiokafka that has no counterpart here. The message names the part, and an alternative."""


class IllegalStateError(KafkaError):
    pass


class IllegalArgumentError(KafkaError):
    pass


class NoBrokersAvailable(KafkaError):
    retriable = True
    invalid_metadata = True


class NodeNotReadyError(KafkaError):
    retriable = True


class KafkaProtocolError(KafkaError):
    retriable = True


class CorrelationIdError(KafkaProtocolError):
    pass


class Cancelled(KafkaError):
    retriable = True


class TooManyInFlightRequests(KafkaError):
    retriable = True


class StaleMetadata(KafkaError):
    retriable = True
    invalid_metadata = True


class MetadataEmptyBrokerList(KafkaError):
    retriable = True


class UnrecognizedBrokerVersion(KafkaError):
    pass


class IncompatibleBrokerVersion(KafkaError):
    pass


class CommitFailedError(KafkaError):
    """The offsets were not committed, because the partitions belong to another member now."""


class AuthenticationMethodNotSupported(KafkaError):
    pass


class AuthenticationFailedError(KafkaError):
    pass


class KafkaUnavailableError(KafkaError):
    pass


class KafkaTimeoutError(KafkaError):
    """A call or a record has waited for its time limit."""


class KafkaConnectionError(KafkaError):
    retriable = True
    invalid_metadata = True


class UnsupportedCodecError(KafkaError):
    pass


class KafkaConfigurationError(KafkaError):
    pass


class QuotaViolationError(KafkaError):
    pass


class NoOffsetForPartitionError(KafkaError):
    """There is no committed offset, and `auto_offset_reset` is "none". The argument is the partition."""


class RecordTooLargeError(KafkaError):
    pass


class ProducerClosed(KafkaError):
    pass


class ProducerFenced(KafkaError):
    pass


class ConsumerStoppedError(Exception):
    """The consumer was stopped."""


class IllegalOperation(Exception):
    """The call needs another configuration, for example a `group_id`."""


class BrokerResponseError(KafkaError):
    """A broker has answered with an error code, `errno`."""

    errno: int
    message: str
    """The name of the code."""
    description: str = ""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        code = ErrorCode(cls.errno) if cls.errno in _KNOWN else None
        cls.message = cls.__name__ if code is None else code.name
        if code is not None:
            known = ERRORS[code]
            cls.description, cls.retriable, cls.invalid_metadata = known.meaning, known.retriable, known.refresh_metadata

    def __str__(self) -> str:
        return f"[Error {self.errno}] {super().__str__()}"


_KNOWN = frozenset(ErrorCode)


class NoError(BrokerResponseError):
    errno = 0


class UnknownError(BrokerResponseError):
    errno = -1


class OffsetOutOfRangeError(BrokerResponseError):
    errno = 1


class CorruptRecordException(BrokerResponseError):
    errno = 2


class UnknownTopicOrPartitionError(BrokerResponseError):
    errno = 3


class InvalidFetchRequestError(BrokerResponseError):
    errno = 4


class LeaderNotAvailableError(BrokerResponseError):
    errno = 5


class NotLeaderForPartitionError(BrokerResponseError):
    errno = 6


class RequestTimedOutError(BrokerResponseError):
    errno = 7


class BrokerNotAvailableError(BrokerResponseError):
    errno = 8


class ReplicaNotAvailableError(BrokerResponseError):
    errno = 9


class MessageSizeTooLargeError(BrokerResponseError):
    errno = 10


class StaleControllerEpochError(BrokerResponseError):
    errno = 11


class OffsetMetadataTooLargeError(BrokerResponseError):
    errno = 12


class StaleLeaderEpochCodeError(BrokerResponseError):
    errno = 13


class GroupLoadInProgressError(BrokerResponseError):
    errno = 14


class GroupCoordinatorNotAvailableError(BrokerResponseError):
    errno = 15


class NotCoordinatorForGroupError(BrokerResponseError):
    errno = 16


class InvalidTopicError(BrokerResponseError):
    errno = 17


class RecordListTooLargeError(BrokerResponseError):
    errno = 18


class NotEnoughReplicasError(BrokerResponseError):
    errno = 19


class NotEnoughReplicasAfterAppendError(BrokerResponseError):
    errno = 20


class InvalidRequiredAcksError(BrokerResponseError):
    errno = 21


class IllegalGenerationError(BrokerResponseError):
    errno = 22


class InconsistentGroupProtocolError(BrokerResponseError):
    errno = 23


class InvalidGroupIdError(BrokerResponseError):
    errno = 24


class UnknownMemberIdError(BrokerResponseError):
    errno = 25


class InvalidSessionTimeoutError(BrokerResponseError):
    errno = 26


class RebalanceInProgressError(BrokerResponseError):
    errno = 27


class InvalidCommitOffsetSizeError(BrokerResponseError):
    errno = 28


class TopicAuthorizationFailedError(BrokerResponseError):
    errno = 29


class GroupAuthorizationFailedError(BrokerResponseError):
    errno = 30


class ClusterAuthorizationFailedError(BrokerResponseError):
    errno = 31


class InvalidTimestampError(BrokerResponseError):
    errno = 32


class UnsupportedSaslMechanismError(BrokerResponseError):
    errno = 33


class IllegalSaslStateError(BrokerResponseError):
    errno = 34


class UnsupportedVersionError(BrokerResponseError):
    errno = 35


class TopicAlreadyExistsError(BrokerResponseError):
    errno = 36


class InvalidPartitionsError(BrokerResponseError):
    errno = 37


class InvalidReplicationFactorError(BrokerResponseError):
    errno = 38


class InvalidReplicationAssignmentError(BrokerResponseError):
    errno = 39


class InvalidConfigurationError(BrokerResponseError):
    errno = 40


class NotControllerError(BrokerResponseError):
    errno = 41


class InvalidRequestError(BrokerResponseError):
    errno = 42


class UnsupportedForMessageFormatError(BrokerResponseError):
    errno = 43


class PolicyViolationError(BrokerResponseError):
    errno = 44


class OutOfOrderSequenceNumber(BrokerResponseError):
    errno = 45


class DuplicateSequenceNumber(BrokerResponseError):
    errno = 46


class InvalidProducerEpoch(BrokerResponseError):
    errno = 47


class InvalidTxnState(BrokerResponseError):
    errno = 48


class InvalidProducerIdMapping(BrokerResponseError):
    errno = 49


class InvalidTransactionTimeout(BrokerResponseError):
    errno = 50


class ConcurrentTransactions(BrokerResponseError):
    errno = 51


class TransactionCoordinatorFenced(BrokerResponseError):
    errno = 52


class TransactionalIdAuthorizationFailed(BrokerResponseError):
    errno = 53


class SecurityDisabled(BrokerResponseError):
    errno = 54


class OperationNotAttempted(BrokerResponseError):
    errno = 55


class KafkaStorageError(BrokerResponseError):
    errno = 56


class LogDirNotFound(BrokerResponseError):
    errno = 57


class SaslAuthenticationFailed(BrokerResponseError):
    errno = 58


class UnknownProducerId(BrokerResponseError):
    errno = 59


class ReassignmentInProgress(BrokerResponseError):
    errno = 60


class DelegationTokenAuthDisabled(BrokerResponseError):
    errno = 61


class DelegationTokenNotFound(BrokerResponseError):
    errno = 62


class DelegationTokenOwnerMismatch(BrokerResponseError):
    errno = 63


class DelegationTokenRequestNotAllowed(BrokerResponseError):
    errno = 64


class DelegationTokenAuthorizationFailed(BrokerResponseError):
    errno = 65


class DelegationTokenExpired(BrokerResponseError):
    errno = 66


class InvalidPrincipalType(BrokerResponseError):
    errno = 67


class NonEmptyGroup(BrokerResponseError):
    errno = 68


class GroupIdNotFound(BrokerResponseError):
    errno = 69


class FetchSessionIdNotFound(BrokerResponseError):
    errno = 70


class InvalidFetchSessionEpoch(BrokerResponseError):
    errno = 71


class ListenerNotFound(BrokerResponseError):
    errno = 72


class MemberIdRequired(BrokerResponseError):
    errno = 79


class FencedInstanceIdError(BrokerResponseError):
    """Another consumer has taken the `group_instance_id`. aiokafka 0.14 has no class for this code (#1186)."""

    errno = 82


InvalidMessageError = CorruptRecordException
CoordinatorLoadInProgressError = GroupLoadInProgressError
CoordinatorNotAvailableError = GroupCoordinatorNotAvailableError
NotCoordinatorError = NotCoordinatorForGroupError

kafka_errors: dict[int, type[BrokerResponseError]] = {kind.errno: kind for kind in BrokerResponseError.__subclasses__()}
"""Error code -> exception."""


def for_code(error_code: int) -> type[BrokerResponseError]:
    """The exception of a code; UnknownError if aiokafka has none for it."""
    return kafka_errors.get(error_code, UnknownError)


_BY_KIND: tuple[tuple[type[StrandlineError], type[Exception]], ...] = (
    (errors.BufferFull, KafkaTimeoutError),
    (errors.RecordTooLarge, MessageSizeTooLargeError),
    (errors.NoBrokersAvailable, KafkaConnectionError),
    (errors.UnknownTopic, UnknownTopicOrPartitionError),
    (errors.DeliveryTimeout, KafkaTimeoutError),
    (errors.RequestTimeout, KafkaTimeoutError),
    (errors.ProducerFenced, ProducerFenced),
    (errors.TransactionOutcomeUnknown, KafkaTimeoutError),
    (errors.CorruptRecords, CorruptRecordException),
    (errors.CommitFailed, CommitFailedError),
    (errors.UsageError, IllegalArgumentError),
)
"""Class of an error of this client -> aiokafka's exception for it. The first row whose class matches applies."""


def translated(error: StrandlineError, *, closed: type[Exception] = ProducerClosed, position: int = -1) -> Exception:
    """The exception of aiokafka for an error of this client, which becomes its `__cause__`. `closed`: the exception for
    ClientClosed. `position`: that of the partition that the error is about; -1 if it has none."""
    found = _translated(error, closed, position)
    found.__cause__ = error
    return found


def _translated(error: StrandlineError, closed: type[Exception], position: int) -> Exception:
    if isinstance(error, errors.ClientClosed):
        return closed(str(error))
    if isinstance(error, errors.TransactionAbortable) and isinstance(error.__cause__, StrandlineError):
        error = error.__cause__  # aiokafka raises the error because of which the transaction failed.
    if isinstance(error, (errors.OffsetOutOfRange, errors.LogTruncated, errors.TopicRecreated)):
        tp = TopicPartition(error.topic or "", error.partition or 0)
        return NoOffsetForPartitionError(tp) if position < 0 else OffsetOutOfRangeError({tp: position})
    for kind, theirs in _BY_KIND:
        if isinstance(error, kind):
            return theirs(str(error))
    code = getattr(error, "code", None)
    if isinstance(error, errors.AuthenticationFailed) and code is None:
        return AuthenticationFailedError(str(error))  # TLS has no codes.
    found: Exception = KafkaError(str(error)) if code is None else for_code(int(code))(str(error))
    return found


__all__ = [
    "AuthenticationFailedError",
    "AuthenticationMethodNotSupported",
    "BrokerNotAvailableError",
    "BrokerResponseError",
    "Cancelled",
    "ClusterAuthorizationFailedError",
    "CommitFailedError",
    "ConcurrentTransactions",
    "ConsumerStoppedError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorrelationIdError",
    "CorruptRecordException",
    "DelegationTokenAuthDisabled",
    "DelegationTokenAuthorizationFailed",
    "DelegationTokenExpired",
    "DelegationTokenNotFound",
    "DelegationTokenOwnerMismatch",
    "DelegationTokenRequestNotAllowed",
    "DuplicateSequenceNumber",
    "FencedInstanceIdError",
    "FetchSessionIdNotFound",
    "GroupAuthorizationFailedError",
    "GroupCoordinatorNotAvailableError",
    "GroupIdNotFound",
    "GroupLoadInProgressError",
    "IllegalArgumentError",
    "IllegalGenerationError",
    "IllegalOperation",
    "IllegalSaslStateError",
    "IllegalStateError",
    "IncompatibleBrokerVersion",
    "InconsistentGroupProtocolError",
    "InvalidCommitOffsetSizeError",
    "InvalidConfigurationError",
    "InvalidFetchRequestError",
    "InvalidFetchSessionEpoch",
    "InvalidGroupIdError",
    "InvalidMessageError",
    "InvalidPartitionsError",
    "InvalidPrincipalType",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidReplicationAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeout",
    "InvalidTxnState",
    "KafkaConfigurationError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaProtocolError",
    "KafkaStorageError",
    "KafkaTimeoutError",
    "KafkaUnavailableError",
    "LeaderNotAvailableError",
    "ListenerNotFound",
    "LogDirNotFound",
    "MemberIdRequired",
    "MessageSizeTooLargeError",
    "MetadataEmptyBrokerList",
    "NoBrokersAvailable",
    "NoError",
    "NoOffsetForPartitionError",
    "NodeNotReadyError",
    "NonEmptyGroup",
    "NotControllerError",
    "NotCoordinatorError",
    "NotCoordinatorForGroupError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderForPartitionError",
    "OffsetMetadataTooLargeError",
    "OffsetOutOfRangeError",
    "OperationNotAttempted",
    "OutOfOrderSequenceNumber",
    "PolicyViolationError",
    "ProducerClosed",
    "ProducerFenced",
    "QuotaViolationError",
    "ReassignmentInProgress",
    "RebalanceInProgressError",
    "RecordListTooLargeError",
    "RecordTooLargeError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "SaslAuthenticationFailed",
    "SecurityDisabled",
    "StaleControllerEpochError",
    "StaleLeaderEpochCodeError",
    "StaleMetadata",
    "TooManyInFlightRequests",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TransactionCoordinatorFenced",
    "TransactionalIdAuthorizationFailed",
    "UnknownError",
    "UnknownMemberIdError",
    "UnknownProducerId",
    "UnknownTopicOrPartitionError",
    "UnrecognizedBrokerVersion",
    "UnsupportedByStrandline",
    "UnsupportedCodecError",
    "UnsupportedForMessageFormatError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
    "for_code",
    "kafka_errors",
]
