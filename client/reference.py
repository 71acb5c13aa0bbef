"""docs/client.md, generated from the code of the client: `python -m strandline.client.reference > docs/client.md`.

Options, signatures, docstrings and errors are those of the code, so the page cannot contradict it; a test compares the two. The
facts that the code does not contain (where to begin, what to do about an error, what differs from aiokafka) are text in this
module.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from strandline import client
from strandline.client import errors
from strandline.client.option_docs import options_table
from strandline.client.options import ALIASES, AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions, table_of
from strandline.client.table.options import TableOptions

_INTRODUCTION = """\
# The Python client

Generated from the code by `python -m strandline.client.reference`; do not edit.

`Producer`, `Consumer`, `Table` and `Admin` are for asyncio. They, what they take and return, and all errors are imported from
`strandline`. They speak Strandline's own protocol: Kafka's clients do not reach a Strandline cluster, and these do not reach
Kafka's brokers.

```python
import asyncio

from strandline import Admin, Consumer, NewTopic, Producer, StrandlineError


async def main() -> None:
    async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        await admin.create_topics([NewTopic("orders", partitions=6, replication_factor=3)])

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        receipt = await producer.send("orders", b"2 tea", key=b"alice")  # handed over
        where = await receipt  # acknowledged
        print(where.partition, where.offset)

    async with Consumer("orders", bootstrap_servers="127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            print(record.timestamp, record.key, record.value)
            break


try:
    asyncio.run(main())
except StrandlineError as e:
    print(e)
```

- `async with` starts and stops a client. Without it: `await client.start()`, and in the end `await client.stop()`.
- A client belongs to the event loop in which it was started. Only that loop's thread may call it.
- Keys and values are bytes or None, unless there is a serializer or a deserializer.
- For type checkers, a client is `Producer[K, V]` or `Consumer[K, V]`: K and V are what the serializers take, or the deserializers
  return, and bytes without one. So `Consumer("orders", value_deserializer=bytes.decode)` returns `ConsumerRecord[bytes, str]`. A
  record may have no key, so `record.key` is `K | None`. `record.value` is `V`, although a tombstone has None: a program that reads
  a compacted topic says so, `Consumer[bytes, str | None]("prices", value_deserializer=bytes.decode)`. A lambda does not say what it
  takes: `Producer[bytes, dict[str, int]](value_serializer=lambda value: ...)`.
- A receipt is awaitable, but no future. For several: `await asyncio.gather(*receipts)`, or `await producer.flush()`. Where a
  future is needed: `asyncio.ensure_future(receipt)`. For a callback: `receipt.on_delivery(callback)`, and the event loop calls
  `callback(metadata, error)`; one of the two is None.
- The records of one producer to one partition are in the log in the order of the calls. Each is in the log once, also when a request is
  sent again (idempotence is the default).
- Every wait has a bound; an option or an argument says which.

