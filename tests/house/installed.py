"""The two kinds of install that users have, each in a new environment: from a wheel, and editable.

The build hooks of pyproject.toml run on a copy of the sources, as pip runs them, and the result is unpacked as pip does. That
takes two seconds, while another download of the dependencies would take half a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("docs/client.md", "README.md")


def programs_of_pages() -> dict[str, str]:
    """Return the complete programs among the examples of README and docs/client.md, by page."""
    found = {page: re.findall(r"^```python\n(import asyncio\n.*?)^```", (ROOT / page).read_text(), re.M | re.S) for page in PAGES}
    return {page: program for page, programs in found.items() for program in programs}


class Install(NamedTuple):
    source: Path
    """The copy of the checkout from which it was installed."""
    wheel: Path
    environment: Path

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def run(self, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python outside the checkout."""
        return subprocess.run([str(self.python), *words], cwd=cwd, capture_output=True, text=True, timeout=60)


def copy_sources(target: Path) -> Path:
    """Copy the files that git tracks or would track, so that no file of an earlier build is used. Links stay links."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_symlink():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).symlink_to((ROOT / name).readlink())
        elif (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((ROOT / name).read_bytes())
    return target


def build(hook: str, source: Path, out: Path) -> Path:
    """Build the sources with `build_wheel` or `build_editable`; returns the file."""
    out.mkdir(parents=True, exist_ok=True)
    code = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"
    subprocess.run([sys.executable, "-c", code, hook, str(out)], cwd=source, capture_output=True, check=True, timeout=120)
    (wheel,) = out.glob("*.whl")
    return wheel


def install(hook: str, folder: Path) -> Install:
    source = copy_sources(folder / "source")
    wheel = build(hook, source, folder / "wheel")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True, timeout=60)
    (site_packages,) = environment.glob("lib/python3*/site-packages")
    zipfile.ZipFile(wheel).extractall(site_packages)
    # The dependencies are those of the environment that runs the test. A .pth file in that folder is not read a second time, so
    # an editable install of the checkout itself does not show.
    (site_packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")) + "\n")
    return Install(source, wheel, environment)
