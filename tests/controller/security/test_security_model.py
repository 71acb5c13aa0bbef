"""Random requests about rules, credentials and quotas, compared with a model of three dicts.

After each request, the answers and the three maps of the image are those of the model. At the end a replay of the log and a load
of its snapshot give the same image, and the delta to the snapshot names the same changes as the deltas of the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
from controller_world import ControllerWorld

from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.records import decode_record
from strandline.protocol import apis
from strandline.protocol.errors import ErrorCode
from strandline.protocol.messages import security as s
from strandline.protocol.security.scram import credential_of

RuleKey = tuple[Any, ...]

TYPES = [s.TOPIC_RESOURCE, s.GROUP_RESOURCE, s.CLUSTER_RESOURCE]
FITTING = {
    s.TOPIC_RESOURCE: [s.ALL, s.READ, s.DESCRIBE],
    s.GROUP_RESOURCE: [s.ALL, s.READ, s.DESCRIBE],
    s.CLUSTER_RESOURCE: [s.ALL, s.DESCRIBE],
}
NAMES = ["a", "ab", "*", s.CLUSTER_NAME]
PRINCIPALS = ["User:alice", "User:*"]
HOSTS = ["*", "::1", "10.0.0.0/8"]


def mostly(random: Random, good: Sequence[Any], bad: Any) -> Any:
    """Usually one of `good`, rarely `bad`, so that most requests have an effect."""
    return bad if random.random() < 0.03 else random.choice(good)


def or_any(random: Random, values: Sequence[Any], everything: Any) -> Any:
    """A part of a filter, which names a value in one case of four."""
    return random.choice(values) if random.random() < 0.25 else everything


def a_rule(random: Random) -> RuleKey:
    return (
        random.choice([s.TOPIC_RESOURCE, *TYPES]),
        mostly(random, [*NAMES, *NAMES[:3]], ""),
        random.choice([s.LITERAL_PATTERN, s.PREFIXED_PATTERN]),
        mostly(random, PRINCIPALS, "alice"),
        mostly(random, HOSTS, "nowhere"),
        random.choice([s.ALL, s.READ, s.DESCRIBE]),
        random.choice([s.DENY, s.ALLOW]),
    )


def a_filter(random: Random) -> RuleKey:
    return (
        or_any(random, TYPES, s.ANY_TYPE),
        random.choice([None, "abc", *NAMES]),
        random.choice([s.ANY_TYPE, s.MATCH_PATTERN, s.LITERAL_PATTERN, s.PREFIXED_PATTERN]),
        or_any(random, PRINCIPALS, None),
        or_any(random, HOSTS, None),
        or_any(random, [s.READ, s.DESCRIBE], s.ANY_TYPE),
        or_any(random, [s.DENY, s.ALLOW], s.ANY_TYPE),
    )


def a_user(random: Random) -> tuple[str, int]:
    return mostly(random, ["alice", "bob"], ""), mostly(random, [1, 2], 3)


def an_entry(random: Random) -> tuple[list[Any], list[Any]]:
    kinds = random.choice([["user"]] * 3 + [["client-id"], ["client-id", "user"], ["ip"]])
    if random.random() < 0.1:
        kinds = random.choice([[], ["group"], ["user", "user"], ["user", "ip"]])
    parts = [(kind, mostly(random, [None, "::1"], "")) for kind in kinds]
    keys = ["connection_creation_rate"] if "ip" in kinds else ["producer_byte_rate", "request_percentage"]
    operations = [
        (
            mostly(random, keys, random.choice(["nonsense", "connection_creation_rate"])),
            mostly(random, [None, 1.0, 2.0], random.choice([0.0, 1.5])),
        )
        for _ in range(random.choice([1, 1, 1, 2, 0]))
    ]
    return parts, operations


def some(random: Random, make: Callable[[Random], Any], most: int) -> list[Any]:
    return [make(random) for _ in range(random.randint(0, most))]


def is_rule(key: RuleKey) -> bool:
    kind, name, _, principal, host, operation, _ = key
    named_well = name == s.CLUSTER_NAME if kind == s.CLUSTER_RESOURCE else name != ""
    return named_well and principal in PRINCIPALS and host in HOSTS and operation in FITTING[kind]


def selects(wanted: RuleKey, key: RuleKey) -> bool:
    _, name, pattern_type, *_ = wanted
    if pattern_type == s.MATCH_PATTERN and name is not None:
        applies = key[1] in (name, "*") if key[2] == s.LITERAL_PATTERN else name.startswith(key[1])
        # A prefix that is the whole name applies; a prefix `*` is no wildcard.
    else:
        applies = name in (None, key[1]) and pattern_type in (s.ANY_TYPE, s.MATCH_PATTERN, key[2])
    others = (0, 3, 4, 5, 6)
    return applies and all(wanted[i] in (None, s.ANY_TYPE, key[i]) for i in others)


def credential_fault(user: str, mechanism: int, known: Any, iterations: int | None, salt: bytes = b"") -> str | None:
    """The expected error of a change of a credential. `iterations` None: a deletion."""
    if not user:
        return "UNACCEPTABLE_CREDENTIAL"
    if mechanism == 3:
        return "UNSUPPORTED_SASL_MECHANISM"
    if iterations is None:
        return None if (user, mechanism) in known else "RESOURCE_NOT_FOUND"
    return None if iterations >= 4096 and salt else "UNACCEPTABLE_CREDENTIAL"


def is_entry(entity: list[tuple[str, str | None]], ops: list[tuple[str, float | None]]) -> bool:
    kinds = [kind for kind, _ in entity]
    if not entity or len(set(kinds)) < len(kinds) or "group" in kinds or any(name == "" for _, name in entity):
        return False
    if "ip" in kinds and len(kinds) > 1:
        return False
    allowed = {"connection_creation_rate"} if "ip" in kinds else {"producer_byte_rate", "request_percentage"}
    whole = {"connection_creation_rate", "producer_byte_rate"}
    keys = [key for key, _ in ops]
    return len(set(keys)) == len(keys) and all(
        key in allowed and (value is None or (value > 0 and (value != 1.5 or key not in whole))) for key, value in ops
    )


class SecurityModel:
    """Each method sends one random request, and compares its answer with the model's."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = ControllerWorld(seed=seed)
        self.rules: dict[RuleKey, None] = {}
        self.credentials: dict[tuple[str, int], Any] = {}
        self.quotas: dict[Any, dict[str, float]] = {}

    def create(self) -> None:
        keys = some(self.random, a_rule, 4)
        answer = self.world.call(apis.CREATE_ACLS, s.CreateAclsRequest([s.AclBinding(*key) for key in keys]))
        assert [not result.error_code for result in answer.results] == [is_rule(key) for key in keys]
        self.rules.update(dict.fromkeys(key for key in keys if is_rule(key)))

    def delete(self) -> None:
        wanted = some(self.random, a_filter, 2)
        answer = self.world.call(apis.DELETE_ACLS, s.DeleteAclsRequest([s.AclFilter(*each) for each in wanted]))
        found = [[s.AclBinding(*key) for key in sorted(self.rules) if selects(each, key)] for each in wanted]
        assert [result.deleted for result in answer.results] == found
        self.rules = {key: None for key in self.rules if not any(selects(each, key) for each in wanted)}

    def delete_one(self) -> None:
        """Delete one rule, by a filter that names every field."""
        if self.rules:
            key = self.random.choice(sorted(self.rules))
            answer = self.world.call(apis.DELETE_ACLS, s.DeleteAclsRequest([s.AclFilter(*key)]))
            assert answer.results[0].deleted == [s.AclBinding(*key)]
            del self.rules[key]

    def describe(self) -> None:
        wanted = a_filter(self.random)
        answer = self.world.call(apis.DESCRIBE_ACLS, s.DescribeAclsRequest(s.AclFilter(*wanted)))
        assert answer.acls == [s.AclBinding(*key) for key in sorted(self.rules) if selects(wanted, key)]

    def alter_credentials(self) -> None:
        random = self.random
        gone = some(random, a_user, 1)
        new = [(*user, mostly(random, [4096, 5000], 4095), mostly(random, [b"1", b"2"], b"")) for user in some(random, a_user, 2)]
        request = s.AlterUserScramCredentialsRequest(
            [s.ScramCredentialDeletion(*each) for each in gone],
            [s.ScramCredentialUpsertion(*each, bytes(32 * each[1])) for each in new],
        )
        answer = self.world.call(apis.ALTER_USER_SCRAM_CREDENTIALS, request)
        expected: dict[str, str] = {}
        for user in dict.fromkeys(each[0] for each in [*gone, *new]):
            own: list[Any] = [(m, None, b"") for u, m in gone if u == user] + [tuple(each[1:]) for each in new if each[0] == user]
            fault = credential_fault(user, own[0][0], self.credentials, *own[0][1:])
            expected[user] = fault or ("NONE" if len(own) == 1 else "DUPLICATE_RESOURCE")
            if expected[user] == "NONE":
                mechanism, iterations, salt = own[0]
                self.credentials.pop((user, mechanism), None)
                if iterations is not None:
                    name = ("SCRAM-SHA-256", "SCRAM-SHA-512")[mechanism - 1]
                    self.credentials[user, mechanism] = credential_of(name, bytes(32 * mechanism), salt, iterations)
        assert {result.user: ErrorCode(result.error_code).name for result in answer.results} == expected

    def alter_quotas(self) -> None:
        altered, validate_only = some(self.random, an_entry, 4), self.random.random() < 0.1
        request = s.AlterClientQuotasRequest(
            [
                s.QuotaAlteration([s.QuotaEntityPart(*p) for p in entity], [s.QuotaOperation(*o) for o in ops])
                for entity, ops in altered
            ],
            validate_only,
        )
        answer = self.world.call(apis.ALTER_CLIENT_QUOTAS, request)
        seen: dict[Any, None] = {}
        for (entity, ops), result in zip(altered, answer.results, strict=True):
            key = tuple(sorted(entity, key=repr))
            is_good = is_entry(entity, ops) and key not in seen
            assert (not result.error_code) == is_good, result
            if is_entry(entity, []):
                seen[key] = None
            if is_good and not validate_only:
                values = {**self.quotas.pop(key, {}), **dict(ops)}
                kept = {name: value for name, value in values.items() if value is not None}
                self.quotas.update({key: kept} if kept else {})

    def check_image(self) -> None:
        image = self.world.image
        assert {tuple(getattr(acl, f) for f in acl.__struct_fields__) for acl in image.acls.values()} == set(self.rules)
        assert {acl: acl_id for acl_id, acl in image.acls.items()} == image.acl_ids
        assert image.scram_credentials == self.credentials
        assert {tuple(sorted(entity, key=repr)): values for entity, values in image.client_quotas.items()} == self.quotas

    def check_log(self) -> None:
        """Compare a replay, a snapshot, and the changes that deltas name."""
        world = self.world
        loaded = MetadataImage.from_records(list(world.image.to_records()), world.image.offset, world.image.epoch)
        assert loaded == world.image
        before = MetadataImage.EMPTY
        for base, last in world.quorum.batches:
            delta = before.apply([decode_record(r) for _, r in world.quorum.log[base : last + 1]], last, 1)
            found = before.delta_to(delta.image)
            for name in ("changed_acls", "changed_scram_credentials", "changed_client_quotas"):
                assert sorted(getattr(delta, name), key=repr) == sorted(getattr(found, name), key=repr)
            before = delta.image
        assert before == world.image


@pytest.mark.parametrize("seed", range(4))
def test_answers_and_image_are_those_of_the_model(seed: int) -> None:
    model = SecurityModel(seed)
    steps = [
        model.create,
        model.delete,
        model.delete_one,
        model.describe,
        model.describe,
        model.alter_credentials,
        model.alter_quotas,
    ]
    sizes = [0, 0, 0]
    for _ in range(600):
        model.random.choice(steps)()
        model.check_image()
        sizes = [max(*pair) for pair in zip(sizes, map(len, (model.rules, model.credentials, model.quotas)), strict=True)]
    model.check_log()
    assert all(size >= least for size, least in zip(sizes, (8, 3, 5), strict=True)), (
        "the requests had too little effect to prove much"
    )
