"""FastStream 0.7 on top of this client (`strandline.compat.faststream`): `faststream.kafka`, with another broker object.

    from strandline.compat.faststream import KafkaBroker     # instead of: from faststream.kafka import KafkaBroker

`faststream.kafka` stands on aiokafka, and this client has aiokafka's interface (`strandline.compat.aiokafka`). So there is no
broker of its own here: FastStream's subscribers, publishers, routers, middlewares, acknowledgements and test broker are used as
they are, and only the clients below them are others. FastStream and aiokafka have to be installed (`pip install
"faststream[kafka]"`); aiokafka makes no connection.

broker.py      KafkaBroker: makes the clients
consumer.py    the consumer, with what FastStream takes from aiokafka's besides its interface
"""

from strandline.client.compat.faststream.broker import KafkaBroker

__all__ = ["KafkaBroker"]