Options are keyword arguments. `config={"linger.ms": "5"}` takes Kafka's names and values as a properties file has them; if an
option is in both, the keyword argument counts. An unknown name is a TypeError that names the nearest known one, a wrong value a
UsageError that says what is accepted. `help(Producer)` shows the same options as this page.
"""

_TO_DO: Mapping[str, str] = {
    "StrandlineError": "Catch it where every error of this package is handled alike; `e.retriable` says whether the same call may "
    "succeed later.",
    "UsageError": "Correct the call or the option that the sentence names.",
    "BufferFull": "Use `await producer.send(...)`, which waits for room, or `await producer.wait_for_room()`; or raise `buffer_memory`.",
    "RecordTooLarge": "Send less in one record, or raise `max_request_size`, and the topic's `max.message.bytes` with it.",
    "ClientClosed": "Use the client inside `async with`. A receipt that raises this says whether its record may be in the log.",
    "ClientError": "Read `topic`, `partition`, `broker_id`, `api`, `attempts`, `elapsed_ms` and `code`: those that are known are set.",
    "NoBrokersAvailable": "Check `bootstrap_servers`, and whether the brokers run (`strandline health --cluster`). If bootstrap works "
    "and this comes later, check the brokers' `advertised.listeners`.",
    "UnknownTopic": 'Create the topic (brokers do not create topics on their own), or set `on_missing_topic="wait"`.',
    "RequestFailed": "Look at `e.code` ([docs/protocol.md](protocol.md) lists the codes). Call again if `e.retriable`.",
    "AuthenticationFailed": "Correct the credentials or the certificate that the client was given; the message says which end refused what. "
    "The same client works again once the cluster accepts its credentials.",
    "AuthorizationFailed": "Have an administrator grant the right (`strandline acl add`); `strandline acl check` says which rule decides.",
    "TopicAuthorizationFailed": "Have the right on the topic granted: READ to consume, WRITE to produce. A consumer goes on with its other topics, and reads "
    "this one when the right is granted.",
    "GroupAuthorizationFailed": "Have READ on the group granted.",
    "TransactionalIdAuthorizationFailed": "Have WRITE on the transactional id or the producer name granted.",
    "ClusterAuthorizationFailed": "Have the right on the cluster granted.",
    "DeliveryNotAuthorized": "Have WRITE on the topic granted. Then send the record again; the producer goes on with other topics.",
    "GroupMembershipNotAuthorized": "Have READ on the group granted. Then start another consumer.",
    "RequestTimeout": "Call again, or with a longer `timeout_ms`. A change that was sent may have been made, or may still be made: look before repeating it.",
    "DeliveryFailed": "Look at `e.code` and the message, correct the cause, and send the record again. If `e.is_invalid_record` is "
    "False, send it again as it is. The producer continues with other records.",
    "DeliveryTimeout": "Find out whether the record is in the log before you send it again, or it may be there twice; a named producer "
    "can ask (`written`). Or raise `delivery_timeout_ms`.",
    "OffsetConflict": "Read up to `e.log_end_offset`, decide again, and send with that as `expect_offset`.",
    "TokenFenced": "Stop: the program with the higher token has taken over. To take over again, get a token above `e.highest_token`.",
    "ProducerFenced": "Stop: the newer producer has taken over. If there is none, and the message says that a transaction took too "
    "long, start a new producer.",
    "TransactionAbortable": "Abort the transaction (`producer.transaction()` has done it), and run it again with the same producer.",
    "TransactionTimedOut": "Abort the transaction; make the next one shorter, or raise `transaction_timeout_ms`.",
    "TransactionFailed": "Correct what the message names, and start over with a new producer.",
    "TransactionOutcomeUnknown": "Call `commit_transaction` (or `abort_transaction`) again; or start over with a new producer of the same "
    "id, and look whether the records are there.",
    "OffsetOutOfRange": "`seek` to an offset in the log (`beginning_offsets`, `end_offsets`), or choose another `auto_offset_reset`.",
    "LogTruncated": "Undo what was derived from the records at and above `e.diverging_offset`, and `seek` there.",
    "TopicRecreated": "`seek` to read the new topic; what was read is of the old one.",
    "CorruptRecords": "The position stays before the batch: repair the replica, or accept the gap: `seek` to `e.last_offset + 1`, or set "
    '`on_corrupt_batch="skip"`.',
    "CommitFailed": "Nothing: the records after the last commit are read again by the partition's new owner, so processing them twice "
    "must do no harm. If the message names `max_poll_interval_ms`, raise it, or ask for fewer records at a time.",
    "GroupMembershipFailed": "Correct what the message names, and start another consumer; or `subscribe` to something else.",
    "RebalanceCallbackFailed": "Correct the callback: `e.__cause__` is its error.",
    "HandlerFailed": "Correct the handler, or what it needs: `e.__cause__` is its error, `e.offset` the record. Or choose `retry`, `dlq` or "
    '`on_failure="skip"`.',
    "VersionConflict": "Decide again: `e.actual` and `e.value` are what the key has. `Table.update` does it in a loop.",
}
"""The advice to a program or a person about each error."""

_SECURE = """
## Secure clusters

A client of a cluster with TLS and users ([security.md](security.md)) needs the listener's protocol, the authority that it trusts, and
its own credentials. All clients take the same options, with aiokafka's names:

