"""CreateAcls, DeleteAcls and DescribeAcls at the controller."""

from __future__ import annotations

from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.controller import request_limits
from strandline.controller.metadata.features import LEVEL_0_ONLY, Levels
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import AccessControlEntryRecord, FeatureLevelRecord, RemoveAccessControlEntryRecord
from strandline.controller.metadata.security.acls import Acl
from strandline.controller.security import acl_control
from strandline.controller.security.acl_control import OPERATIONS
from strandline.protocol import apis
from strandline.protocol.errors import BrokerError, ErrorCode, InternalError
from strandline.protocol.feature_names import METADATA_VERSION
from strandline.protocol.messages import security as s
from strandline.protocol.messages.security import (
    AclBinding,
    AclFilter,
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
)
from strandline.protocol.security.acl_names import RESOURCE_TYPE_NAMES

CLUSTER = {"resource_type": s.CLUSTER_RESOURCE, "resource_name": s.CLUSTER_NAME}


def rule(**fields: Any) -> AclBinding:
    """Alice may read topic orders from anywhere, except for `fields`."""
    given: dict[str, Any] = {
        "resource_type": s.TOPIC_RESOURCE,
        "resource_name": "orders",
        "pattern_type": s.LITERAL_PATTERN,
        "principal": "User:alice",
        "host": "*",
        "operation": s.READ,
        "permission_type": s.ALLOW,
    }
    return AclBinding(**{**given, **fields})


def create(world: ControllerWorld, *rules: AclBinding) -> list[str]:
    answer = world.call(apis.CREATE_ACLS, CreateAclsRequest(list(rules)))
    return [ErrorCode(result.error_code).name for result in answer.results]


def delete(world: ControllerWorld, *filters: AclFilter) -> list[list[AclBinding]]:
    answer = world.call(apis.DELETE_ACLS, DeleteAclsRequest(list(filters)))
    return [result.deleted for result in answer.results]


def described(world: ControllerWorld, **wanted: Any) -> list[AclBinding]:
    found: list[AclBinding] = world.call(apis.DESCRIBE_ACLS, DescribeAclsRequest(AclFilter(**wanted))).acls
    return found


def test_created_rules_are_in_the_image_and_described_in_order() -> None:
    world = ControllerWorld()
    rules = [rule(resource_name="b"), rule(resource_name="a"), rule(permission_type=s.DENY, host="10.0.0.1")]
    assert create(world, *rules) == ["NONE"] * 3
    assert described(world) == [rules[1], rules[0], rules[2]]
    assert {acl.binding.resource_name for acl in world.image.acls.values()} == {"a", "b", "orders"}
    assert world.replayed() == world.image


def test_a_rule_that_exists_is_created_again_without_an_effect() -> None:
    """A request may name it twice, too: a client may retry, and each retry succeeds."""
    world = ControllerWorld()
    assert create(world, rule(), rule()) == ["NONE", "NONE"]
    end = world.quorum.log_end_offset
    assert create(world, rule()) == ["NONE"]
    assert (world.quorum.log_end_offset, len(world.image.acls)) == (end, 1)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"resource_type": s.ANY_TYPE}, "resource type 1 is not one that a rule can be for: TOPIC (2), GROUP (3)"),
        ({"resource_type": 6}, "resource type 6"),
        ({"pattern_type": s.MATCH_PATTERN}, "pattern type 2 is not one that a rule can have: LITERAL (3), PREFIXED (4)"),
        ({"resource_name": ""}, "must not be empty; * is every resource"),
        ({**CLUSTER, "resource_name": "*", "operation": s.ALTER}, "the only resource of type CLUSTER is kafka-cluster, not '*'"),
        ({"operation": s.ANY_TYPE}, "operation 1 is not one that a rule can be for"),
        ({"operation": s.CLUSTER_ACTION}, "a TOPIC does not have the operation CLUSTER_ACTION: it has ALL, READ, WRITE"),
        ({**CLUSTER, "operation": s.READ}, "a CLUSTER does not have the operation READ"),
        ({"permission_type": s.ANY_TYPE}, "permission type 1 is not one that a rule can have: DENY (2), ALLOW (3)"),
        ({"principal": "alice"}, "'alice' is not a principal: it is written as User:name"),
        ({"principal": "User:"}, "is not a principal"),
        ({"host": "db.example.com"}, "'db.example.com' is not a host of an access rule: it is *, an address, or a network"),
        ({"host": "10.0.0.0/33"}, "is not a host"),
        ({"host": ""}, "is not a host"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_malformed_rule_is_refused_alone(fields: dict[str, Any], words: str) -> None:
    """The other rules of the request are created. A rule that could never apply would only look as if it protected something."""
    world = ControllerWorld()
    answer = world.call(apis.CREATE_ACLS, CreateAclsRequest([rule(**fields), rule()]))
    assert [ErrorCode(result.error_code) for result in answer.results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert words in answer.results[0].error_message
    assert described(world) == [rule()]


def test_every_operation_of_each_resource_type_is_accepted() -> None:
    world = ControllerWorld()
    assert set(OPERATIONS) == set(RESOURCE_TYPE_NAMES)
    for kind, operations in OPERATIONS.items():
        name = s.CLUSTER_NAME if kind == s.CLUSTER_RESOURCE else "x"
        rules = [rule(resource_type=kind, resource_name=name, operation=each) for each in (s.ALL, *operations)]
        assert create(world, *rules) == ["NONE"] * len(rules)


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("0:0:0:0:0:0:0:1", "::1"),
        ("10.1.2.3/8", "10.0.0.0/8"),
        ("10.0.0.0/255.0.0.0", "10.0.0.0/8"),
        ("2001:DB8::/32", "2001:db8::/32"),
    ],
)
def test_one_host_has_one_form(given: str, stored: str) -> None:
    """Otherwise the deletion of a rule would miss the one that was created with another spelling."""
    world = ControllerWorld()
    assert create(world, rule(host=given), rule(host=stored)) == ["NONE", "NONE"]
    assert described(world, host=given) == described(world, host=stored) == [rule(host=stored)]
    assert delete(world, AclFilter(host=given)) == [[rule(host=stored)]]


