"""The Kafka door: listeners on which the broker speaks Kafka's own protocol.

    codec.py, schemas.py   Kafka's encoding, and its messages (from `kio`)
    heads.py               the heads of its frames
    server.py              a listener, and the APIs that it advertises
    connection.py          a client: the order of its answers, its frames in and out
    call.py                one request, from Kafka's fields to ours and back
    apis.py                the table of APIs
    translations/          the fields of each API
    wrong_protocol.py      the error for clients of Strandline that connect here
    errors.py              our error codes, as Kafka's clients see them

The Kafka door translates, and decides nothing: requests reach the same handlers as those of Strandline's clients, through the
same authorization and quotas. Brokers and controllers speak msgpack with each other, and `protocol/` does not import the Kafka
door.
"""
