"""What `strandline pipeline offload` prints while it runs, when it ends, and when Ctrl-C ends it.

Progress is on stderr: on a terminal one line that is written over, else a line per batch. The summary is on stdout.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from strandline.cli import interrupts
from strandline.cli.common import print_json, print_table

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

LOOK_EVERY_S = 0.5


class Watch:
    """`before`: number of the lake's newest manifest when the query was started; None for a Delta table."""

    def __init__(self, to: str, before: int | None, *, as_json: bool) -> None:
        from strandline.pipeline.jobs.offload_progress import OffloadProgress

        self._to, self._before, self._as_json = to, before, as_json
        self._progress = OffloadProgress()
        self._began = time.monotonic()
        self._query_id = ""
        self._line_is_open = False

    def until_end(self, query: StreamingQuery) -> None:
        """Returns when the query has ended; raises its error. Ctrl-C prints the summary and exits."""
        self._query_id = str(query.id)
        with interrupts.exiting_after(self._summary):
            while not query.awaitTermination(LOOK_EVERY_S):  # type: ignore[arg-type]
                self._look(query)
            self._look(query)
        self._summary()

    def _look(self, query: StreamingQuery) -> None:
        for batch in self._progress.take([json.loads(report.json) for report in query.recentProgress]):
            line = self._progress.line(batch, time.monotonic() - self._began)
            if sys.stderr.isatty():
                print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)
                self._line_is_open = True
            else:
                print(line, file=sys.stderr, flush=True)

    def _summary(self) -> None:
        from strandline.pipeline.jobs.offload_progress import sentence

        if self._line_is_open:
            print(file=sys.stderr, flush=True)
        summary = self._progress.summary(time.monotonic() - self._began, self._files())
        if self._as_json:
            print_json(summary)
            return
        print(sentence(summary, self._to), flush=True)
        if rows := summary["partitions"]:
            print_table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows])
        sys.stdout.flush()

    def _files(self) -> Any:
        from strandline.pipeline.jobs.offload_progress import files_since

        return None if self._before is None else files_since(self._to, self._before, self._query_id)
