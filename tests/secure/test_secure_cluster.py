"""A cluster with TLS, users and rights, as `strandline up --secure` starts it: processes, and clients that the nodes accept or
refuse."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strandline.certificates import make_authority, make_certificate, renew_certificate
from strandline.client import Admin, Consumer, NewTopic, Producer
from strandline.client.errors import AuthorizationFailed, NoBrokersAvailable
from strandline.local_cluster import LocalCluster
from strandline.local_security import LocalSecurity
from strandline.protocol.apis import DESCRIBE_CLUSTER
from strandline.protocol.errors import BrokerError, ErrorCode
from strandline.protocol.messages.admin import DescribeClusterRequest
from strandline.protocol.rpc.connection import Connection
from strandline.protocol.security.client_security import ClientSecurity

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="session")]
BOUND_S = 30.0


def users(cluster: LocalCluster) -> LocalSecurity:
    assert cluster.security is not None
    return cluster.security


def as_user(cluster: LocalCluster, user: str) -> dict[str, Any]:
    """The options of a client of this user."""
    return {"bootstrap_servers": cluster.bootstrap, "security": users(cluster).security_of(user)}


async def connect(port: int, security: ClientSecurity) -> Connection:
    return await Connection.connect("127.0.0.1", port, client_id="test", connect_timeout_ms=5000, security=security)


async def refusal(port: int, security: ClientSecurity) -> BrokerError:
    """The reason why the node refuses a client."""
    try:
        connection = await connect(port, security)
        await connection.request(DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_ms=5000)
    except BrokerError as e:
        return e
    raise AssertionError("the node lets the client in")


async def leader_of(cluster: LocalCluster, topic: str) -> str:
    async with Admin(**as_user(cluster, "admin")) as admin:
        (described,) = await admin.describe_topics([topic])
    return f"broker-{described.partitions[0].leader_id}"


async def read(cluster: LocalCluster, topic: str, count: int) -> list[bytes]:
    values = []
    options = {"auto_offset_reset": "earliest", "group_id": f"readers-of-{topic}"}
    async with asyncio.timeout(BOUND_S), Consumer(topic, **options, **as_user(cluster, "consumer")) as consumer:
        async for record in consumer:
            values.append(record.value)
            if len(values) == count:
                return values
    return values


async def test_commands_in_the_folder_find_the_administrators_file(cluster: LocalCluster) -> None:
    """`cluster.json` names it, and so does the ready line of `up --json`."""
    state = json.loads((cluster.folder / "cluster.json").read_text())
    assert state["client_config"] == state["client_configs"]["admin"] == str(users(cluster).folder / "admin.properties")
    assert list(state["client_configs"]) == ["admin", "producer", "consumer"]
    assert all(Path(path).stat().st_mode & 0o777 == 0o600 for path in state["client_configs"].values())


async def test_each_role_may_do_its_part(cluster: LocalCluster) -> None:
    """The files that `up --secure` names are all that a client needs."""
    async with Admin(**as_user(cluster, "producer")) as admin:
        await admin.create_topics([NewTopic("roles", partitions=1)])
    async with Producer(**as_user(cluster, "producer")) as producer:
        await (await producer.send("roles", b"tea"))
    assert await read(cluster, "roles", 1) == [b"tea"]
    async with Admin(**as_user(cluster, "consumer")) as admin:
        with pytest.raises(AuthorizationFailed):
            await admin.delete_topics(["roles"])


async def test_a_killed_leader_is_replaced_and_returns(cluster: LocalCluster) -> None:
    """kill -9: the other brokers, the controllers and the clients authenticate each other again, and no record is lost."""
    async with Admin(**as_user(cluster, "admin")) as admin:
        await admin.create_topics([NewTopic("killed", partitions=1, replication_factor=3)])
    victim = await leader_of(cluster, "killed")
    async with Producer(**as_user(cluster, "producer")) as producer:
        for number in range(200):
            if number == 100:
                cluster.kill(victim)
            await (await producer.send("killed", b"%d" % number))
    assert await leader_of(cluster, "killed") != victim
    await cluster.wait_ended(victim)
    await cluster.start_node(victim)
    await cluster.wait_ready()
    assert await read(cluster, "killed", 200) == [b"%d" % number for number in range(200)]


async def test_a_killed_controller_is_replaced(cluster: LocalCluster) -> None:
    async with Admin(**as_user(cluster, "admin")) as admin:
        active = f"controller-{(await admin.describe_quorum()).leader_id}"
        cluster.kill(active)
        await admin.create_topics([NewTopic("after-the-controller", partitions=1)])
    await cluster.wait_ended(active)
    await cluster.start_node(active)
    await cluster.wait_ready()


async def test_a_client_without_tls_gets_a_clear_sentence(cluster: LocalCluster) -> None:
    with pytest.raises(NoBrokersAvailable) as refused:
        async with Admin(bootstrap_servers=cluster.bootstrap, request_timeout_ms=2000) as admin:
            await admin.describe_cluster(timeout_ms=3000)
    assert "TLS" in str(refused.value)


async def test_a_client_that_trusts_another_authority_does_not_connect(cluster: LocalCluster, tmp_path: Path) -> None:
    """F29: it must not send its password to a node that it does not know."""
    make_authority(tmp_path, "another")
    security = replace(users(cluster).security_of("admin"), ssl_cafile=str(tmp_path / "ca.pem"))
    error = await refusal(cluster.broker(1).port, security)
    assert error.code == ErrorCode.NETWORK_EXCEPTION
    assert "not trusted" in str(error)


async def test_a_wrong_password_is_refused(cluster: LocalCluster) -> None:
    """F27: the sentence does not tell whether the user exists."""
    texts = set()
    for user in ("admin", "nobody"):
        security = replace(users(cluster).security_of("admin"), sasl_plain_username=user, sasl_plain_password="wrong")
        error = await refusal(cluster.broker(1).port, security)
        assert error.code == ErrorCode.SASL_AUTHENTICATION_FAILED
        texts.add(str(error).replace(user, "USER"))
    assert len(texts) == 1


async def test_only_nodes_reach_a_controller(cluster: LocalCluster, tmp_path: Path) -> None:
    """A certificate of another authority, or none, is refused."""
    make_authority(tmp_path, "another")
    own = make_certificate(tmp_path, "broker-1", ["127.0.0.1"])
    ca, port = str(users(cluster).folder / "ca.pem"), cluster.node("controller-101").port
    for certfile in (None, str(own)):
        security = ClientSecurity(security_protocol="SSL", ssl_cafile=ca, ssl_certfile=certfile)
        error = await refusal(port, security)
        assert error.code == ErrorCode.NETWORK_EXCEPTION


async def test_a_renewed_certificate_is_used_without_a_dropped_connection(cluster: LocalCluster) -> None:
    node, security = cluster.broker(2), users(cluster).security_of("admin")
    before = await presented_certificate(cluster, node.port)
    connection = await connect(node.port, security)
    renew_certificate(users(cluster).folder / "broker-2.pem")
    assert node.process is not None
    node.process.send_signal(signal.SIGHUP)
    async with asyncio.timeout(BOUND_S):
        while await presented_certificate(cluster, node.port) == before:
            await asyncio.sleep(0.02)
    await connection.request(DESCRIBE_CLUSTER, DescribeClusterRequest(), timeout_ms=5000)
    connection.close()
    assert '"security.reloaded"' in node.log_file.read_text()


async def presented_certificate(cluster: LocalCluster, port: int) -> bytes:
    context = ssl.create_default_context(cafile=str(users(cluster).folder / "ca.pem"))
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


async def test_no_node_logs_or_shows_a_secret(cluster: LocalCluster) -> None:
    """F33: not in the log lines, not in `cluster.json`, not in the command lines of the processes."""
    security = users(cluster)
    secrets = [path.read_text().strip() for path in security.folder.glob("*.password")]
    secrets += [security.password_of(user) for user in security.client_configs]
    assert len(secrets) == 9
    texts = [node.log_file.read_text() for node in cluster.nodes.values()]
    texts += [Path(f"/proc/{node.pid}/cmdline").read_text() for node in cluster.nodes.values()]
    texts += [node.config_file.read_text() for node in cluster.nodes.values()]
    texts.append((cluster.folder / "cluster.json").read_text())
    assert not [secret for secret in secrets if any(secret in text for text in texts)]


async def test_no_node_warns_of_an_open_listener(cluster: LocalCluster) -> None:
    lines = [json.loads(line) for node in cluster.nodes.values() for line in node.log_file.read_text().splitlines()]
    assert not [line for line in lines if line["event"] == "listener.unauthenticated"]


async def test_doctor_logs_in_at_every_listener(cluster: LocalCluster) -> None:
    """It tries the addresses that brokers advertise, and does so with the configuration of the client that asks."""
    arguments = ["doctor", "-b", cluster.bootstrap, "--client-config", users(cluster).client_configs["admin"], "--json"]
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("strandline")),
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(BOUND_S):
        out, _ = await process.communicate()
    findings = [(f["level"], f["text"]) for f in json.loads(out)["findings"] if f["check"] == "listeners"]
    assert findings
    assert {level for level, _ in findings} == {"ok"}, findings
