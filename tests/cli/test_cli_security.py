"""`strandline acl` and `strandline user`: rules and users as an administrator sees and changes them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_world import Outcome, Up, one_sentence, run, start_up

from strandline.cli.acl_check import NodeRules, decide, rules_of_nodes
from strandline.cli.acl_rules import Grant, Resources, filters_of, parse_resource, rules_of
from strandline.cli.contexts import local_cluster
from strandline.cli.user import _password
from strandline.client import (
    Acl,
    Admin,
    AuthorizationFailed,
    BrokerDescription,
    ClusterDescription,
    ConfigEntry,
    RequestTimeout,
)
from strandline.protocol.errors import StrandlineError, UsageError
from strandline.testing import Cluster
from strandline.testing.kit.threaded import ThreadedCluster

PASSWORD = "hunter2-secret"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadedCluster]:
    settings = {"authorizer_class_name": "StandardAuthorizer", "super_users": "User:ANONYMOUS"}
    with Cluster.running_in_thread(brokers=1, **settings) as cluster:
        yield cluster


def strandline(cluster: ThreadedCluster, *words: str, stdin: str = "") -> Outcome:
    found = run(*words, "-b", cluster.bootstrap_servers, stdin=stdin)
    assert PASSWORD not in found.out + found.err
    return found


# -- which rules ------------------------------------------------------------------------------------------------------


def rules(**options: object) -> set[str]:
    names = {"topics", "groups", "transactional_ids", "cluster", "is_prefixed"}
    resources = Resources(**{name: value for name, value in options.items() if name in names})  # type: ignore[arg-type]
    rest = {name: value for name, value in options.items() if name not in names}
    return {str(rule) for rule in rules_of(Grant("User:a", resources, **rest))}  # type: ignore[arg-type]


def test_roles_are_those_of_kafka_acls() -> None:
    assert rules(producer=True, topics=["t"], transactional_ids=["x"], idempotent=True) == {
        "ALLOW User:a WRITE on TOPIC:t",
        "ALLOW User:a DESCRIBE on TOPIC:t",
        "ALLOW User:a CREATE on TOPIC:t",
        "ALLOW User:a WRITE on TRANSACTIONAL_ID:x",
        "ALLOW User:a DESCRIBE on TRANSACTIONAL_ID:x",
        "ALLOW User:a IDEMPOTENT_WRITE on CLUSTER:kafka-cluster",
    }
    assert rules(consumer=True, topics=["t"], groups=["g"], is_prefixed=True) == {
        "ALLOW User:a READ on TOPIC:t*",
        "ALLOW User:a DESCRIBE on TOPIC:t*",
        "ALLOW User:a READ on GROUP:g*",
    }


def test_hosts_operations_and_denials() -> None:
    denied = rules(operations=["read", "Write"], topics=["t"], hosts=["1.2.3.4", "10.0.0.0/8"], is_denied=True)
    assert denied == {f"DENY User:a {op} on TOPIC:t from {h}" for op in ("READ", "WRITE") for h in ("1.2.3.4", "10.0.0.0/8")}
    assert rules(operations=["ALTER"], cluster=True) == {"ALLOW User:a ALTER on CLUSTER:kafka-cluster"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"topics": ["t"]}, "needs an operation"),
        ({"operations": ["READ"]}, "needs a resource"),
        ({"operations": ["FLY"], "topics": ["t"]}, "unknown operation 'FLY'"),
        ({"producer": True}, "--producer needs a --topic"),
        ({"consumer": True, "topics": ["t"]}, "--consumer needs a --topic and a --group"),
        ({"consumer": True, "topics": ["t"], "groups": ["g"], "is_denied": True}, "--deny takes an --operation"),
        ({"idempotent": True, "operations": ["READ"], "topics": ["t"]}, "--idempotent belongs to --producer"),
    ],
)
def test_options_that_describe_no_rule_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        rules(**options)


def test_filter_without_resources_selects_all_of_a_principal() -> None:
    (found,) = filters_of(Resources(), "User:a", (), None)
    assert (found.principal, found.resource_type, found.pattern_type) == ("User:a", None, None)
    (prefixed,) = filters_of(Resources(topics=["t"], is_prefixed=True), None, ["READ"], None)
    assert (prefixed.resource_name, prefixed.pattern_type, prefixed.operation) == ("t", "PREFIXED", "READ")


@pytest.mark.parametrize("wrong", ["orders", "topic:", "planet:earth", "cluster:x", ""])
def test_resources_are_named_with_their_type(wrong: str) -> None:
    with pytest.raises(UsageError, match="a resource is written topic:NAME"):
        parse_resource(wrong)
    assert parse_resource("transactional-id:a:b") == ("TRANSACTIONAL_ID", "a:b")


def test_decision_names_the_rule() -> None:
    """The brokers' own authorizer decides, so the answer is theirs."""
    allow, deny = Acl("User:a", "WRITE", "TOPIC", "t"), Acl("User:*", "ALL", "TOPIC", "t", host="10.0.0.0/8", permission="DENY")
    nodes = NodeRules("User:root")
    assert decide([allow, deny], nodes, "User:a", "1.2.3.4", "DESCRIBE", "TOPIC", "t")[:3] == (
        True,
        "an ALLOW rule applies, and no DENY rule",
        allow,
    )
    assert decide([allow, deny], nodes, "User:a", "10.1.2.3", "WRITE", "TOPIC", "t")[:3] == (
        False,
        "a DENY rule applies",
        deny,
    )
    assert decide([], nodes, "User:root", "1.2.3.4", "ALTER", "CLUSTER", "kafka-cluster").is_allowed
    assert not decide([], nodes, "User:a", "1.2.3.4", "READ", "TOPIC", "x").is_allowed
    assert decide([], NodeRules(None, is_known=False), "User:a", "1.2.3.4", "READ", "TOPIC", "x").remarks