<!-- not run: it needs a secure cluster -->
```python
producer = Producer(
    bootstrap_servers="b1:9093,b2:9093",
    security_protocol="SASL_SSL",
    ssl_cafile="ca.pem",
    sasl_plain_username="alice",
    sasl_plain_password=os.environ["ALICES_PASSWORD"],
)
```

Or they read a file of Kafka's client properties, which Kafka's tools and `strandline --client-config` read, too:

<!-- not run: it needs a secure cluster -->
```python
producer = Producer(bootstrap_servers="b1:9093", security=ClientSecurity.from_file("client.properties"))
```

```ini
security.protocol=SASL_SSL
sasl.mechanism=SCRAM-SHA-512
sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";
ssl.truststore.type=PEM
ssl.truststore.location=ca.pem
```

- Key stores are PEM files; `ssl.keystore.location` has the key and the certificate with its chain. A relative path is relative to
  the file that names it. Keys of other things are ignored. A file with a secret that others may read is noted in the log.
- With `security_protocol="SSL"` the certificate in `ssl_certfile` says who the client is. With OAUTHBEARER a token does
  (`sasl_oauth_token_provider`), which is asked for again at each authentication.
- Certificates that change on the disk are read again for the next connection. A connection whose session has an end authenticates
  again by itself (KIP-368).
- **A refused client** raises AuthenticationFailed at once: from `start`, and if its credential was withdrawn meanwhile, from its calls
  as soon as its connections end. Each call tries again, so the client works again when the credential does.
- **A missing right** fails what needs it, and nothing else: a record to a topic without WRITE fails, and the producer goes on with other
  topics. A consumer raises TopicAuthorizationFailed for a topic without READ about once a second, returns records of its other topics
  between, and reads the topic when the right is granted.
- Secrets are in no repr, log or error.

`Admin` describes and changes access rules (`describe_acls`, `create_acls`, `delete_acls`) and the passwords of users
(`upsert_scram_credentials`, which salts the password, so that it never leaves the process).
"""

_NEAREST = """
## Reading from the nearest replica

By default a consumer reads each partition from its leader, which may run in another availability zone, where each byte costs money
and time. With racks it reads from a replica nearby (KIP-392):

1. Each broker has its rack in its configuration, and the selector: `broker.rack=zone-a` and
   `replica.selector.class=rack-aware`. Topics that are created then have their replicas spread over the racks.
2. The consumer names its own: `Consumer("orders", client_rack="zone-a")`, or `strandline consume orders --client-rack zone-a`.

The consumer asks the leader first. If the leader runs in another rack, it names an in-sync replica in the consumer's rack that
has the records from the consumer's position on; of several, the one that is most caught up. The consumer reads from that replica
until `metadata_max_age_ms` has passed, or newer metadata says that the replica has left the ISR or the cluster, or until it answers
with an error or cannot be reached. Then it asks the leader again. If there is no replica in its rack, it reads from the leader.

- A follower returns committed records only, as a leader does. A record is visible there some milliseconds later than at the leader: the
  follower has to learn that it is committed. A follower that has readers is notified at once.
- A position that a follower does not have is no error: the consumer asks the leader, and only the leader can say that a position is
  out of range, or that records were lost. Offsets are looked up at leaders, too.
- `Consumer.metrics()` has `preferred_read_replica` for each partition (-1: the leader) and `fetched_bytes_from_followers`.
  Brokers count `strandline_preferred_replica_nominations_total` and `strandline_bytesout_as_follower_total`
  ([metrics.md](metrics.md)).

A consumer without `client_rack` reads from leaders, and clusters without racks do no work for this.
"""

_GROUPS = """
## Consumer groups

Consumers with the same `group_id` share the partitions of the topics that they subscribe to. The coordinator, a broker, assigns the
partitions (KIP-848), and stores how far the group has read.

```python
async def bill() -> None:
    async with Consumer("orders", group_id="billing", auto_offset_reset="earliest") as consumer:
        async for record in consumer:
            await charge(record)  # finished when the loop asks for the next record
```

