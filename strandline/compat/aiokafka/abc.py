"""The names that a program imports from `aiokafka.abc`."""

from strandline.client.compat.aiokafka.abc import *  # noqa: F403
from strandline.client.compat.aiokafka.abc import __all__ as __all__
