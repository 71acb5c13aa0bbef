"""Settings of clients: which are accepted, how Kafka's properties files are read, and that no text contains a secret."""

from __future__ import annotations

import asyncio
import os
import pickle
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from strandline.protocol.errors import UsageError
from strandline.protocol.security.client_properties import read_properties
from strandline.protocol.security.client_security import NO_SECURITY, ClientSecurity

SECRET = "hunter2-secret"
SCRAM = {"security_protocol": "SASL_SSL", "sasl_plain_username": "alice", "sasl_plain_password": SECRET}
JAAS = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="{SECRET}";'


def written(tmp_path: Path, text: str, mode: int = 0o600) -> str:
    path = tmp_path / "client.properties"
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def pem(tmp_path: Path, name: str) -> str:
    (tmp_path / name).write_text("-----BEGIN CERTIFICATE-----\n")
    return name


async def token() -> str:
    return "t"


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"security_protocol": "TLS"}, "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        ({**SCRAM, "sasl_mechanism": "GSSAPI"}, "SCRAM-SHA-256"),
        ({**SCRAM, "security_protocol": "SSL"}, "sasl_plain_username is given, but security_protocol SSL has no SASL"),
        ({**SCRAM, "security_protocol": "PLAINTEXT"}, "has no SASL"),
        ({"ssl_cafile": "ca.pem"}, "ssl_cafile is given, but security_protocol PLAINTEXT encrypts nothing"),
        ({**SCRAM, "sasl_plain_password": None}, "SASL_SSL with SCRAM-SHA-512 needs sasl_plain_password"),
        ({**SCRAM, "sasl_plain_username": ""}, "needs sasl_plain_username"),
        ({**SCRAM, "sasl_plain_password": SECRET.encode()}, "sasl_plain_password must be a str"),
        ({**SCRAM, "sasl_plain_password": SECRET + "\ud800"}, "sasl_plain_password cannot be encoded in UTF-8"),
        ({**SCRAM, "sasl_mechanism": "PLAIN", "sasl_plain_username": "\udcff"}, "sasl_plain_username cannot be encoded"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_provider"),
        ({"security_protocol": "SSL", "ssl_keyfile": "k.pem"}, "ssl_keyfile is given without ssl_certfile"),
    ],
)
def test_settings_that_contradict_each_other_are_refused_in_one_sentence(wrong, text: str) -> None:
    """Without the check, a password that is given without SASL would silently not be used."""
    with pytest.raises(UsageError) as e:
        ClientSecurity(**wrong)
    assert text in str(e.value)
    assert SECRET not in str(e.value)
    assert "\n" not in str(e.value)


def test_secrets_are_not_in_the_repr() -> None:
    assert SECRET not in repr(ClientSecurity(**SCRAM, ssl_password=SECRET))
    assert "alice" in repr(ClientSecurity(**SCRAM))


def test_equal_settings_are_equal_and_survive_a_pickle() -> None:
    """Connections are shared between clients of the same identity only; Spark ships the settings to its executors."""
    security = ClientSecurity(**SCRAM)
    assert pickle.loads(pickle.dumps(security)) == security
    assert hash(security) != hash(ClientSecurity(**{**SCRAM, "sasl_plain_username": "bob"}))


def test_kafkas_properties_file_is_understood(tmp_path) -> None:
    path = written(
        tmp_path,
        f"""# Kafka's tools read the same file.
security.protocol=SASL_SSL
sasl.mechanism = SCRAM-SHA-256
sasl.jaas.config={JAAS}
ssl.truststore.type=PEM
ssl.truststore.location={pem(tmp_path, "ca.pem")}
ssl.keystore.type=PEM
ssl.keystore.location={pem(tmp_path, "alice.pem")}
ssl.endpoint.identification.algorithm=
some.other.key=1
""",
    )
    assert ClientSecurity.from_file(path) == ClientSecurity(
        **SCRAM,
        sasl_mechanism="SCRAM-SHA-256",
        ssl_cafile=str(tmp_path / "ca.pem"),
        ssl_certfile=str(tmp_path / "alice.pem"),
        ssl_check_hostname=False,
    )


def test_librdkafkas_names_are_understood() -> None:
    properties = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": SECRET,
    }
    assert ClientSecurity.from_properties(properties) == ClientSecurity(**{**SCRAM, "security_protocol": "SASL_PLAINTEXT"})


