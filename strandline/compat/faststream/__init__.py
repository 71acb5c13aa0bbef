"""The names that a program imports from `faststream.kafka`, if its broker is a Strandline cluster: `KafkaBroker`."""

from strandline.client.compat.faststream import *  # noqa: F403
from strandline.client.compat.faststream import __all__ as __all__
