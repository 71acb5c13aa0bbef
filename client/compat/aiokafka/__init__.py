"""aiokafka 0.14 on top of this client (`strandline.compat.aiokafka`): a port is a change of imports.

    from strandline.compat.aiokafka import AIOKafkaConsumer, AIOKafkaProducer     # instead of: from aiokafka import ...

Classes, arguments, structs and exceptions are aiokafka's. A SASL mechanism or an assignor that has no counterpart here raises
UnsupportedByStrandline, with the name of the option and an alternative. The modules producer.py and consumer.py list the intended
differences.

options.py    aiokafka's options: what becomes of each
errors.py structs.py abc.py helpers.py partitioner.py assignors.py      names that programs import
producer.py batch.py                                                    AIOKafkaProducer
consumer.py reader.py listener.py                                       AIOKafkaConsumer
"""

from strandline.client.compat.aiokafka.abc import ConsumerRebalanceListener
from strandline.client.compat.aiokafka.consumer import AIOKafkaConsumer
from strandline.client.compat.aiokafka.errors import ConsumerStoppedError, IllegalOperation, UnsupportedByStrandline
from strandline.client.compat.aiokafka.producer import AIOKafkaProducer
from strandline.client.compat.aiokafka.structs import ConsumerRecord, OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

__all__ = [
    "AIOKafkaConsumer",
    "AIOKafkaProducer",
    "ConsumerRebalanceListener",
    "ConsumerRecord",
    "ConsumerStoppedError",
    "IllegalOperation",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "TopicPartition",
    "UnsupportedByStrandline",
]
