"""`sasl.scram.users.file`: users that exist without the metadata, and their credentials, as TOML.

    [alice]
    SCRAM-SHA-512 = "salt=...,stored_key=...,server_key=...,iterations=4096"

The values have Kafka's form, in base64. The file has no passwords, but guesses can be checked against it, so it should be
readable for the node only.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping

from strandline.protocol.errors import UsageError
from strandline.protocol.messages.security import SCRAM_ITERATIONS_MIN
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512
from strandline.protocol.security.scram import ITERATIONS_MAX, ScramCredential

Users = Mapping[tuple[str, str], ScramCredential]
"""(user, mechanism) -> credential."""
_FIELDS = ("salt", "stored_key", "server_key", "iterations")
_FORM = "salt=...,stored_key=...,server_key=...,iterations=4096"
_KEY_BYTES = {SCRAM_256: 32, SCRAM_512: 64}


def parse_users(text: str, path: str) -> dict[tuple[str, str], ScramCredential]:
    """The users of a file. Raises UsageError, which names the file and the user and repeats no value."""
    import tomllib

    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as e:
        raise UsageError(f"{path} is not valid TOML: {e}") from None
    users = {}
    for user, credentials in document.items():
        if not isinstance(credentials, dict) or not credentials:
            raise UsageError(f"{path}: user {user} needs a table with a credential: SCRAM-SHA-512 = {_FORM!r}")
        for mechanism, value in credentials.items():
            users[user, mechanism] = _credential(f"{path}: user {user}", mechanism, value)
    return users


def format_users(users: Users) -> str:
    """The text of a file with these users."""
    lines: list[str] = []
    for (user, mechanism), credential in sorted(users.items()):
        head = f"[{json.dumps(user)}]"
        lines += [] if head in lines else [head]
        lines.append(f'{mechanism} = "{_text(credential)}"')
    return "".join(f"{line}\n" for line in lines)


def pepper_of(users: Users) -> bytes:
    """A secret that all nodes with this file share, also after a restart. Only a reader of all its credentials can compute it."""
    return hashlib.sha256(format_users(users).encode()).digest()


def _text(credential: ScramCredential) -> str:
    parts = (credential.salt, credential.stored_key, credential.server_key)
    fields = [f"{name}={b64encode(part).decode()}" for name, part in zip(_FIELDS, parts, strict=False)]
    return ",".join([*fields, f"iterations={credential.iterations}"])


def _credential(where: str, mechanism: str, value: object) -> ScramCredential:
    if mechanism not in _KEY_BYTES:
        raise UsageError(f"{where}: {mechanism!r} is not a SCRAM mechanism; use {' or '.join(_KEY_BYTES)}")
    fields = dict(item.partition("=")[::2] for item in str(value).split(","))
    try:
        salt, stored_key, server_key = (b64decode(fields[name], validate=True) for name in _FIELDS[:3])
        credential = ScramCredential(salt, stored_key, server_key, int(fields["iterations"]))
    except (KeyError, ValueError):
        raise UsageError(f"{where}: the credential of {mechanism} is not of the form {_FORM}") from None
    if not salt or {len(stored_key), len(server_key)} != {_KEY_BYTES[mechanism]}:
        raise UsageError(f"{where}: a key of {mechanism} has {_KEY_BYTES[mechanism]} bytes")
    if not SCRAM_ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        raise UsageError(f"{where}: iterations must be from {SCRAM_ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return credential
