"""Reads data volumes from outside: hashes of their files, and copies that a test may damage."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from engine import docker

HASHES = """
import hashlib, json, pathlib, sys
root = pathlib.Path(sys.argv[1])
files = {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in root.rglob("*") if p.is_file()}
print(json.dumps(files))
"""


class Volumes:
    """Acts on volumes through a short-lived container of `image`."""

    def __init__(self, image: str) -> None:
        self.image = image

    def hashes(self, volume: str) -> dict[str, str]:
        """Return path -> SHA-256 of the content, for every file."""
        return dict(json.loads(self.python(volume, HASHES, "/volume", options=":ro")))

    def read(self, volume: str, path: str) -> str:
        return self._inside(volume, "cat", f"/volume/{path}", options=":ro")

    def edit(self, volume: str, path: str, old: str, new: str) -> None:
        """Replace text in a file, which must contain it."""
        self.python(
            volume,
            "import pathlib, sys; p = pathlib.Path(sys.argv[1]); t = p.read_text(); assert sys.argv[2] in t, t; "
            "p.write_text(t.replace(sys.argv[2], sys.argv[3]))",
            f"/volume/{path}",
            old,
            new,
        )

    def python(self, volume: str, code: str, *arguments: str, options: str = "") -> str:
        return self._inside(volume, "python", "-c", code, *arguments, options=options)

    def _inside(self, volume: str, *words: str, options: str = "") -> str:
        mount = f"{volume}:/volume{options}"
        return docker("run", "--rm", "--network", "none", "--entrypoint", words[0], "-v", mount, self.image, *words[1:])

    @contextmanager
    def small(self, *, like: str | None = None) -> Iterator[str]:
        """Create a volume of 8 MiB in memory with a copy of another volume's files. It keeps them between two containers."""
        options = ["--opt", "type=tmpfs", "--opt", "device=tmpfs", "--opt", "o=size=8m,uid=10001,gid=10001,mode=0750"]
        with self._new(options, like) as name:
            yield name

    @contextmanager
    def copy(self, volume: str) -> Iterator[str]:
        """Create a volume with the same files."""
        with self._new([], volume) as name:
            yield name

    @contextmanager
    def _new(self, options: Sequence[str], like: str | None) -> Iterator[str]:
        name = f"strandline-copy-{secrets.token_hex(4)}"
        docker("volume", "create", *options, name)
        try:
            # This container keeps the volume mounted: a volume in memory loses its files when no container mounts it.
            mounts = ["-v", f"{name}:/volume", *(["-v", f"{like}:/from:ro"] if like is not None else [])]
            docker("run", "-d", "--name", name, "--init", "--network", "none", *mounts, "--entrypoint", "sleep", self.image, "1h")
            try:
                if like is not None:
                    docker("exec", "--user", "0:0", name, "cp", "-a", "/from/.", "/volume/")  # with their owners
                yield name
            finally:
                docker("rm", "-f", "-v", name)  # with the volume that the image declares
        finally:
            docker("volume", "rm", name)
