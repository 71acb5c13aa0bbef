"""AlterClientQuotas and DescribeClientQuotas at the controller."""

from __future__ import annotations

import math
from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.security import (
    ANY_MATCH,
    DEFAULT_MATCH,
    EXACT_MATCH,
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    QuotaAlteration,
    QuotaEntityPart,
    QuotaFilterPart,
    QuotaOperation,
)

Entity = dict[str, str | None]
ALICE: Entity = {"user": "alice"}


def entry(entity: Entity, **values: float | None) -> QuotaAlteration:
    parts = [QuotaEntityPart(kind.replace("_", "-"), name) for kind, name in entity.items()]
    return QuotaAlteration(parts, [QuotaOperation(key, value) for key, value in values.items()])


def alter(world: ControllerWorld, *entries: QuotaAlteration, validate_only: bool = False) -> list[tuple[str, str | None]]:
    answer = world.call(apis.ALTER_CLIENT_QUOTAS, AlterClientQuotasRequest(list(entries), validate_only))
    assert [result.entity for result in answer.results] == [each.entity for each in entries]
    return [(ErrorCode(result.error_code).name, result.error_message) for result in answer.results]


def described(world: ControllerWorld, *filters: QuotaFilterPart, strict: bool = False) -> list[tuple[Entity, dict[str, float]]]:
    answer = world.call(apis.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest(list(filters), strict))
    return [
        ({part.entity_type: part.name for part in found.entity}, {value.key: value.value for value in found.values})
        for found in answer.entries
    ]


OK = ("NONE", None)


def test_quotas_are_set_changed_and_removed() -> None:
    world = ControllerWorld()
    assert alter(world, entry(ALICE, producer_byte_rate=1024, request_percentage=12.5)) == [OK]
    assert described(world) == [(ALICE, {"producer_byte_rate": 1024.0, "request_percentage": 12.5})]
    assert alter(world, entry(ALICE, producer_byte_rate=2048, request_percentage=None)) == [OK]
    assert world.image.client_quotas == {(("user", "alice"),): {"producer_byte_rate": 2048.0}}
    assert alter(world, entry(ALICE, producer_byte_rate=None)) == [OK]
    assert dict(world.image.client_quotas) == {}
    assert world.replayed() == world.image


def test_unchanged_quota_writes_no_record() -> None:
    world = ControllerWorld()
    alter(world, entry(ALICE, producer_byte_rate=1024))
    end = world.quorum.log_end_offset
    assert alter(world, entry(ALICE, producer_byte_rate=1024, consumer_byte_rate=None)) == [OK]
    assert alter(world, entry({"user": "bob"}, producer_byte_rate=None)) == [OK]
    assert alter(world, entry(ALICE, producer_byte_rate=1), validate_only=True) == [OK]
    assert world.quorum.log_end_offset == end