**What is committed.** With `enable_auto_commit` (the default) the consumer commits what the program has *finished*: the records
that a call has returned, when the program asks for more; those of `async for` one by one. It commits every
`auto_commit_interval_ms`, before a partition goes to another member, and in `stop` (not what was in work if an exception stops
the consumer). So a record is processed at least once, and twice only after a crash, or if the member was removed from the
group. A program that hands records on to tasks of its own commits by itself: `enable_auto_commit=False`, and
`commit({partition: offset + 1})` for what its tasks have finished.

**Rebalances.** Only the partitions that move stop. A partition goes when the program asks for more records: by then it has finished
what it got, and the next owner begins behind it. After that no record of the partition is returned, and its commits fail
(CommitFailed). A program that does not ask within four fifths of `rebalance_timeout_ms` loses the partition unfinished.
`subscribe` takes callbacks; `on_revoked` may wait for the program's own tasks.

**A program that takes long.** Heartbeats run on a thread (`heartbeat_thread`), also while the program blocks the event loop. What limits
it is `max_poll_interval_ms`: a member that has not asked for records for so long leaves the group, and its partitions go to others. It
joins again when it asks. `metrics()["group"]["event_loop_lag_ms"]` shows a blocked loop.

**When the coordinator cannot be reached**, the consumer goes on until its session may be over: the session time-out that the
coordinator has named, counted from the last heartbeat that succeeded. Then others may have its partitions, so it returns no records
(the state "suspended") until a heartbeat succeeds.

**Static members** (`group_instance_id`) get the same partitions again if they return within the session time-out: no rebalance for a
restart.

**What goes wrong** is in `health()["group"]`, and `on_state_change` is called for each change. GroupMembershipFailed is raised by
every call that returns records if the coordinator rejects the consumer for good, or a background task of it was cancelled. `Admin` has
the calls of an operator: `list_groups`, `describe_groups`, `group_lag`, `alter_group_offsets`, and so on.
"""

_SYNC = """
## Without asyncio

`strandline.sync` has `Producer`, `Consumer`, `Table` and `Admin` for programs without an event loop: the same names, arguments, results and
errors, without `await`. Records, errors and all other names come from `strandline`.

```python
from strandline.sync import Consumer, Producer

with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
    receipt = producer.send("orders", b"2 tea", key=b"alice")  # handed over
    print(receipt.result().offset)  # acknowledged

with Consumer("orders", bootstrap_servers="127.0.0.1:9092", group_id="billing") as consumer:
    for record in consumer:
        print(record.value)  # finished when the loop asks for the next record
```

- Each client has an event loop on a thread of its own, where the client for asyncio does the work. So heartbeats and commits go on
  while the program works.
- Any number of threads may call a producer. A consumer is called by one thread at a time; `stop`, `health` and `metrics` may come from
  any.
- Callbacks run on a thread of the client, one after the other, and may call it.
- A client does not survive a fork: in the child, its calls raise UsageError. Create one there.
- Ctrl-C ends a call that waits.
"""

_CONDITIONAL = """
## Conditional appends

`send(..., expect_offset=n)` appends a record only if it gets offset `n` of its partition. So programs that share a partition can
agree on who writes next, without anything else that they share: the leader compares the offset with the log end and appends in one
step. [examples/conditional/](../examples/conditional/README.md) has a lock and an event store.

```python
async def append(producer: Producer, topic: str, decide: Callable[[int], Awaitable[bytes]], end: int) -> int:
    while True:
        event = await decide(end)  # reads the records below `end`
        try:
            return (await producer.send_and_wait(topic, event, partition=0, expect_offset=end)).offset
        except OffsetConflict as e:
            end = e.log_end_offset
```

- A retry is recognised by its producer id and sequence number: an append that had succeeded is a success, also at the next leader. That
  is why the producer must be idempotent (the default).
- OffsetConflict means that the record is not in the log. It is raised when the records below `log_end_offset` are committed, so a consumer
  can read them. If `log_end_offset` is lower than `n`, records are missing. The producer then looks up the leader and asks again before
  it raises, because a leader that was deposed and does not know it yet may have answered. A deposed leader and brokers that do not know
  it yet can still be wrong twice: try again before you conclude that a record which you have read is gone.
- DeliveryTimeout means that it is not known whether the record is in the log, and it may still get there. Send it again with the same
  `n`: at most one of the two is appended. After a conflict read the record at `n`; it may be yours.
