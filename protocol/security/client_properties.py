"""Kafka's client properties (`client.properties`, also known as `--command-config`) as the settings of a client.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="...";
    ssl.truststore.type=PEM
    ssl.truststore.location=ca.pem
    ssl.keystore.type=PEM
    ssl.keystore.location=alice.pem        the key and the certificate with its chain

The names of Kafka's Java client are understood, and those of librdkafka (`sasl.username`, `ssl.ca.location`). Other keys are
ignored, as in Kafka's tools. Key stores are PEM files: Python reads no Java key stores. A path is relative to the folder of the
file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger

logger = get_logger(__name__)

PLAIN_NAMES = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.truststore.location": "ssl_cafile",
    "ssl.ca.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}
"""Kafka's and librdkafka's key -> our setting of the same value."""
PATHS = ("ssl_cafile", "ssl_certfile", "ssl_keyfile")
SECRETS = frozenset({"sasl.jaas.config", "sasl.password", "ssl.key.password", "ssl.keystore.password", "ssl.truststore.password"})
"""Keys whose values are secret."""
NAMES = (
    frozenset(PLAIN_NAMES)
    | SECRETS
    | {
        "ssl.truststore.type",
        "ssl.keystore.type",
        "ssl.endpoint.identification.algorithm",
        "sasl.oauthbearer.token.endpoint.url",
    }
)
"""All keys that `settings_of` understands."""

_ENTRY = re.compile(r'([\w.]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]+)')
_MODULE = re.compile(r"\s*[\w.$]+\s+(required|requisite|sufficient|optional)\b(.*)", re.DOTALL | re.IGNORECASE)
_PEM_MARK = b"-----BEGIN "


def read_file(path: str) -> dict[str, str]:
    """The keys and values of a client's properties file. Raises UsageError if it cannot be read; a warning is logged if other
    users of the machine may read a secret in it."""
    properties = read_properties(path)
    if may_be_read_by_others(path, properties):
        logger.warning("client_config.exposed", path=path)
    return properties


def settings_of_file(properties: Mapping[str, str], path: str) -> dict[str, Any]:
    """The arguments of `ClientSecurity` from the properties of this file, as `settings_of` returns them. Raises UsageError also
    if a file that they name is not a readable PEM file."""
    settings = settings_of(properties, os.path.dirname(path))
    _check_readable(settings)
    return settings


def may_be_read_by_others(path: str, properties: Mapping[str, str]) -> bool:
    """Whether the file contains a secret, and users other than its owner may read it."""
    return any(properties.get(key) for key in SECRETS) and bool(os.stat(path).st_mode & 0o044)


def settings_of(properties: Mapping[str, str], folder: str = "") -> dict[str, Any]:
    """The arguments of `ClientSecurity`. Keys that are not in `NAMES` are ignored. `folder`: where relative paths begin.
    Raises UsageError if a value cannot be used."""
    given = {key: value.strip() for key, value in properties.items() if key in NAMES and isinstance(value, str)}
    settings: dict[str, Any] = {PLAIN_NAMES[key]: value for key, value in given.items() if key in PLAIN_NAMES and value}
    if "security_protocol" in settings:
        settings["security_protocol"] = settings["security_protocol"].upper()
    if given.get("sasl.jaas.config"):
        settings |= _credentials(given["sasl.jaas.config"])
    if "ssl.endpoint.identification.algorithm" in given:
        settings["ssl_check_hostname"] = _checks_hostname(given["ssl.endpoint.identification.algorithm"])
    if given.get("sasl.oauthbearer.token.endpoint.url"):
        settings["sasl_oauth_token_provider"] = _token_of_file(given["sasl.oauthbearer.token.endpoint.url"])
    for name in PATHS:
        if name in settings:
            settings[name] = _resolved(settings[name], folder)
    _check_types(given)
    return settings


# -- the file ---------------------------------------------------------------------------------------------------------


def read_properties(path: str) -> dict[str, str]:
    """The keys and values of a properties file. Raises UsageError if it cannot be read."""
    try:
        return dict(_entries(_content(path).decode()))
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a file of properties: it is not text") from None


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as e:
        raise UsageError(f"cannot read {path}: {e.strerror}") from None
    except ValueError:
        raise UsageError(f"cannot read {path!r}: that is not a path of a file") from None


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """The entries of Java's format: comments with # or !, `=` or `:` or a space between key and value, and lines that end in a
    backslash go on in the next one."""
    for line in _logical_lines(text):
        key, separator, value = _split(line)
        if key:
            yield key, _unescaped(value if separator else "")


def _logical_lines(text: str) -> Iterator[str]:
    open_line = ""
    for raw in text.splitlines():
        line = raw.lstrip()
        if not open_line and line.startswith(("#", "!")):
            continue
        line = open_line + line
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            open_line = line[:-1]
            continue
        open_line = ""
        yield line
    if open_line:
        yield open_line


def _split(line: str) -> tuple[str, str, str]:
    match = re.match(r"((?:[^\\=:\s]|\\.)*)(\s*[=:]\s*|\s+|$)(.*)", line.rstrip())
    return (_unescaped(match[1]), match[2] or "", match[3]) if match else ("", "", "")


def _unescaped(text: str) -> str:
    known = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def character(match: re.Match[str]) -> str:
        return chr(int(match[1][1:], 16)) if len(match[1]) == 5 else known.get(match[1], match[1])

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", character, text)


# -- single values ----------------------------------------------------------------------------------------------------


def _credentials(jaas: str) -> dict[str, str]:
    """The user name and the password in `sasl.jaas.config`. An error does not repeat the value, which is secret."""
    module = _MODULE.fullmatch(jaas)
    if module is None:
        raise UsageError(
            'sasl.jaas.config is written as: org.apache.kafka.common.security.scram.ScramLoginModule required username="..." '
            'password="...";'
        )
    options = {key: _unquoted(value) for key, value in _ENTRY.findall(module[2])}
    names = {"username": "sasl_plain_username", "password": "sasl_plain_password"}
    return {ours: options[theirs] for theirs, ours in names.items() if theirs in options}


def _unquoted(value: str) -> str:
    return re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value


def _checks_hostname(algorithm: str) -> bool:
    if algorithm.lower() not in ("", "https", "none"):
        raise UsageError(f"ssl.endpoint.identification.algorithm must be https, or empty, not {algorithm!r}")
    return algorithm.lower() == "https"


def _check_types(given: Mapping[str, str]) -> None:
    for kind in ("truststore", "keystore"):
        found = given.get(f"ssl.{kind}.type", "PEM")
        if found.upper() not in ("PEM", ""):
            raise UsageError(
                f"ssl.{kind}.type={found} is not supported: convert the store to PEM (openssl pkcs12), and set the type PEM"
            )


def _resolved(path: str, folder: str) -> str:
    """The path of a file that the properties name: relative to their folder."""
    return os.path.join(folder, path) if folder else path


def _check_readable(settings: Mapping[str, Any]) -> None:
    for name in PATHS:
        if name in settings:
            _check_pem(settings[name])


def _check_pem(path: str) -> None:
    if _PEM_MARK not in _content(path):
        raise UsageError(f"{path} is not a PEM file; convert a Java key store with keytool and openssl pkcs12")


def _token_of_file(url: str) -> FileToken:
    """A provider that reads the token from a file before each authentication, as Kafka does for a `file:` URL."""
    if not url.startswith("file:"):
        raise UsageError(
            "sasl.oauthbearer.token.endpoint.url must name a file here (file:///path/to/token); a program gives another source "
            "of tokens as sasl_oauth_token_provider"
        )
    return FileToken(re.sub(r"^file:(//)?", "", url))


class FileToken:
    """Reads the token from a file again for each authentication."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def __call__(self) -> str:
        return _content(self.path).decode(errors="replace").strip()
