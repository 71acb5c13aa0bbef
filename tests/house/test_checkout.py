"""A script that runs in the checkout imports the checkout's folder `strandline`, which precedes the installed package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOOK = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder).lower()]
sys.path.insert(0, sys.argv[1])
from strandline import Producer
import strandline.client
print(strandline.client.__file__)
"""


def test_a_script_in_the_checkout_imports_the_whole_package() -> None:
    words = [sys.executable, "-c", LOOK, str(ROOT)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).resolve() == ROOT / "client" / "__init__.py"