class PartialAdmin:
    """Broker 1 is fenced, broker 2 is dead but not fenced yet, and broker 3 answers, unless `error` is given."""

    def __init__(self, error: StrandlineError | None = None) -> None:
        self.error = error
        self.asked: list[int] = []

    async def describe_cluster(self, **_: object) -> ClusterDescription:
        brokers = [BrokerDescription(i, "h", 9091 + i, is_fenced=i == 1) for i in (1, 2, 3)]
        return ClusterDescription("c", 101, brokers)

    async def describe_configs(self, kind: str, broker_id: int, keys: object, **_: object) -> list[ConfigEntry]:
        self.asked.append(broker_id)
        if self.error is not None:
            raise self.error
        if broker_id == 2:
            raise RequestTimeout("broker 2 did not answer")
        return [
            ConfigEntry("super.users", "User:root", "broker"),
            ConfigEntry("allow.everyone.if.no.acl.found", "true", "broker"),
        ]


async def test_dead_broker_hides_no_super_users() -> None:
    """A broker that has just died is not fenced yet, and any other broker can report the configuration."""
    admin: Any = PartialAdmin()
    assert await rules_of_nodes(admin) == NodeRules("User:root", allow_everyone_if_no_acl_found=True)
    assert admin.asked == [2, 3]


@pytest.mark.parametrize(
    ("error", "asked"), [(RequestTimeout("no answer"), [2, 3]), (AuthorizationFailed("denied"), [2])], ids=["silent", "denied"]
)
async def test_super_users_that_no_broker_reports_are_unknown(error: StrandlineError, asked: list[int]) -> None:
    """A denial is the answer of every broker, so that no other is asked."""
    admin: Any = PartialAdmin(error)
    assert await rules_of_nodes(admin) == NodeRules(None, is_known=False)
    assert admin.asked == asked


# -- on a cluster -----------------------------------------------------------------------------------------------------


def test_rules_are_added_listed_checked_and_removed(cluster: ThreadedCluster) -> None:
    assert strandline(cluster, "acl", "add", "User:alice", "--producer", "--topic", "orders").code == 0
    assert strandline(cluster, "acl", "add", "--deny", "User:eve", "--operation", "all", "--topic", "*").code == 0
    listed = strandline(cluster, "acl", "list", "--principal", "User:alice", "--json").json()["acls"]
    assert {rule["operation"] for rule in listed} == {"WRITE", "DESCRIBE", "CREATE"}
    matching = strandline(cluster, "acl", "list", "--topic", "orders", "--match", "--json").json()["acls"]
    assert {rule["principal"] for rule in matching} == {"User:alice", "User:eve"}
    may = strandline(cluster, "acl", "check", "User:alice", "WRITE", "topic:orders", "--json")
    assert (may.code, may.json()["allowed"], may.json()["rule"]["operation"]) == (0, True, "WRITE")
    may_not = strandline(cluster, "acl", "check", "User:eve", "READ", "topic:orders")
    assert (may_not.code, "a DENY rule applies" in may_not.out) == (3, True)
    boss = strandline(cluster, "acl", "check", "User:ANONYMOUS", "ALTER", "cluster")
    assert "is a super user" in boss.out
    removed = strandline(cluster, "acl", "remove", "--principal", "User:alice", "--yes", "--json").json()["removed"]
    assert len(removed) == 3
    assert "no such rules" in strandline(cluster, "acl", "list", "--principal", "User:alice").err