PATTERNS = [
    rule(),
    rule(resource_name="*"),
    rule(resource_name="ord", pattern_type=s.PREFIXED_PATTERN),
    rule(resource_name="orders", pattern_type=s.PREFIXED_PATTERN),
    rule(resource_name="orders-eu", pattern_type=s.PREFIXED_PATTERN),
    rule(resource_name="payments"),
]


@pytest.mark.parametrize(
    ("pattern_type", "name", "found"),
    [
        (s.LITERAL_PATTERN, "orders", [0]),
        (s.LITERAL_PATTERN, None, [0, 1, 5]),
        (s.PREFIXED_PATTERN, "orders", [3]),
        (s.ANY_TYPE, "orders", [0, 3]),
        (s.ANY_TYPE, "*", [1]),
        (s.ANY_TYPE, None, [0, 1, 2, 3, 4, 5]),
        (s.MATCH_PATTERN, "orders", [0, 1, 2, 3]),
        (s.MATCH_PATTERN, "order", [1, 2]),
        (s.MATCH_PATTERN, "orders-eu-1", [1, 2, 3, 4]),
        (s.MATCH_PATTERN, None, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_filters_select_patterns_as_kafka_does(pattern_type: int, name: str | None, found: list[int]) -> None:
    world = ControllerWorld()
    create(world, *PATTERNS)
    answer = described(world, pattern_type=pattern_type, resource_name=name)
    assert [PATTERNS.index(binding) for binding in answer] == sorted(found, key=lambda i: Acl.of(PATTERNS[i]))


def test_a_rule_that_two_filters_select_is_deleted_once() -> None:
    world = ControllerWorld()
    create(world, rule(), rule(principal="User:bob"))
    assert delete(world, AclFilter(principal="User:alice"), AclFilter(), AclFilter(principal="User:eve")) == [
        [rule()],
        [rule(), rule(principal="User:bob")],
        [],
    ]
    assert len(world.image.acls) == len(world.image.acl_ids) == 0
    assert create(world, rule()) == ["NONE"]
    assert world.replayed() == world.image


@pytest.mark.parametrize(
    "wanted", [{"resource_type": 0}, {"pattern_type": 5}, {"operation": 16}, {"permission_type": -1}], ids=str
)
def test_a_filter_with_an_unknown_number_is_refused(wanted: dict[str, Any]) -> None:
    """It would select nothing, and the client would believe that there is nothing."""
    world = ControllerWorld()
    create(world, rule())
    answer = world.call(apis.DELETE_ACLS, DeleteAclsRequest([AclFilter(**wanted), AclFilter(principal="User:bob")]))
    assert [ErrorCode(result.error_code) for result in answer.results] == [ErrorCode.INVALID_REQUEST, ErrorCode.NONE]
    assert f"{next(iter(wanted.values()))} of the filter is unknown" in answer.results[0].error_message
    with pytest.raises(BrokerError) as e:
        described(world, **wanted)
    assert e.value.code == ErrorCode.INVALID_REQUEST


def test_a_request_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion that is too large deletes nothing: a client would not notice that only a part was deleted."""
    monkeypatch.setattr(acl_control, "CHANGES_MAX", 5)
    monkeypatch.setattr(request_limits, "CHANGES_MAX", 5)
    monkeypatch.setattr(acl_control, "COMPARISONS_MAX", 20)
    world = ControllerWorld()
    names = [rule(resource_name=f"t{number}") for number in range(8)]
    with pytest.raises(BrokerError, match="at most 5 access rules, not 6") as e:
        create(world, *names[:6])
    assert e.value.code == ErrorCode.POLICY_VIOLATION
    create(world, *names[:5])
    create(world, *names[5:])
    with pytest.raises(BrokerError, match="at most 5 access rules, and these filters select more: nothing was deleted") as e:
        delete(world, AclFilter())
    assert (e.value.code, len(world.image.acls)) == (ErrorCode.INVALID_REQUEST, 8)
    with pytest.raises(BrokerError, match="3 filters that may select several of 8 access rules are too many") as e:
        delete(world, *[AclFilter(resource_name=f"t{number}") for number in range(3)])
    assert e.value.code == ErrorCode.POLICY_VIOLATION
    exact = [AclFilter(*[getattr(each, name) for name in each.__struct_fields__]) for each in names[:5]]
    assert delete(world, *exact) == [[each] for each in names[:5]]


def test_without_an_authorizer_requests_about_rules_are_refused() -> None:
    """Rules would have no effect. Credentials and quotas do not need an authorizer."""
    world = ControllerWorld(has_authorizer=False)
    requests: list[tuple[int, Any]] = [
        (apis.CREATE_ACLS, CreateAclsRequest([rule()])),
        (apis.DELETE_ACLS, DeleteAclsRequest([AclFilter()])),
        (apis.DESCRIBE_ACLS, DescribeAclsRequest(AclFilter())),
    ]
    for api_key, body in requests:
        with pytest.raises(BrokerError, match=r"no authorizer.*set authorizer\.class\.name on every node") as e:
            world.call(api_key, body)
        assert e.value.code == ErrorCode.SECURITY_DISABLED
    assert world.call(apis.ALTER_CLIENT_QUOTAS, s.AlterClientQuotasRequest([])).results == []


@pytest.mark.parametrize("levels", [LEVEL_0_ONLY, Levels(0, 1)], ids=str)
@pytest.mark.parametrize(
    ("api_key", "body", "what"),
    [
        (apis.CREATE_ACLS, CreateAclsRequest([rule()]), "access rules"),
        (apis.DELETE_ACLS, DeleteAclsRequest([AclFilter()]), "access rules"),
        (apis.ALTER_USER_SCRAM_CREDENTIALS, s.AlterUserScramCredentialsRequest(), "SCRAM credentials"),
        (apis.ALTER_CLIENT_QUOTAS, s.AlterClientQuotasRequest([]), "client quotas"),
    ],
)
def test_below_level_2_changes_are_refused_with_the_way_out(api_key: int, body: Any, what: str, levels: Levels) -> None:
    """A description finds no rules."""
    world = ControllerWorld(levels=levels)
    with pytest.raises(BrokerError, match=rf"{what} need level 2 of metadata\.version.*features upgrade` raises it") as e:
        world.call(api_key, body)
    assert e.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert described(world) == []


# -- the image --------------------------------------------------------------------------------------------------------

ID, OTHER = b"1" * 16, b"2" * 16
LEVEL_2 = FeatureLevelRecord(METADATA_VERSION, 2)


def record(acl_id: bytes = ID, **fields: Any) -> AccessControlEntryRecord:
    return Acl.of(rule(**fields)).record(acl_id)


def test_a_rule_has_one_id() -> None:
    """Otherwise the deletion of a rule would leave its twin."""
    image = MetadataImage.EMPTY.apply([LEVEL_2, record()], 1, 1).image
    for again in (record(OTHER), record(ID, host="10.0.0.1")):
        with pytest.raises(InternalError, match=r"adds the access rule .*, which exists already"):
            image.apply([again], 2, 1)
    for remove in ([RemoveAccessControlEntryRecord(OTHER)], [RemoveAccessControlEntryRecord(ID)] * 2):
        with pytest.raises(InternalError, match=r"removes the access rule .*, which does not exist"):
            image.apply(remove, 3, 1)


def test_a_rule_that_is_added_and_removed_in_one_batch_is_no_change() -> None:
    before = MetadataImage.EMPTY.apply([LEVEL_2], 0, 1).image
    delta = before.apply([record(), RemoveAccessControlEntryRecord(ID)], 2, 1)
    assert (delta.changed_acls, delta.is_empty, len(delta.image.acl_ids)) == ([], True, 0)
    delta = before.apply([record()], 1, 1)
    assert (delta.changed_acls, delta.is_empty) == ([ID], False)
    moved = delta.image.apply([RemoveAccessControlEntryRecord(ID), record(OTHER)], 3, 1)
    assert (moved.changed_acls, moved.image.acl_ids[Acl.of(rule())]) == ([ID, OTHER], OTHER)