def test_the_order_of_the_parts_does_not_matter() -> None:
    world = ControllerWorld()
    alter(world, entry({"user": "alice", "client-id": None}, consumer_byte_rate=1))
    alter(world, entry({"client-id": None, "user": "alice"}, consumer_byte_rate=2))
    alter(world, entry({"ip": "0:0:0:0:0:0:0:1"}, connection_creation_rate=1))
    alter(world, entry({"ip": "::1"}, connection_creation_rate=2))
    assert world.image.client_quotas == {
        (("client-id", None), ("user", "alice")): {"consumer_byte_rate": 2.0},
        (("ip", "::1"),): {"connection_creation_rate": 2.0},
    }


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        (entry({}), "a quota needs an entity"),
        (entry({"group": "g"}), "there is no quota entity 'group'"),
        (entry({"user": ""}), "the user of a quota must not be empty"),
        (QuotaAlteration([QuotaEntityPart("user", "a"), QuotaEntityPart("user", None)], []), "has more than one user"),
        (entry({"ip": "10.0.0.1", "user": "a"}), "a quota of an ip cannot have a user or a client-id, too"),
        (entry({"ip": "example.com"}), "'example.com' is not an address"),
        (entry(ALICE, nonsense=1), "there is no quota 'nonsense': there are producer_byte_rate"),
        (entry(ALICE, nonsense=None), "there is no quota 'nonsense'"),
        (entry(ALICE, connection_creation_rate=1), "user alice cannot have the quota connection_creation_rate"),
        (entry({"ip": None}, producer_byte_rate=1), "ip <default> cannot have the quota producer_byte_rate"),
        (entry(ALICE, producer_byte_rate=0), "must be greater than 0, not 0"),
        (entry(ALICE, request_percentage=-1), "must be greater than 0"),
        (entry(ALICE, request_percentage=math.nan), "must be greater than 0"),
        (entry(ALICE, request_percentage=math.inf), "must be greater than 0"),
        (entry(ALICE, producer_byte_rate=1.5), "quota producer_byte_rate must be a whole number, not 1.5"),
        (entry(ALICE, consumer_byte_rate=2.0**63), "must not exceed 9223372036854775807"),
        (entry({"ip": None}, connection_creation_rate=2.0**31), "must not exceed 2147483647"),
        (
            QuotaAlteration([QuotaEntityPart("user", "a")], [QuotaOperation("request_percentage", 1.0)] * 2),
            "names request_percentage of user a twice",
        ),
        (entry({"user": "bob"}, producer_byte_rate=2), "names the entity user bob twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_entry_is_refused_alone_and_whole(refused: QuotaAlteration, words: str) -> None:
    """Its valid keys are not set either."""
    world = ControllerWorld()
    if all(part.entity_type != "ip" for part in refused.entity):
        refused.operations.insert(0, QuotaOperation("controller_mutation_rate", 5.0))
    good = entry({"user": "bob"}, producer_byte_rate=1)
    first, (code, message) = alter(world, good, refused)
    assert (first, code) == (OK, "INVALID_REQUEST")
    assert message is not None
    assert words in message
    assert described(world) == [({"user": "bob"}, {"producer_byte_rate": 1.0})]


def part(kind: str, *name: str | None) -> QuotaFilterPart:
    """A part of a quota filter. With a name: exactly this one; with None: the default; without: any."""
    if not name:
        return QuotaFilterPart(kind, ANY_MATCH)
    return QuotaFilterPart(kind, DEFAULT_MATCH if name[0] is None else EXACT_MATCH, name[0])


ENTITIES: list[Entity] = [
    {"client-id": None},
    {"client-id": None, "user": None},
    {"client-id": None, "user": "alice"},
    {"client-id": "app", "user": "alice"},
    {"ip": "::1"},
    {"user": None},
    {"user": "alice"},
]


@pytest.mark.parametrize(
    ("filters", "strict", "found"),
    [
        ([], False, [0, 1, 2, 3, 4, 5, 6]),
        ([], True, []),
        ([part("user", "alice")], False, [2, 3, 6]),
        ([part("user", "alice")], True, [6]),
        ([part("user", None)], False, [1, 5]),
        ([part("user")], True, [5, 6]),
        ([part("user"), part("client-id")], False, [1, 2, 3]),
        ([part("user", "alice"), part("client-id", "app")], False, [3]),
        ([part("ip", "0:0:0:0:0:0:0:1")], False, [4]),
        ([part("ip", "10.0.0.1")], False, []),
    ],
)
def test_filters_select_entities_as_kafka_does(filters: list[QuotaFilterPart], strict: bool, found: list[int]) -> None:
    world = ControllerWorld()
    rate = {"ip": "connection_creation_rate"}
    alter(world, *[entry(entity, **{rate.get(next(iter(entity)), "producer_byte_rate"): 1.0}) for entity in ENTITIES])
    assert [entity for entity, _ in described(world, *filters, strict=strict)] == [ENTITIES[index] for index in found]


@pytest.mark.parametrize(
    ("filters", "code"),
    [
        ([part("group", "g")], "UNSUPPORTED_VERSION"),
        ([part("user", "a"), part("user")], "INVALID_REQUEST"),
        ([part("ip"), part("user")], "INVALID_REQUEST"),
        ([QuotaFilterPart("user", EXACT_MATCH)], "INVALID_REQUEST"),
        ([QuotaFilterPart("user", DEFAULT_MATCH, "a")], "INVALID_REQUEST"),
        ([QuotaFilterPart("user", ANY_MATCH, "a")], "INVALID_REQUEST"),
        ([QuotaFilterPart("user", 3)], "INVALID_REQUEST"),
    ],
)
def test_a_contradictory_filter_is_refused(filters: list[Any], code: str) -> None:
    with pytest.raises(BrokerError) as e:
        described(ControllerWorld(), *filters)
    assert e.value.code.name == code