- Each such record has a batch of its own. Records that the same producer sends before and after it keep their order. If several of
  them are sent without waiting, each is judged by itself: the second may succeed although the first was rejected.
- `send_many(..., expect_offset=n)` appends all its values in one batch from offset `n` on, or none of them.
- Offsets begin at 0 again when a topic is deleted and recreated.

### Fencing tokens

A program that holds a lock or a lease may be paused for so long that another one gets it. A *fencing token* is a number that the
lock service raises for each holder; a partition remembers the highest token that a record has carried, and rejects records with a
lower one:

```python
async def take_over(cluster: str, topic: str, token: int, first: bytes) -> Producer:
    producer = Producer(bootstrap_servers=cluster, fencing_token=token)
    await producer.start()
    await producer.send_and_wait(topic, first, partition=0)  # from now on, every record with a lower token raises TokenFenced
    return producer
```

- The token is that of the producer (`fencing_token`), or of one call (`send`, `send_many`). It is a whole number from 0 to 2^62 - 1. The
  offset of a record by which a lock was taken is one.
- Once a record with a token is acknowledged, no record with a lower one is written, whichever broker leads: in the log, none follows it.
  What the earlier holder wrote lies below it. So a new holder that has to know it sends a first record, and then reads up to that.
- TokenFenced is final: the higher token is committed. A retry of a record that was written is a success, also if the token has been
  raised since.
- Records without a token are not affected, so all writers of the partition must use tokens.
- A raised token takes one offset, right before the record that raises it, as the markers of Kafka's transactions do. Consumers step over
  it, and `position()` counts it. With `expect_offset=n` the record that raises the token gets offset `n + 1`.
- The token is part of the log. It is lost with the record that raised it if that was not acknowledged and another broker becomes the
  leader, and it stays when the records are deleted or compacted. An unclean election may lose it, as it may lose records.
"""

_AIOKAFKA = """
## Differences from aiokafka

Compared with aiokafka 0.14. Options and calls that both have under one name mean the same, and have the same default, unless a row
says otherwise.

