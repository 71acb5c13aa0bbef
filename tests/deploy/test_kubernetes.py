"""The manifests of deploy/kubernetes are valid against the API's schemas and fit the nodes.

These tests run without Kubernetes. They compute a pod's environment as the kubelet does, and parse it with the nodes'
own configuration.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from tools import DEPLOY, check

from strandline.broker.config import BrokerConfig
from strandline.controller.config import ControllerConfig
from strandline.controller.metadata.node_keys import BROKER_KEYS
from strandline.node import from_environment

FOLDER = DEPLOY / "kubernetes"
OLDEST = "1.28"
"""The first version that labels the pods of a StatefulSet with their ordinal."""
ROLES = ("broker", "controller")
Manifest = dict[str, Any]


def documents(file: Path) -> list[Manifest]:
    return [d for d in yaml.safe_load_all(file.read_text()) if d]


def resource_files() -> list[Path]:
    """Return the files that the two kustomizations name."""
    folders = (FOLDER, FOLDER / "external-access")
    return [folder / name for folder in folders for name in documents(folder / "kustomization.yaml")[0]["resources"]]


def resources() -> list[Manifest]:
    return [d for file in resource_files() for d in documents(file)]


def one(kind: str, name: str) -> Manifest:
    (found,) = [r for r in resources() if r["kind"] == kind and r["metadata"]["name"] == name]
    return found


def pod(role: str) -> Manifest:
    return dict(one("StatefulSet", role)["spec"]["template"])


def container(role: str) -> Manifest:
    (only,) = pod(role)["spec"]["containers"]
    return dict(only)


def ordinals(role: str) -> range:
    spec = one("StatefulSet", role)["spec"]
    return range(spec["ordinals"]["start"], spec["ordinals"]["start"] + spec["replicas"])


def environment(role: str, ordinal: int, env: list[Manifest] | None = None) -> dict[str, str]:
    """Compute the environment as the kubelet does: the ConfigMap, then the list in order. $(NAME) is replaced by an earlier
    variable, or stays."""
    fields = {
        "metadata.name": f"{role}-{ordinal}",
        "metadata.namespace": "strandline",
        "metadata.labels['apps.kubernetes.io/pod-index']": str(ordinal),
        "status.hostIP": f"192.0.2.{ordinal}",
    }
    result = {}
    for source in container(role)["envFrom"]:
        result.update(one("ConfigMap", source["configMapRef"]["name"])["data"])
    for variable in env or container(role)["env"]:
        if "valueFrom" in variable:
            result[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
        else:
            result[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: result.get(m[1], m[0]), variable["value"])
    return result


def config(role: str, ordinal: int, env: list[Manifest] | None = None) -> Any:
    mapping = from_environment(role, environment(role, ordinal, env))
    return {"broker": BrokerConfig, "controller": ControllerConfig}[role].from_mapping(mapping)


# -- what the API says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_every_manifest_is_valid(version: str) -> None:
    """The check is strict: an unknown field is an error, while the server would silently drop it."""
    for resource in resources():
        kubernetes_validate.validate(resource, version, strict=True)


def test_an_unknown_field_is_found() -> None:
    stateful_set = one("StatefulSet", "broker")
    stateful_set["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(stateful_set, OLDEST, strict=True)


def test_kustomization_lists_every_manifest() -> None:
    """kustomize applies only the manifests that a kustomization names."""
    patches = {FOLDER / "external-access" / p["path"] for p in external_patches() if "path" in p}
    named = {*resource_files(), *patches, *secure_patches()}
    assert named == {file for file in FOLDER.rglob("*.yaml") if file.name != "kustomization.yaml"}


# -- who is who -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_each_pod_gets_a_configuration_that_its_node_accepts(role: str) -> None:
    for ordinal in ordinals(role):
        assert config(role, ordinal).node_id == ordinal


def test_no_two_nodes_share_an_id() -> None:
    assert not set(ordinals("broker")) & set(ordinals("controller"))


def test_the_voters_are_the_controller_pods() -> None:
    service = one("Service", one("StatefulSet", "controller")["spec"]["serviceName"])
    voters = [(v.id, v.host) for v in config("broker", 1).voters]
    assert voters == [(n, f"controller-{n}.{service['metadata']['name']}") for n in ordinals("controller")]


def test_each_broker_advertises_itself() -> None:
    addresses = [a for n in ordinals("broker") for a in config("broker", n).advertised_listeners]
    assert {a.host for a in addresses} == {
        host for n in ordinals("broker") for host in (f"broker-{n}.broker", f"broker-{n}.broker.strandline.svc")
    }


def test_service_links_are_disabled() -> None:
    """The service `strandline` would set STRANDLINE_SERVICE_HOST in every pod, and nodes reject that variable."""
    assert any(r["kind"] == "Service" and r["metadata"]["name"].startswith("strandline") for r in resources())
    assert all(pod(role)["spec"]["enableServiceLinks"] is False for role in ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_nodes_find_each_other_before_they_are_ready(role: str) -> None:
    """A leader needs votes, a vote needs an address, and a controller is not ready without a leader."""
    service = one("Service", role)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert one("StatefulSet", role)["spec"]["podManagementPolicy"] == "Parallel"


# -- clients outside --------------------------------------------------------------------------------------------------


# -- security ---------------------------------------------------------------------------------------------------------


def secure_patches() -> list[Path]:
    (component,) = documents(FOLDER / "secure" / "kustomization.yaml")
    return [FOLDER / "secure" / patch["path"] for patch in component["patches"]]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("with_external", [False, True])
def test_the_secure_component_authenticates_every_listener(role: str, with_external: bool) -> None:
    """Nodes authenticate by certificates and clients by passwords; no other peer is accepted."""
    (patch,) = documents(FOLDER / "secure" / "config.yaml")
    ordinal = ordinals(role)[0]
    variables = external_environment() if role == "broker" and with_external else None
    mapping = from_environment(role, environment(role, ordinal, variables) | patch["data"])
    settings = {"broker": BrokerConfig, "controller": ControllerConfig}[role].from_mapping(mapping).security
    assert settings.unauthenticated == []
    assert {listener.name for listener in settings.own if listener.has_sasl} == {
        listener.name for listener in settings.listeners if listener.name not in ("INTERNAL", "CONTROLLER")
    }
    assert settings.protocol(settings.to_controllers) == settings.protocol(settings.to_brokers or "INTERNAL") == "SSL"
    files = {path for security in settings.own for key, path in security.values.items() if key.endswith((".location", ".file"))}
    (mounted,) = documents(FOLDER / "secure" / f"{role}s.yaml")
    (mount,) = mounted["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    assert {str(Path(path).parent) for path in files if path} == {mount["mountPath"]}


@pytest.mark.parametrize("role", ROLES)
def test_the_certificates_of_a_role_are_mounted_for_its_group(role: str) -> None:
    (patch,) = documents(FOLDER / "secure" / f"{role}s.yaml")
    spec = patch["spec"]["template"]["spec"]
    (volume,), (named,) = spec["volumes"], spec["containers"]
    assert (patch["metadata"]["name"], named["name"], volume["secret"]["secretName"]) == (role, role, f"{role}-tls")
    assert volume["secret"]["defaultMode"] == 0o440
    assert "--from-file=tls.crt=certs/$role.pem" in (FOLDER / "README.md").read_text()


def external_patches() -> list[Manifest]:
    return list(documents(FOLDER / "external-access" / "kustomization.yaml")[0]["patches"])


def external_environment() -> list[Manifest]:
    """Return the broker's variables with the patch: kustomize moves the patch's variables to the front, in its order."""
    (patch,) = documents(FOLDER / "external-access" / "listener.yaml")
    base = {v["name"]: v for v in container("broker")["env"]}
    patched = {v["name"]: base.get(v["name"], {}) | v for v in patch["spec"]["template"]["spec"]["containers"][0]["env"]}
    return list((patched | {name: v for name, v in base.items() if name not in patched}).values())


def test_each_broker_has_its_own_external_address() -> None:
    """The address of a partition's leader must lead to that broker and no other."""
    for ordinal in ordinals("broker"):
        with_external = config("broker", ordinal, external_environment())
        *inside, outside, for_kafka = with_external.advertised_listeners
        assert inside == list(config("broker", ordinal).advertised_listeners)
        service = one("Service", f"broker-{ordinal}-external")["spec"]
        assert (outside.host, outside.port) == (f"192.0.2.{ordinal}", service["ports"][0]["nodePort"])
        assert (for_kafka.host, for_kafka.port) == (f"192.0.2.{ordinal}", service["ports"][1]["nodePort"])
        assert (with_external.speaks_kafka(outside.name), with_external.speaks_kafka(for_kafka.name)) == (False, True)
        assert service["selector"] == {"statefulset.kubernetes.io/pod-name": f"broker-{ordinal}"}


