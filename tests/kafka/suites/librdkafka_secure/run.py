"""librdkafka's own tests over TLS and SASL, against a closed cluster: the tests of security, and one or more of each other kind.

The name of a test begins with the way to the brokers: `SASL_SSL SCRAM-SHA-512: 0135_sasl_credentials`.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import librdkafka_tests as tests  # noqa: E402
import librdkafka_tools  # noqa: E402
import suite  # noqa: E402
from issuer import CLIENT_ID, CLIENT_SECRET, SCOPE, Issuer, serving  # noqa: E402
from secure_cluster import PASSWORD, USER, SecureCluster  # noqa: E402

SECONDS = 900
"""A test that has not begun after this time is skipped."""
SETTINGS = {**tests.COMMON_SETTINGS, **tests.SETTINGS["default"]}
OF_OTHERS = ["0012_produce_consume", "0030_offset_commit", "0103_transactions", "0113_cooperative_rebalance/n_wildcard"]
TESTS = {
    "SSL": ["0097_ssl_verify", *OF_OTHERS],
    "SSL, certificates requested": ["0097_ssl_verify"],
    "SASL_SSL SCRAM-SHA-512": ["0135_sasl_credentials", "0142_reauthentication", *OF_OTHERS],
    "SASL_SSL SCRAM-SHA-256": ["0135_sasl_credentials", "0012_produce_consume"],
    "SASL_SSL PLAIN": ["0135_sasl_credentials", "0142_reauthentication", "0012_produce_consume"],
    "SASL_SSL OAUTHBEARER": ["0126_oauthbearer_oidc", "0142_reauthentication", "0012_produce_consume"],
    "SASL_PLAINTEXT SCRAM-SHA-512": ["0135_sasl_credentials", "0012_produce_consume"],
}
LENIENT = "SASL_SSL SCRAM-SHA-512, lenient"
OF_RIGHTS = [
    "0081_admin/do_test_CreateAcls",
    "0081_admin/do_test_DeleteAcls",
    "0081_admin/do_test_DescribeAcls",
    "0081_admin/do_test_DescribeCluster",
    "0081_admin/do_test_DescribeConsumerGroups",
    "0081_admin/do_test_DescribeConsumerGroups_with_authorized_ops",
    "0081_admin/do_test_DescribeTopics",
    "0081_admin/do_test_UserScramCredentials",
]
"""These tests change rights. Those with "Describe" in the name check their own rights if the client has a password."""


def way_of(name: str, cluster: SecureCluster, issuer: Issuer) -> tests.Way:
    """The connection settings of clients, by the name of the way in `TESTS`."""
    protocol, _, mechanism = name.split(",")[0].partition(" ")
    listener, environment = protocol, dict[str, str]()
    conf = {"security.protocol": protocol, **(cluster.trust if "SSL" in protocol else {})}
    if protocol == "SSL":
        listener, client_auth = ("SSL_REQUESTED", "requested") if "requested" in name else ("SSL", "required")
        conf |= cluster.certificate
        environment = cluster.tls_environment(client_auth)
    elif mechanism == "OAUTHBEARER":
        conf |= token_conf(issuer)
        environment = {**issuer.environment, "LD_LIBRARY_PATH": tests.with_curl(cluster.folder)}
    else:
        conf |= {"sasl.mechanism": mechanism, "sasl.username": USER, "sasl.password": PASSWORD}
    return tests.Way(cluster.addresses_of(listener), conf=conf, environment=environment)


def token_conf(issuer: Issuer) -> dict[str, str]:
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.client.id": CLIENT_ID,
        "sasl.oauthbearer.client.secret": CLIENT_SECRET,
        "sasl.oauthbearer.scope": SCOPE,
        "sasl.oauthbearer.token.endpoint.url": issuer.url,
        "test.timeout.multiplier": "2",
    }


def run(chosen: list[str]) -> suite.Results:
    source, end = tests.built(), time.monotonic() + SECONDS
    results: dict[str, tuple[str, str]] = {}
    for lenient, ways in ((False, TESTS), (True, {LENIENT: OF_RIGHTS})):
        wanted = {way: [name for name in names if not chosen or f"{way}: {name}" in chosen] for way, names in ways.items()}
        if any(wanted.values()):
            results |= run_ways(source, wanted, end, lenient=lenient)
    return results


def run_ways(source: Path, wanted: dict[str, list[str]], end: float, *, lenient: bool) -> suite.Results:
    results: dict[str, tuple[str, str]] = {}
    with suite.work_folder("librdkafka-secure") as folder:
        issuer = Issuer(folder / "issuer", USER)
        issuer.write_files()
        nodes = SecureCluster(folder / "cluster", issuer.key_set, SETTINGS, lenient=lenient)
        with suite.running(nodes) as cluster, serving(issuer):
            nodes.write_client_files()
            for way, names in wanted.items():
                place = folder / way.replace(" ", "-")
                librdkafka_tools.install(place / "kafka")
                ended = tests.run_names(source, place, names, way_of(way, nodes, issuer), end)
                results |= {f"{way}: {name}": how for name, how in ended.items()}
            return results | {name + (", lenient" if lenient else ""): how for name, how in cluster.result().items()}


if __name__ == "__main__":
    sys.exit(suite.main(HERE, run, missing=tests.what_lacks(), requirement=tests.REQUIREMENT))