@pytest.mark.parametrize(
    ("jaas", "password"),
    [
        (JAAS, SECRET),
        ("org.apache.kafka.common.security.plain.PlainLoginModule required username=alice password=p;", "p"),
        (r'a.B required password="with \"quotes\" and ; and =" username="alice";', 'with "quotes" and ; and ='),
        ('a.B required\n  username="alice"\n  password="spaces in it" ;', "spaces in it"),
    ],
)
def test_user_and_password_are_found_in_the_jaas_configuration(jaas: str, password: str) -> None:
    security = ClientSecurity.from_properties({"security.protocol": "SASL_SSL", "sasl.jaas.config": jaas})
    assert (security.sasl_plain_username, security.sasl_plain_password) == ("alice", password)


def test_a_file_without_security_is_plaintext(tmp_path) -> None:
    assert ClientSecurity.from_file(written(tmp_path, "bootstrap.servers=b:9092\n")) == NO_SECURITY


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol=TLS", "security_protocol must be"),
        (f"security.protocol=SASL_SSL\nsasl.jaas.config={SECRET}", "sasl.jaas.config is written as"),
        ("security.protocol=SSL\nssl.truststore.location=none.pem", "none.pem: No such file"),
        ("security.protocol=SSL\nssl.truststore.location=client.properties", "is not a PEM file"),
        ("security.protocol=SSL\nssl.truststore.type=JKS\nssl.truststore.location=x", "ssl.truststore.type=JKS is not supported"),
        ("ssl.endpoint.identification.algorithm=ldap", "must be https, or empty"),
        ("sasl.oauthbearer.token.endpoint.url=https://x/token", "must name a file here"),
    ],
)
def test_wrong_values_in_a_file_are_one_sentence_that_names_it(tmp_path, text: str, reason: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as e:
        ClientSecurity.from_file(path)
    assert str(e.value).startswith(path)
    assert reason in str(e.value)
    assert SECRET not in str(e.value)
    assert "\n" not in str(e.value)


def test_missing_file_is_one_sentence(tmp_path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*none.properties: No such file"):
        ClientSecurity.from_file(str(tmp_path / "none.properties"))


def test_secret_that_others_may_read_is_noted(tmp_path) -> None:
    text = f"security.protocol=SASL_SSL\nsasl.jaas.config={JAAS}\n"
    with capture_logs() as lines:
        ClientSecurity.from_file(written(tmp_path, text, 0o600))
    assert lines == []
    with capture_logs() as lines:
        path = written(tmp_path, text, 0o644)
        ClientSecurity.from_file(path)
    assert lines == [{"event": "client_config.exposed", "log_level": "warning", "path": path}]


def test_token_of_a_file_is_read_for_each_authentication(tmp_path) -> None:
    file = tmp_path / "token"
    provider = ClientSecurity.from_properties(
        {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": f"file://{file}",
        }
    ).sasl_oauth_token_provider
    assert provider is not None
    for each in ("first", "second"):
        file.write_text(f"{each}\n")
        assert asyncio.run(provider()) == each


def test_properties_are_read_as_java_reads_them(tmp_path) -> None:
    path = written(tmp_path, "a=1\n! comment\n b : 2\\\n   3\nc d\ne\\=f=\\u0041\\tx\nempty=\n\n#end")
    assert read_properties(path) == {"a": "1", "b": "23", "c": "d", "e=f": "A\tx", "empty": ""}


def test_path_is_relative_to_the_file(tmp_path, monkeypatch) -> None:
    pem(tmp_path, "ca.pem")
    path = written(tmp_path, "security.protocol=SSL\nssl.ca.location=ca.pem\n")
    monkeypatch.chdir(tmp_path.parent)
    relative = os.path.relpath(path)
    assert ClientSecurity.from_file(relative).ssl_cafile == os.path.join(os.path.dirname(relative), "ca.pem")


def test_path_that_no_file_can_have_is_refused_in_one_sentence(tmp_path: Path) -> None:
    path = written(tmp_path, "security.protocol=SSL\nssl.ca.location=a\\u0000b\n")
    with pytest.raises(UsageError, match="is not a path of a file"):
        ClientSecurity.from_file(path)
    with pytest.raises(UsageError, match="is not a path of a file"):
        ClientSecurity.from_file("a\0b")