def test_kafka_acls_options_are_understood(cluster: ThreadedCluster) -> None:
    words = "--add --allow-principal User:bob --consumer --topic log- --group g --resource-pattern-type prefixed"
    assert strandline(cluster, "acl", "add", *words.split()).code == 0
    found = strandline(cluster, "acl", "list", "--allow-principal", "User:bob", "--json").json()["acls"]
    assert {(rule["resource_name"], rule["pattern_type"]) for rule in found} == {("log-", "PREFIXED"), ("g", "PREFIXED")}
    assert strandline(cluster, "acl", "remove", "--allow-principal", "User:bob", "--force").code == 0


def test_removing_rules_needs_a_yes_and_a_selection(cluster: ThreadedCluster) -> None:
    assert "give --yes" in one_sentence(strandline(cluster, "acl", "remove", "--topic", "orders"))
    assert "needs --principal or a resource" in one_sentence(strandline(cluster, "acl", "remove", "--yes"))


def test_users_are_added_changed_and_removed(cluster: ThreadedCluster, tmp_path: Path) -> None:
    assert strandline(cluster, "user", "add", "alice", "--password-file", "-", stdin=f"{PASSWORD}\n").code == 0
    again = strandline(cluster, "user", "add", "alice", "--password-file", "-", stdin=f"{PASSWORD}\n")
    assert (again.code, "exists already" in again.err) == (1, True)
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}-2\n")
    words = ("user", "passwd", "alice", "--password-file", str(file), "--mechanism", "SCRAM-SHA-256")
    assert strandline(cluster, *words).code == 0
    (alice,) = strandline(cluster, "user", "list", "--json").json()["users"]
    assert [each["mechanism"] for each in alice["credentials"]] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    assert strandline(cluster, "user", "remove", "alice", "--yes").code == 0
    gone = strandline(cluster, "user", "remove", "alice", "--yes")
    assert (gone.code, "RESOURCE_NOT_FOUND" in gone.err) == (1, True)
    assert "there is no user alice" in strandline(cluster, "user", "passwd", "alice", "--password-file", str(file)).err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("add", "bob"), "there is no terminal to type a password"),
        (("add", "bob", "--password-file", "/no/such/file"), "cannot read the password in /no/such/file"),
        (("add", "User:bob", "--password-file", "-"), "a user is named without its type: bob"),
        (("add", "bob", "--password-file", "-"), "the password in standard input is empty"),
        (("remove", "bob"), "give --yes"),
    ],
)
def test_mistakes_with_users_are_one_sentence(cluster: ThreadedCluster, words: tuple[str, ...], reason: str) -> None:
    found = strandline(cluster, "user", *words)
    assert (found.code, reason in one_sentence(found)) == (2, True)


def test_password_that_cannot_be_used_is_not_repeated() -> None:
    """F33: not even one that is no UTF-8, as standard input may have it."""

    async def scenario() -> None:
        with pytest.raises(UsageError, match="SASLprep does not allow") as e:
            await Admin(bootstrap_servers="127.0.0.1:1").upsert_scram_credentials("bob", f"{PASSWORD}\udcff")
        assert PASSWORD not in str(e.value)

    asyncio.run(scenario())


def test_password_that_is_typed_in_another_encoding_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    def prompt(*_: object, **__: object) -> str:
        return (PASSWORD.encode() + b"\xfe").decode()

    monkeypatch.setattr("typer.prompt", prompt)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(UsageError, match="did not send it in UTF-8"):
        _password("bob", None)


def test_cluster_without_authorizer_allows_everything() -> None:
    with Cluster.running_in_thread(brokers=1) as open_cluster:
        may = strandline(open_cluster, "acl", "check", "User:a", "READ", "topic:x")
        assert (may.code, "no authorizer" in may.out) == (0, True)
        assert "SECURITY_DISABLED" in one_sentence(strandline(open_cluster, "acl", "list"))


