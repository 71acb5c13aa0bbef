"""Users that exist without the metadata: nodes, and a first administrator (`sasl.scram.users.file`).

DIR/users.toml        every such user and its credential, for all nodes
DIR/NAME.password     the password of one of them, for the node that logs in with it (`sasl.node.password.file`)
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from strandline.certificates import path_of, write_file
from strandline.controller.metadata.node_security.users_file import format_users, parse_users
from strandline.protocol.errors import UsageError
from strandline.protocol.security.mechanisms import SCRAM_256, SCRAM_512
from strandline.protocol.security.scram import ITERATIONS_USUAL, check_name, new_credential

USERS = "users.toml"
ITERATIONS = ITERATIONS_USUAL
PASSWORD_BYTES = 18


def add_user(folder: Path, name: str) -> Path:
    """Create a user with a random password; returns the path of the password's file. UsageError if the user exists, or if the
    name cannot be that of a user."""
    check_name(name)
    path, users_path = path_of(folder, name).with_suffix(".password"), folder / USERS
    try:
        users = parse_users(users_path.read_text(), str(users_path)) if users_path.exists() else {}
        if path.exists() or any(user == name for user, _ in users):
            raise UsageError(f"user {name} exists already in {folder}; remove {path.name} and its entry in {USERS} first")
        folder.mkdir(parents=True, exist_ok=True)
        password = secrets.token_urlsafe(PASSWORD_BYTES)
        for mechanism in (SCRAM_512, SCRAM_256):
            users[name, mechanism] = new_credential(mechanism, password, os.urandom, ITERATIONS)
        write_file(path, password.encode(), is_secret=True)
        write_file(users_path, format_users(users).encode(), is_secret=True)
    except OSError as e:
        raise UsageError(f"cannot write {e.filename}: {e.strerror}") from None
    return path