def test_kustomize_builds_what_these_tests_assume(tmp_path: Path) -> None:
    """Above all it checks the order of the variables, because Kubernetes replaces only earlier ones. Needs kubectl; Debian's
    version does not support components."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    for file in FOLDER.rglob("*.yaml"):
        target = tmp_path / file.relative_to(FOLDER)
        target.parent.mkdir(exist_ok=True)
        target.write_text(file.read_text().replace("# components:", "components:").replace("#   - ", "  - "))
    built = [d for d in yaml.safe_load_all(check(kubectl, "kustomize", tmp_path)) if d]
    (brokers,) = [d for d in built if d["kind"] == "StatefulSet" and d["metadata"]["name"] == "broker"]
    env = brokers["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [environment("broker", 2, env)] == [environment("broker", 2, external_environment())]
    assert "$(" not in str(environment("broker", 2, env))
    for resource in built:
        kubernetes_validate.validate(resource, OLDEST, strict=True)


# -- health, and the end ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_probes_use_the_http_port(role: str) -> None:
    ports = {p["name"]: p["containerPort"] for p in container(role)["ports"]}
    first = ordinals(role)[0]
    assert str(config(role, first).values["http.listener"]) == f"0.0.0.0:{ports['http']}"
    paths = {probe: container(role)[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {p["port"] for p in paths.values()} == {"http"}
    assert [p["path"] for p in paths.values()] == ["/health/live", "/health/live", "/health/ready"]


@pytest.mark.parametrize("role", ROLES)
def test_every_port_of_a_listener_is_named(role: str) -> None:
    """Services and network policies refer to ports by these names."""
    first = config(role, ordinals(role)[0])
    listening = {listener.port for listener in first.listeners} if role == "broker" else {first.port}
    named = {p["containerPort"] for p in container(role)["ports"] if p["name"] != "http"}
    assert named == listening
    allowed = {p["port"] for rule in one("NetworkPolicy", role)["spec"]["ingress"] for p in rule["ports"]}
    assert allowed == {p["name"] for p in container(role)["ports"]}


def test_a_broker_has_time_to_hand_over_its_leaders() -> None:
    shutdown_ms = next(key.default for key in BROKER_KEYS if key.name == "controlled.shutdown.timeout.ms")
    assert pod("broker")["spec"]["terminationGracePeriodSeconds"] * 1000 >= 3 * shutdown_ms


@pytest.mark.parametrize("role", ROLES)
def test_disruption_budgets_allow_one_pod_at_a_time(role: str) -> None:
    budget = one("PodDisruptionBudget", role)["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == pod(role)["metadata"]["labels"]


@pytest.mark.parametrize("role", ROLES)
def test_no_two_nodes_of_a_role_share_a_machine(role: str) -> None:
    (rule,) = pod(role)["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["topologyKey"] == "kubernetes.io/hostname"
    assert rule["labelSelector"]["matchLabels"] == pod(role)["metadata"]["labels"]


# -- what a pod may do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_runs_as_the_images_user_without_any_privilege(role: str) -> None:
    user = next(line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("USER "))
    security = pod(role)["spec"]["securityContext"]
    assert user == f"USER {security['runAsUser']}:{security['runAsGroup']}"
    assert security["fsGroup"] == security["runAsGroup"]
    assert security["runAsNonRoot"] is True
    assert container(role)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("role", ROLES)
def test_the_log_directory_is_below_the_volumes_root(role: str) -> None:
    """The root of a volume may contain files of the file system, such as lost+found on ext4."""
    (mount,) = container(role)["volumeMounts"]
    (claim,) = one("StatefulSet", role)["spec"]["volumeClaimTemplates"]
    assert claim["metadata"]["name"] == mount["name"]
    (directory,) = config(role, ordinals(role)[0]).values["log.dirs"]
    assert Path(directory).parent == Path(mount["mountPath"])