# -- a secure cluster -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with start_up(tmp_path_factory.mktemp("secure"), "--secure", "--brokers", "1", "--controllers", "1") as up:
        yield up


@pytest.mark.processes
def test_every_verb_takes_the_client_configuration(secure: Up) -> None:
    """`up --secure` names the files, and each user has its rights."""
    files = secure.ready["client_configs"]
    assert secure.ready["client_config"] == files["admin"]
    at = ("-b", secure.bootstrap)
    assert run("topic", "create", "orders", *at, "--client-config", files["admin"]).code == 0
    assert run("produce", "orders", *at, env={"STRANDLINE_CLIENT_CONFIG": files["producer"]}, stdin="1 tea\n").code == 0
    read = ("consume", "orders", "--from", "beginning", "--exit-at-end")
    assert run(*read, *at, "--consumer.config", files["consumer"]).out == "1 tea\n"
    assert run("health", "--cluster", *at, "--client-config", files["admin"]).code == 0
    assert run("doctor", *at, "--client-config", files["admin"], "--json").code == 0
    denied = run("produce", "orders", *at, "--client-config", files["consumer"], stdin="x\n")
    assert (denied.code, "lacks the right WRITE" in denied.err) == (1, True)
    refused = run("group", "list", *at)
    assert refused.code == 1
    assert "this port speaks TLS" in refused.err
    assert "--client-config" in refused.err


@pytest.mark.processes
def test_commands_in_the_folder_of_a_secure_cluster_need_no_options(secure: Up) -> None:
    """cluster.json names the administrator's file."""
    found = json.loads((secure.folder / "cluster.json").read_text())
    assert found["client_config"] == secure.ready["client_config"]
    choice = local_cluster(secure.folder)
    assert choice is not None
    assert choice.client_config == found["client_config"]


@pytest.mark.processes
def test_missing_right_is_not_reported_as_a_broken_cluster(secure: Up) -> None:
    """A user without rights on the cluster learns which right it lacks, and not that the controllers are down."""
    at = ("-b", secure.bootstrap, "--client-config", secure.ready["client_configs"]["producer"])
    quorum = run("quorum", "describe", *at)
    assert (quorum.code, "lacks the right DESCRIBE on CLUSTER" in quorum.err, "leader" in quorum.err) == (1, True, False)
    doctor = run("doctor", *at, "--json")
    assert [each for each in doctor.json()["findings"] if each["level"] == "problem"] == []
    assert "lacks the right DESCRIBE on CLUSTER" in doctor.out
    assert "did not answer" not in doctor.out
    group = run("group", "describe", "billing", *at)
    assert (group.code, group.out) == (1, "")
    assert "billing is not known completely: " in one_sentence(group)


@pytest.mark.processes
def test_user_without_rights_is_not_told_that_the_cluster_is_empty(secure: Up, tmp_path: Path) -> None:
    """Lists have only what the user may describe, and the commands say so."""
    admin = Path(secure.ready["client_configs"]["admin"])
    run("topic", "create", "hidden", "-b", secure.bootstrap, "--client-config", str(admin))
    words = ("user", "add", "stranger", "--password-file", "-")
    assert run(*words, "-b", secure.bootstrap, "--client-config", str(admin), stdin=f"{PASSWORD}\n").code == 0
    theirs = tmp_path / "stranger.properties"
    theirs.touch(mode=0o600)
    login = re.sub('username="[^"]*" password="[^"]*"', f'username="stranger" password="{PASSWORD}"', admin.read_text())
    theirs.write_text(login)
    at = ("-b", secure.bootstrap, "--client-config", str(theirs))
    of_topics = "strandline: the cluster has no topics that this user may describe"
    assert one_sentence(run("topic", "list", *at)) == one_sentence(run("topic", "describe", *at)) == of_topics
    assert one_sentence(run("group", "list", *at)) == "strandline: there are no groups that this user may describe"
    assert (
        one_sentence(run("transaction", "list", *at)) == "strandline: there are no transactional ids that this user may describe"
    )
    assert "no partitions that this user may describe" in run("health", "--cluster", *at).out
    assert "no partitions that this user may describe" in " ".join(run("doctor", *at).out.split())
