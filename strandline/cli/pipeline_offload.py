"""The output of `strandline pipeline offload`: its progress, and a summary when it ends or Ctrl-C ends it.

Progress goes to stderr: a terminal has one line that is overwritten, any other output has a line per batch. The summary goes to
stdout.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from strandline.cli import interrupts
from strandline.cli.output import Form, print_document, print_table

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

POLL_INTERVAL_S = 0.5


class Watch:
    """Waits for the end of an offload and prints its progress and summary. `before` is the number of the lake's newest manifest
    when the query was started; None for a Delta table."""

    def __init__(self, to: str, before: int | None, *, output: Form) -> None:
        from strandline.pipeline.jobs.offload_progress import OffloadProgress

        self._to, self._before, self._output = to, before, output
        self._progress = OffloadProgress()
        self._began = time.monotonic()
        self._query_id = ""
        self._line_is_open = False

    def until_end(self, query: StreamingQuery) -> None:
        """Returns when the query has ended. Raises the query's error. Ctrl-C prints the summary and exits."""
        self._query_id = str(query.id)
        with interrupts.exiting_after(self._summary):
            while not query.awaitTermination(POLL_INTERVAL_S):  # type: ignore[arg-type]
                self._show_progress(query)
            self._show_progress(query)
        self._summary()

    def _show_progress(self, query: StreamingQuery) -> None:
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
        if self._output.is_document:
            print_document(summary, self._output)
            return
        print(sentence(summary, self._to), flush=True)
        if rows := summary["partitions"]:
            print_table([name.replace("_", " ") for name in rows[0]], [list(row.values()) for row in rows], self._output)
        sys.stdout.flush()

    def _files(self) -> Any:
        from strandline.pipeline.jobs.offload_progress import files_since

        return None if self._before is None else files_since(self._to, self._before, self._query_id)
