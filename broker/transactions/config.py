"""The settings of the transaction coordinator, named after Kafka's keys. The keys themselves, with their meanings and ranges,
are in `controller/metadata/transaction_keys.py`."""

from __future__ import annotations

from dataclasses import dataclass

from strandline.broker.coordination.topics import InternalTopic
from strandline.controller.metadata.internal_topics import TRANSACTION_STATE_TOPIC


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """The defaults are those of the keys, and Kafka's."""

    transaction_state_log_num_partitions: int = 50
    transaction_state_log_replication_factor: int = 3
    transaction_state_log_min_isr: int = 2
    transaction_state_log_segment_bytes: int = 104857600
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000

    @property
    def state_topic(self) -> InternalTopic:
        """The settings with which `__transaction_state` is created."""
        configs = {
            "min.insync.replicas": str(self.transaction_state_log_min_isr),
            "unclean.leader.election.enable": "false",
        }
        return InternalTopic(
            TRANSACTION_STATE_TOPIC,
            self.transaction_state_log_num_partitions,
            self.transaction_state_log_replication_factor,
            self.transaction_state_log_segment_bytes,
            "uncompressed",
            "transaction.state.log.replication.factor",
            tuple(configs.items()),
        )
