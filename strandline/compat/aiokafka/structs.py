"""The names that a program imports from `aiokafka.structs`."""

from strandline.client.compat.aiokafka.structs import *  # noqa: F403
from strandline.client.compat.aiokafka.structs import __all__ as __all__
