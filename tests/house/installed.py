"""The two kinds of install that users have, each in an empty environment of its own: from a wheel, and editable.

The build hooks of pyproject.toml are called as pip calls them, on a copy of the sources, and what they build is unpacked as pip
unpacks it. That takes two seconds instead of the half minute that downloading the dependencies once more would take.
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
    """The whole programs among the examples of README and of docs/client.md, by page."""
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
        """Run this environment's Python, outside the checkout."""
        return subprocess.run([str(self.python), *words], cwd=cwd, capture_output=True, text=True, timeout=60)


def copy_sources(target: Path) -> Path:
    """The files that git has, or would take: no left-over of an earlier build can help. Links stay links."""
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
    """The file that `build_wheel` or `build_editable` makes of the sources."""
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
