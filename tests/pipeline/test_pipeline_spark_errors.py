"""A failed Spark job: the command prints the cause, taken from the error texts of Spark 4.3."""

from __future__ import annotations

import pytest
import typer
from pyspark.errors import PySparkException

from strandline.cli.pipeline_common import spark_errors

IN_FUNCTION = """[STREAM_FAILED] Query [id = 293ec875, runId = 693456a5] terminated with exception: \
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach batch sink. Reason: An \
exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "/venv/py4j/clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "/job.py", line 69, in each
OSError: [Errno 28] No space left on device: 'checkpoint'
 SQLSTATE: 39000 SQLSTATE: XXKST
=== Streaming Query ===
Current State: ACTIVE
"""
IN_WORKER = """[STREAM_FAILED] Query terminated with exception: Return Message: Traceback (most recent call last):
  File "/venv/pyspark/errors/exceptions/captured.py", line 262, in deco
    raise converted from None
pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/venv/strandline/client/admin/topic_descriptions.py", line 29, in _describe
    raise UnknownTopic("the topic does not exist", topic=topic.name)
strandline.client.errors.UnknownTopic: the topic does not exist (nowhere)
 SQLSTATE: 39000 SQLSTATE: XXKST
"""
OURS, OF_USER = "strandline.client.errors.UnknownTopic: the topic does not exist (nowhere)", "KeyError: 'orders'"
IN_JVM = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 0.\n\tat org.apache"


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (IN_FUNCTION, "OSError: [Errno 28] No space left on device: 'checkpoint'"),
        (IN_WORKER, "the topic does not exist (nowhere)"),
        (IN_WORKER.replace(OURS, OF_USER), OF_USER),
        (IN_JVM, "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 0."),
        ("Return Message: Traceback (most recent call last):", "Return Message: Traceback (most recent call last):"),
    ],
)
def test_command_prints_the_cause(text: str, cause: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), spark_errors():
        raise PySparkException(text)
    assert f"the job has failed: {cause}" in " ".join(capsys.readouterr().err.split())
