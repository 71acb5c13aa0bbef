"""docker-compose.yml in real containers: three controllers, three brokers, two networks, persistent data."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.error
import urllib.request
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from engine import docker, inspect, wait_until
from project import BROKERS, CONTROLLERS, NODES, Project
from volumes import Volumes

pytestmark = [pytest.mark.docker, pytest.mark.processes]

CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
STOP_MAX_S = 10
"""Seconds; compose would wait three times as long before it kills."""


def test_all_six_are_healthy_soon_after_the_first_start(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The brokers start when the controllers are healthy: they have agreed on a cluster id and a leader."""
    with capsys.disabled():
        print(f"\ncompose: all six healthy after {project.healthy_after_s:.1f} s (expected: at most 15 s)")
    assert set(project.health().values()) == {"healthy"}


def test_the_nodes_have_agreed_on_one_cluster_id(project: Project, volumes: Volumes) -> None:
    """The compose file contains no cluster id, and each volume was formatted once."""
    ids = {re.findall(r"^cluster\.id=(\S+)$", volumes.read(project.volume(n), "meta.properties"), re.MULTILINE)[0] for n in NODES}
    assert len(ids) == 1
    assert ids.pop() == json.loads(project.host("cluster", "describe", "--json"))["cluster_id"]


@pytest.mark.parametrize("node", NODES)
def test_a_node_has_no_privilege_and_writes_only_to_its_volume(project: Project, node: str) -> None:
    container = inspect(project.container(node))
    host = container["HostConfig"]
    assert container["Config"]["User"] == "10001:10001"
    assert host["ReadonlyRootfs"]
    assert not host["Privileged"]
    assert host["CapDrop"] == ["ALL"]
    assert "no-new-privileges:true" in host["SecurityOpt"]
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["RestartPolicy"]["Name"] == "no"
    assert [m["Destination"] for m in container["Mounts"] if m["RW"]] == ["/var/lib/strandline"]


@pytest.mark.parametrize("node", NODES)
def test_published_ports_are_bound_to_loopback(project: Project, node: str) -> None:
    """The listeners are plaintext and need no password."""
    bindings = [b for many in inspect(project.container(node))["NetworkSettings"]["Ports"].values() for b in many or []]
    assert bindings
    assert {b["HostIp"] for b in bindings} == {"127.0.0.1"}


def test_host_and_client_container_read_each_others_records(project: Project) -> None:
    """There are two listeners with their own advertised addresses: a client gets those of the listener that it used."""
    project.client("topic", "create", "both-ways", "--partitions", "3")
    project.host("produce", "both-ways", stdin="from the host\n")
    project.client("produce", "both-ways", stdin="from the client container\n")
    reading = ("consume", "both-ways", "--from", "beginning", "--exit-at-end")
    expected = ["from the client container", "from the host"]
    assert sorted(project.host(*reading).splitlines()) == expected
    assert sorted(project.client(*reading).splitlines()) == expected


def test_each_listener_returns_its_own_addresses(project: Project) -> None:
    outside = json.loads(project.host("cluster", "describe", "--json"))["brokers"]
    inside = json.loads(project.client("cluster", "describe", "--json"))["brokers"]
    assert [(b["host"], b["port"]) for b in outside] == [("localhost", project.ports[broker]) for broker in BROKERS]
    names = [f"{project.container(broker)}.{project.network('cluster')}" for broker in BROKERS]
    assert [(b["host"], b["port"]) for b in inside] == [(name, 9092) for name in names]


def test_kafkas_clients_on_the_host_read_what_strandlines_write(project: Project) -> None:
    """They get the addresses of the published ports of their own listener."""
    project.host("topic", "create", "kafkas", "--partitions", "3")
    project.host("produce", "kafkas", stdin="from Strandline\n")

    async def exchange() -> list[tuple[str, int]]:
        async with AIOKafkaProducer(bootstrap_servers=project.kafka_bootstrap, acks="all") as producer:
            await producer.send_and_wait("kafkas", b"from Kafka")
            brokers = sorted(producer.client.cluster.brokers())
        consumer = AIOKafkaConsumer("kafkas", bootstrap_servers=project.kafka_bootstrap, auto_offset_reset="earliest")
        async with consumer:
            values = {(await asyncio.wait_for(consumer.getone(), 30)).value for _ in range(2)}
        assert values == {b"from Strandline", b"from Kafka"}
        return [(broker.host, broker.port) for broker in brokers]

    assert asyncio.run(exchange()) == [("localhost", project.kafka_ports[broker]) for broker in BROKERS]
    values = project.client("consume", "kafkas", "--from", "beginning", "--exit-at-end").splitlines()
    assert sorted(values) == ["from Kafka", "from Strandline"]


def ready(project: Project, node: str) -> tuple[int, dict[str, Any]]:
    """Return the response of a node's published /health/ready."""
    url = f"http://127.0.0.1:{project.http_ports[node]}/health/ready"
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as e:
        with e:
            return e.code, json.load(e)