| | aiokafka | here |
|---|---|---|
| brokers | Apache Kafka | Strandline; the protocol is another one |
| class names | `AIOKafkaProducer`, `AIOKafkaConsumer`, `AIOKafkaAdminClient` | `Producer`, `Consumer`, `Admin` |
| group protocol | the classic one: members assign partitions, and all stop for a rebalance | the newer one (KIP-848): the coordinator assigns, and only what moves stops |
| `session_timeout_ms`, `heartbeat_interval_ms`, `partition_assignment_strategy` | options of each member | the brokers decide; `group_remote_assignor` |
| heartbeats while the program blocks the event loop | stop | go on, on a thread of their own (`heartbeat_thread`) |
| automatic commits | what `getmany` has returned, finished or not | what is finished: records count as such when the program asks for more |
| `max_poll_interval_ms` | with `getone`, each record counts | the same with `getone` and `async for` |
| partitions that are to go | the listener is called at once, also while records are in work | they go when the program asks for more records, so that it has finished what it got |
| `commit` after the partitions were lost | `CommitFailedError`, `IllegalStateError` | `CommitFailed`, which says why |
| a member that the coordinator refuses (`FENCED_INSTANCE_ID`) | tries again for ever | `GroupMembershipFailed`, from every call that returns records |
| `committed` | an offset, or None | the same; `committed_offsets` has the metadata, too |
| transactions | `transactional_id`, `begin_transaction`, `transaction` | the same calls; without a transaction, `send` is an error; `send_offsets_to_transaction` takes the consumer, so that a member that has lost its partitions is refused (KIP-447) |
| a transaction that cannot be committed | any error; the program finds out whether to abort | `TransactionAbortable`; the others need a new producer |
| compression | `compression_type` | `compression_type` and `compression_level` |
| TLS and SASL | `security_protocol`, `ssl_context`, `sasl_*`; SCRAM, PLAIN, GSSAPI, OAUTHBEARER | the same names; `ssl_cafile` and others instead of a context, too; no GSSAPI |
| `api_version`, `connections_max_idle_ms`, `consumer_timeout_ms`, `exclude_internal_topics` | options | not accepted |
| `topics`, `last_stable_offset`, `last_poll_timestamp` | calls of the consumer | missing |
| default of `bootstrap_servers` and `client_id` | `localhost`, the library's name and version | `127.0.0.1:9092`, `strandline` |
| default of `acks` | `1` | `"all"` |
| default of `enable_idempotence` | `False` | on, with `acks="all"` |
| default of `request_timeout_ms` | 40,000 | 30,000 |
| how long a record may take | `request_timeout_ms` | `delivery_timeout_ms`, 120,000 |
| batch size | `max_batch_size` | `batch_size`; `max_batch_size` is accepted |
| `send` returns | a future | a `Receipt`: awaitable, with `done` (no call) and `result()`; callbacks by `on_delivery`, not for `asyncio.wait` |
| order of the last arguments of `send` | `timestamp_ms`, `headers` | `headers`, `timestamp_ms`: give them by name |
| value of `send` | may be left out | has to be given; None is a tombstone |
| when the buffer is full | `send` waits | `send` waits up to `max_block_ms`, `send_nowait` raises BufferFull |
| batches built by hand | `create_batch`, `send_batch` | `send_many`, `send_columns` |
| own partitioner | `partitioner` | the same; an error of it, or a partition that does not exist, is a UsageError |
| `stop` of a producer | waits until everything is sent | the same, at most `delivery_timeout_ms`, or a second after an exception; returns what was not delivered (`Undelivered`) |
| `assign` | a plain call | a coroutine: `await consumer.assign(...)` |
| `subscribe` | `topics=`, `pattern=`, `listener=` | names or a list of names: `subscribe(["a", "b"])`; `pattern=` and `listener=` in a group, or `on_assigned=`, `on_revoked=`, `on_lost=` |
| language of a `pattern` | Python's `re`, evaluated by the client | RE2, evaluated by the coordinator, for the whole name |
| `partitions_for_topic` | a plain call | a coroutine |
| `getone` | waits without bound | the same, or up to `timeout_ms` |
| `getmany` without `max_records` | the records of one fetch | whole batches, up to some 10,000 records |
| `auto_offset_reset` | "latest", "earliest", "none" | the same; "error" is another name of "none" |
| `ConsumerRecord` | `timestamp`, `timestamp_type`, `checksum`, `serialized_*_size` | `timestamp` (also `timestamp_ms`), `leader_epoch`; none of the rest |
| records that were read and are gone after an unclean election | not noticed | `LogTruncated` |
| a topic that was deleted and recreated | continues at the old offset | with `assign` by `auto_offset_reset`, and a warning in the log (`TopicRecreated` with "error"); with `subscribe`, the new topic from its beginning |
| a topic that does not exist | created, or waited for | `UnknownTopic`, or `on_missing_topic="wait"` |
| errors | `aiokafka.errors.KafkaError` and its subclasses | `StrandlineError` and its subclasses, above |
| records by column | - | `fetch_batches`, `arrow_batches` |
| admin client | `AIOKafkaAdminClient`, names of Kafka's requests | `Admin`: see above; another interface |
"""


def reference() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    parts += ["\n## Options of every client\n\n", *options_table(table_of(ClientOptions)), *_aliases()]
    parts += _client(client.Producer, ProducerOptions)
    parts += _client(client.Consumer, ConsumerOptions)
    parts += _client(client.Table, TableOptions)
    parts += _client(client.Admin, AdminOptions)
    parts += ["\n## What calls take and return\n\n", *_values()]
    parts += ["\n## Errors\n\n", *_errors()]
    return "".join([*parts, _SYNC, _GROUPS, _CONDITIONAL, _SECURE, _NEAREST, _AIOKAFKA])


def _aliases() -> Iterator[str]:
    names = ", ".join(f"`{other}` is `{ours}`" for other, ours in ALIASES.items())
    yield f"\nOther clients' names are accepted, too: {names}.\n"


def _client(kind: type[Any], options: type[ClientOptions]) -> Iterator[str]:
    yield f"\n## {kind.__name__}\n\n"
    common = {row.name for row in table_of(ClientOptions)}
    own = [row for row in table_of(options) if row.name not in common]
    if own:
        yield from options_table(own)
    else:
        yield "It has the options of every client and no others.\n"
    for name, member in calls_of(kind).items():
        yield f"\n### {kind.__name__}.{name}\n\n{_call(name, member)}"


def calls_of(kind: type[Any]) -> dict[str, Any]:
    """The public methods and properties of a client, by name: its own, then those of the classes from which it derives."""
    members = {name: member for base in reversed(kind.__mro__) for name, member in vars(base).items()}
    order = dict.fromkeys(name for base in kind.__mro__ for name in vars(base))
    return {
        name: members[name]
        for name in order
        if not name.startswith("_") and (inspect.isfunction(members[name]) or isinstance(members[name], property))
    }


def _call(name: str, member: Any) -> str:
    doc = "\n\n".join(map(_one_line, inspect.cleandoc(member.__doc__ or "").split("\n\n")))
    if isinstance(member, property):
        return f"```python\n{name}: {member.fget.__annotations__['return']}\n```\n\n{doc}\n"
    word = "async def" if inspect.iscoroutinefunction(member) else "def"
    return f"```python\n{word} {name}{signature(member)}\n```\n\n{doc}\n"


def _one_line(paragraph: str) -> str:
    """A paragraph of a docstring on one line, or each item of a list on a line of its own."""
    return re.sub(r"\n(?!- ) *", " ", paragraph)


def signature(function: Any) -> str:
    """The signature as in the definition of the function, without `self`; if it is long, with one parameter per line."""
    found = inspect.signature(function)
    parameters, is_keyword_only = [], False
    for parameter in list(found.parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            if not any(p.kind is p.VAR_POSITIONAL for p in found.parameters.values()):
                parameters.append("*")
        star = "*" if parameter.kind is parameter.VAR_POSITIONAL else ""
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}".replace("'", '"')
        parameters.append(f"{star}{parameter.name}: {parameter.annotation}{default}")
    line = f"({', '.join(parameters)}) -> {found.return_annotation}"
    if len(line) <= 100:
        return line
    return "(\n" + "".join(f"    {parameter},\n" for parameter in parameters) + f") -> {found.return_annotation}"


def _values() -> Iterator[str]:
    yield "| class | fields |\n|---|---|\n"
    for name in client.__all__:
        kind = getattr(client, name)
        if inspect.isclass(kind) and not issubclass(kind, Exception) and kind not in _CLIENTS and (fields := _fields(kind)):
            yield f"| `{name}` | {', '.join(f'`{field}`' for field in fields)} |\n"


_CLIENTS = (client.Producer, client.Consumer, client.Table, client.TableChanges, client.Admin, client.Receipt)


def _fields(kind: type[Any]) -> list[str]:
    own: Iterable[str] = ()
    for name in ("_fields", "__struct_fields__", "__dataclass_fields__"):
        own = own or getattr(kind, name, ())
    properties = [name for name, member in vars(kind).items() if isinstance(member, property)]
    return [name for name in (*own, *properties) if not name.startswith("_")]


def _errors() -> Iterator[str]:
    yield "Indented by what they derive from. `retriable`: the same call may succeed later.\n\n"
    yield "| error | retriable | what happened | what to do |\n|---|---|---|---|\n"
    yield from _error(errors.StrandlineError, 0)


def _error(kind: type[errors.StrandlineError], depth: int) -> Iterator[str]:
    retriable = "by `code`" if kind is errors.RequestFailed else "yes" if kind.retriable else "no"
    yield f"| {'&emsp;' * depth}`{kind.__name__}` | {retriable} | {_first_paragraph(kind)} | {_TO_DO[kind.__name__]} |\n"
    for below in kind.__subclasses__():
        if below.__name__ in client.__all__:
            yield from _error(below, depth + 1)


def _first_paragraph(kind: type[Any]) -> str:
    return re.split(r"\n\s*\n", inspect.cleandoc(kind.__doc__ or ""))[0].replace("\n", " ")


if __name__ == "__main__":
    sys.stdout.write(reference())
