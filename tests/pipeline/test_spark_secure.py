"""A job on a cluster with users: it reads and writes as its user, and Spark shows its password nowhere."""

from __future__ import annotations

import contextlib
import io
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from strandline.client import Acl
from strandline.pipeline.client_settings import REDACTED, ClientSettings
from strandline.pipeline.options import admin_options, read_options, write_options
from strandline.protocol.errors import UsageError
from strandline.testing import Cluster, ThreadedCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SECRET = "hunter2-secret"
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="etl" password="{SECRET}";'
KAFKA = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": JAAS,
}
OURS = {
    "strandline.security_protocol": "SASL_PLAINTEXT",
    "strandline.sasl_plain_username": "etl",
    "strandline.sasl_plain_password": SECRET,
}
SETTINGS = {"security_protocol": "SASL_PLAINTEXT", "sasl_plain_username": "etl", "sasl_plain_password": SECRET}
BASE = {"bootstrap.servers": "b:1", "subscribe": "t"}


def written(folder: Path) -> str:
    path = folder / "client.properties"
    path.write_text("".join(f"{name.removeprefix('kafka.')}={value}\n" for name, value in KAFKA.items()))
    path.chmod(0o600)
    return str(path)


# -- options ----------------------------------------------------------------------------------------------------------


def test_kafkas_names_ours_and_a_file_mean_the_same(tmp_path: Path) -> None:
    """A job that is moved from Kafka's connector keeps its options."""
    for given in (KAFKA, OURS, {"clientConfig": written(tmp_path)}, {"CLIENTCONFIG": written(tmp_path)}):
        read = read_options({**BASE, **given}, is_stream=False).client
        write = write_options({"bootstrap.servers": "b:1", "topic": "t", **given}).client
        for client in (read, write):
            assert {name: client[name] for name in SETTINGS} == SETTINGS


def test_options_count_more_than_the_file(tmp_path: Path) -> None:
    given = {"clientConfig": written(tmp_path), "strandline.sasl_plain_username": "other"}
    client = read_options({**BASE, **given}, is_stream=False).client
    assert (client["sasl_plain_username"], client["sasl_plain_password"]) == ("other", SECRET)


def test_settings_are_shipped_with_their_secret_and_printed_without() -> None:
    options = read_options({**BASE, **OURS}, is_stream=False)
    shipped = pickle.loads(pickle.dumps(options))
    assert shipped.client["sasl_plain_password"] == SECRET
    for shown in (options, shipped, shipped.client, admin_options(shipped.client), ClientSettings(SETTINGS)):
        assert SECRET not in f"{shown} {shown!r}"
        assert REDACTED in repr(shown)


@pytest.mark.parametrize(
    "wrong",
    [
        {**KAFKA, "kafka.sasl.jaas.config": SECRET},
        {**OURS, "strandline.security_protocol": "PLAINTEXT"},
        {**OURS, "strandline.sasl_plain_pasword": SECRET},
        {**KAFKA, "kafka.ssl.truststore.type": "JKS"},
        {"strandline.sasl_oauth_token_provider": SECRET},
        {"clientConfig": "/no/such/file"},
    ],
)
def test_mistakes_are_errors_without_a_secret(wrong: dict[str, str]) -> None:
    with pytest.raises(UsageError) as e:
        read_options({**BASE, **wrong}, is_stream=False)
    assert SECRET not in str(e.value)


# -- Spark ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secure_log() -> Iterator[ThreadedCluster]:
    """A cluster on which "etl" may read and write the topics "in" and "out"."""
    with Cluster.running_in_thread(brokers=1, secure=True) as cluster:

        async def prepare() -> None:
            async with cluster.cluster.admin() as admin:
                await admin.upsert_scram_credentials("etl", SECRET, iterations=4096)
                rights = [("TOPIC", name, right) for name in ("in", "out") for right in ("READ", "WRITE")]
                rules = [Acl("User:etl", right, kind, name) for kind, name, right in rights]
                await admin.create_acls([*rules, Acl("User:etl", "WRITE", "TRANSACTIONAL_ID", "*")])

        for topic in ("in", "out"):
            cluster.create_topic(topic)
        cluster.run(prepare())
        cluster.send("in", b"1", b"2")
        yield cluster


def plans(df: DataFrame) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        df.explain("extended")
        df.explain("formatted")
    return shown.getvalue() + df._jdf.queryExecution().toString()


def test_batches_read_and_write_as_the_user_and_plans_have_no_secret(
    spark: SparkSession, secure_log: ThreadedCluster, tmp_path: Path
) -> None:
    servers = {"bootstrap.servers": secure_log.bootstrap_servers}
    df = spark.read.format("strandline").options(**servers, subscribe="in", **KAFKA).load()
    assert sorted(bytes(row.value) for row in df.select("value").collect()) == [b"1", b"2"]
    assert SECRET not in plans(df)
    df.select("value").write.format("strandline").options(**servers, topic="out", **OURS).mode("append").save()
    assert len(secure_log.read_all("out")) == 2


def test_streams_leave_no_secret_in_checkpoints_and_progress(
    spark: SparkSession, secure_log: ThreadedCluster, tmp_path: Path
) -> None:
    servers, checkpoint = {"bootstrap.servers": secure_log.bootstrap_servers}, tmp_path / "checkpoint"
    stream = spark.readStream.format("strandline").options(**servers, subscribe="in", startingOffsets="earliest", **KAFKA).load()
    writer = stream.select("value").writeStream.format("strandline").options(**servers, topic="out", **OURS)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert SECRET not in f"{query.lastProgress} {query.status} {query._jsq.toString()}"
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert files
    assert all(SECRET.encode() not in path.read_bytes() for path in files)


def test_errors_of_a_refused_job_name_no_secret(spark: SparkSession, secure_log: ThreadedCluster) -> None:
    servers = {"bootstrap.servers": secure_log.bootstrap_servers, "strandline.connect_timeout_ms": "2000"}
    wrong = {**KAFKA, "kafka.sasl.jaas.config": JAAS.replace("etl", "eve")}
    df = spark.read.format("strandline").options(**servers, subscribe="in", **wrong).load()
    with pytest.raises(Exception, match="AuthenticationFailed") as e:
        df.collect()
    assert SECRET not in str(e.value)
