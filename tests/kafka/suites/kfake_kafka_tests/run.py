"""Kafka's own tests, which franz-go's authors ported to Go for kfake, their fake of Kafka. Here they run against Strandline.

Go's module proxy has them with kfake's module, in the folder kafka_tests. They are built with our own package `kfake`, whose
clusters are Strandline's.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import golang  # noqa: E402
import suite  # noqa: E402

MODULE, VERSION = "github.com/twmb/franz-go/pkg/kfake", "v0.0.0-20260918054303-01f206a7e32c"
GO_MOD = f"""module kafka_tests

go 1.26.0

require (
	github.com/twmb/franz-go v1.22.3
	github.com/twmb/franz-go/pkg/kadm v1.20.0
	github.com/twmb/franz-go/pkg/kfake v0.0.0
	github.com/twmb/franz-go/pkg/kmsg v1.15.1
)

replace {MODULE} => ./kfake
"""
MAIN = """package kafka_tests

import (
	"os"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
)

func TestMain(m *testing.M) {
	code := m.Run()
	kfake.StopAll()
	os.Exit(code)
}
"""
FAKE_MOD = f"module {MODULE}\n\ngo 1.26.0\n"
NEEDS_THE_FAKE = re.compile(r"fetchGate\(|c\.ControlKey\(|c\.Fault\(")
SKIPPED = suite.SKIPPED, "it steps in between the requests to kfake, which nobody can with a real broker"


def build() -> Path:
    folder = suite.CACHE / "go" / f"kafka_tests-{VERSION}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(golang.module(MODULE, VERSION) / "kafka_tests", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    shutil.copytree(HERE / "kfake", folder / "kfake")
    (folder / "go.mod").write_text(GO_MOD)
    (folder / "main_test.go").write_text(MAIN)
    (folder / "kfake" / "go.mod").write_text(FAKE_MOD)
    return golang.build_tests(folder, ".", f"kafka_tests-{VERSION}.test", again=True)


def all_tests() -> dict[str, bool]:
    """Test -> whether it needs the fake."""
    files = sorted((golang.module(MODULE, VERSION) / "kafka_tests").glob("*_test.go"))
    functions = [function for file in files for function in file.read_text().split("\nfunc ")[1:]]
    return {f.partition("(")[0]: bool(NEEDS_THE_FAKE.search(f)) for f in functions if f.startswith("Test")}


def run(tests: list[str]) -> suite.Results:
    chosen = {test.partition("/")[0] for test in tests}
    known = {test: needs for test, needs in all_tests().items() if not chosen or test in chosen}
    results = {test: SKIPPED for test, needs in known.items() if needs}
    with suite.work_folder("kafka-tests") as folder:
        log = folder / "output.log"
        environment = {"STRANDLINE_CLUSTER": f"{sys.executable}\n{HERE / 'cluster.py'}"}
        names = [test for test, needs in known.items() if not needs]
        results |= golang.run_tests(build(), names, environment, log=log, seconds=240, parallel=1)
        errors = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("ERRORS")]
        return results | {suite.ERRORS: (suite.FAILED, errors[0]) if errors else (suite.PASSED, "")}


if __name__ == "__main__":
    sys.exit(suite.main(HERE, run))
