"""Lines logged in a user's process go where the application wants them, and never to its stdout."""

from __future__ import annotations

import subprocess
import sys

import pytest

WARNING = "logger.warning('producer.delivery_failed', topic='orders', records=2, reason='100 % lost')"


def application(*lines: str, warning: str = WARNING) -> tuple[str, str]:
    """stdout and stderr of a program that imports the client, runs `lines`, and then logs something.

    A separate process, because the configuration of structlog and logging is global, and pytest configures them, too.
    """
    code = [
        "import logging, sys",
        "import strandline.client",
        "from strandline.client.producer.sender import logger",
        *lines,
        warning,
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, timeout=30, check=True)
    return done.stdout, done.stderr


def test_an_unconfigured_application_has_warnings_on_stderr() -> None:
    assert application() == ("", "producer.delivery_failed topic='orders' records=2 reason='100 % lost'\n")


@pytest.mark.parametrize("level", ["debug", "info"])
def test_an_unconfigured_application_has_no_lines_below_warning(level: str) -> None:
    assert application(warning=WARNING.replace("warning", level)) == ("", "")


def test_an_application_with_logging_has_the_lines_in_its_format() -> None:
    """The lines have the module's name, so that the application can silence them."""
    form = "logging.basicConfig(stream=sys.stdout, level='DEBUG', format='%(levelname)s %(name)s %(filename)s: %(message)s')"
    out, err = application(form, warning="logger.debug('producer.epoch_bumped', topic='orders')")
    assert (out, err) == ("DEBUG strandline.client.producer.sender <string>: producer.epoch_bumped topic='orders'\n", "")
    assert application(form, "logging.getLogger('strandline').setLevel('ERROR')") == ("", "")


def test_an_application_with_structlog_has_the_lines_there() -> None:
    """This holds even if it configures structlog after it has imported this package and logged."""
    configure = "import structlog; structlog.configure(processors=[structlog.processors.JSONRenderer()])"
    out, err = application("logger.error('producer.crashed')", configure)
    assert out == '{"topic": "orders", "records": 2, "reason": "100 % lost", "event": "producer.delivery_failed"}\n'
    assert err == "producer.crashed\n"


@pytest.mark.parametrize("how", ["logger.exception('loop.callback_failed')", "logger.error('loop.callback_failed', exc_info=e)"])
def test_a_bug_is_logged_with_its_traceback(how: str) -> None:
    out, err = application(warning=f"try: 1 / 0\nexcept ZeroDivisionError as e: {how}")
    assert out == ""
    assert err.startswith("loop.callback_failed\nTraceback")
    assert err.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("module", ["broker.process.server", "controller.server", "storage.directory.log_dir"])
def test_a_broker_in_a_users_process_logs_like_a_client(module: str) -> None:
    """Tests run whole clusters in their own process (`strandline.testing`)."""
    lines = [f"from strandline.{module} import logger", "logger.info('broker.started', broker_id=1)"]
    assert application(*lines, warning="logger.warning('broker.fenced', broker_id=1)") == ("", "broker.fenced broker_id=1\n")


def test_a_line_goes_to_the_node_that_logs_it() -> None:
    spoken = "type('Spoken', (), {'warning': lambda self, event, **fields: print(event, fields)})()"
    lines = ["from strandline.protocol import loggers", f"loggers.route = lambda name: {spoken} if 'client' in name else None"]
    out, err = application(*lines, warning="logger.warning('a.b', x=1)")
    assert (out, err) == ("a.b {'x': 1}\n", "")
    lines[-1] = "loggers.route = lambda name: None"
    assert application(*lines, warning="logger.warning('a.b', x=1)") == ("", "a.b x=1\n")
