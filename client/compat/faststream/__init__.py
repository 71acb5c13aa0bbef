"""FastStream 0.7 on top of this client (`strandline.compat.faststream`): `faststream.kafka`, with another broker object.

    from strandline.compat.faststream import KafkaBroker     # instead of: from faststream.kafka import KafkaBroker

`faststream.kafka` uses aiokafka, and this client has aiokafka's interface (`strandline.compat.aiokafka`). So FastStream's
subscribers, publishers, routers, middlewares, acknowledgements and test broker are used unchanged, and only the clients below
them are replaced. FastStream and aiokafka must be installed (`pip install "faststream[kafka]"`); aiokafka opens no connection.

broker.py      KafkaBroker: constructs the clients
consumer.py    the consumer, with what FastStream uses of aiokafka's consumer besides its public interface
"""

from strandline.client.compat.faststream.broker import KafkaBroker

__all__ = ["KafkaBroker"]
