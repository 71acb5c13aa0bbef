"""A model of one partition's log with Kafka's rules for idempotent producers, for tests of the client's cores."""

from __future__ import annotations

from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.producer_names import is_named
from strandline.protocol.records.batch import BatchHeader, check_crc, read_header
from strandline.protocol.records.reader import iter_records
from strandline.storage.log.producer_state import ProducerStates

SEQUENCES = 2**31


class ModelLog:
    """Remembers five batches per producer id, and answers an append as a broker would."""

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.batches: list[tuple[int, bytes]] = []
        self._producers: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        self.named = ProducerStates()
        """Row numbers: the log's own rules, because there is no second implementation of them."""

    def append(self, data: bytes) -> tuple[ErrorCode, int]:
        """Append the batch. Returns the error code and the base offset."""
        header = read_header(data)
        assert check_crc(data, 0, len(data)), "the client sent a batch with a wrong checksum"
        if is_named(header.producer_id):
            refused = self._check_rows(header)
            if refused is not None:
                return refused
        elif header.producer_id >= 0:
            refused = self._check_sequence(header)
            if refused is not None:
                return refused
        base = len(self.values)
        self.batches.append((base, bytes(data)))
        self.values += [record.value or b"" for record in iter_records(data)]
        return ErrorCode.NONE, base

    def end_transaction(self, producer_id: int, producer_epoch: int) -> None:
        """Append a marker of TV2: it has the producer's next epoch."""
        self._producers[producer_id] = (producer_epoch, [])

    def has(self, data: bytes) -> bool:
        """Whether the batch was appended before, as far as the log remembers."""
        header = read_header(data)
        epoch, recent = self._producers.get(header.producer_id, (-1, []))
        return header.producer_epoch == epoch and (header.base_sequence, header.last_sequence) in [each[:2] for each in recent]

    def _check_rows(self, header: BatchHeader) -> tuple[ErrorCode, int] | None:
        try:
            duplicate = self.named.check(header, {})
        except BrokerError as e:
            return e.code, -1
        if duplicate is not None:
            return ErrorCode.NONE, duplicate.first_offset
        self.named.update(header, len(self.values) + header.last_offset_delta)
        return None

    def _check_sequence(self, header: BatchHeader) -> tuple[ErrorCode, int] | None:
        epoch, recent = self._producers.get(header.producer_id, (-1, []))
        last = header.last_sequence
        if header.producer_epoch < epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH, -1
        if header.producer_epoch == epoch:
            for first, end, base in recent:
                if (first, end) == (header.base_sequence, last):
                    return ErrorCode.NONE, base
            if recent and header.base_sequence != (recent[-1][1] + 1) % SEQUENCES:
                if (recent[-1][1] - last) % SEQUENCES < SEQUENCES // 2:
                    return ErrorCode.DUPLICATE_SEQUENCE_NUMBER, -1
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        elif recent and header.base_sequence != 0:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        kept = recent if header.producer_epoch == epoch else []
        entry = (header.base_sequence, last, len(self.values))
        self._producers[header.producer_id] = (header.producer_epoch, [*kept, entry][-5:])
        return None