@pytest.mark.parametrize("node", NODES)
def test_the_host_reaches_a_nodes_health(project: Project, node: str) -> None:
    code, answer = ready(project, node)
    assert (code, answer["status"]) == (200, "ready")
    with urllib.request.urlopen(f"http://127.0.0.1:{project.http_ports[node]}/metrics", timeout=5) as page:
        assert "# TYPE" in page.read().decode()


def in_sync(project: Project, topic: str) -> list[list[int]]:
    """Return the ISR of each partition."""
    described = json.loads(project.host("topic", "describe", topic, "--json", check=False))
    return [partition["isr"] for partition in described["topics"][0]["partitions"]]


def test_a_killed_broker_stays_dead_until_started(project: Project) -> None:
    """An automatic restart would hide the fail-over. The other two brokers continue, and the restarted one catches up."""
    project.host("topic", "create", "killed", "--partitions", "3")
    docker("kill", project.container("broker-2"))
    wait_until(lambda: all(2 not in isr for isr in in_sync(project, "killed")), "broker 2 is out of every ISR")
    project.host("produce", "killed", stdin="one\ntwo\nthree\n")
    state = project.state("broker-2")
    assert (state["Running"], state["ExitCode"]) == (False, 137)

    docker("start", project.container("broker-2"))
    wait_until(lambda: all(2 in isr for isr in in_sync(project, "killed")), "broker 2 is in every ISR")


def test_a_disconnected_broker_still_serves_its_clients(project: Project) -> None:
    """This is the reason for two networks: replication and metadata stop, and the published ports still work. A plain `docker
    network connect` repairs it without an alias."""
    project.host("topic", "create", "cut", "--partitions", "3")
    docker("network", "disconnect", project.network("cluster"), project.container("broker-1"))
    others = f"localhost:{project.ports['broker-2']},localhost:{project.ports['broker-3']}"

    def is_out() -> bool:
        described = json.loads(project.host("topic", "describe", "cut", "--json", "--bootstrap", others, check=False))
        return all(1 not in partition["isr"] for partition in described["topics"][0]["partitions"])

    wait_until(is_out, "broker 1 is out of every ISR")
    alone = project.host("topic", "list", "--bootstrap", f"localhost:{project.ports['broker-1']}")
    assert "cut" in alone
    wait_until(lambda: ready(project, "broker-1")[0] == 503, "broker 1 says over its published port that it is not ready")

    docker("network", "connect", project.network("cluster"), project.container("broker-1"))
    wait_until(lambda: all(1 in isr for isr in in_sync(project, "cut")), "broker 1 is in every ISR")


def test_a_stopped_cluster_returns_with_its_data(project: Project, volumes: Volumes) -> None:
    """`docker-compose stop` sends SIGTERM to all at once: every process exits with 0 within the grace period, and brokers
    leave their clean-shutdown markers. `down` and `up` create new containers with the same volumes, and format nothing
    again."""
    project.host("topic", "create", "lasting", "--partitions", "2")
    project.host("produce", "lasting", stdin="".join(f"{i}\n" for i in range(100)))
    identities = {node: volumes.read(project.volume(node), "meta.properties") for node in NODES}

    took_s = wait_until(lambda: project.compose("stop").code == 0, "stopped")
    states = {node: project.state(node) for node in NODES}
    assert {node: state["ExitCode"] for node, state in states.items()} == dict.fromkeys(NODES, 0)
    assert not any(state["OOMKilled"] for state in states.values())
    assert took_s < STOP_MAX_S
    for node in NODES:
        assert project.events(node)[-1] == "node.stopped", project.events(node)[-3:]
    for broker in BROKERS:
        assert CLEAN_SHUTDOWN in volumes.hashes(project.volume(broker))

    project.down()
    assert not docker("ps", "-aq", "--filter", f"label=com.docker.compose.project={project.name}")
    project.up()
    assert {node: volumes.read(project.volume(node), "meta.properties") for node in NODES} == identities
    lines = project.host("consume", "lasting", "--from", "beginning", "--exit-at-end").split()
    assert sorted(map(int, lines)) == list(range(100))


@pytest.mark.parametrize("node", ["controller-1", "broker-1"])
def test_an_early_sigterm_is_not_lost(project: Project, node: str) -> None:
    """Process 1 has no default signal actions: a signal before the handler is set would have no effect, and `docker stop`
    would wait for the whole grace period."""
    docker("stop", project.container(node))
    docker("start", project.container(node))
    took_s = wait_until(lambda: docker("stop", project.container(node)) != "", "stopped")
    assert took_s < STOP_MAX_S
    assert project.state(node)["ExitCode"] in (0, 143)


def test_controllers_publish_no_protocol_port(project: Project) -> None:
    """Clients outside the cluster's network cannot reach the quorum's port."""
    for controller in CONTROLLERS:
        settings = inspect(project.container(controller))["NetworkSettings"]
        assert set(settings["Networks"]) == {project.network("cluster")}
        assert not settings["Ports"].get("9093/tcp")
