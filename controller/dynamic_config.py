"""The present values of the controllers' own keys that can be changed while they run.

    value of the cluster  >  the controller's file  >  default

A controller key never has a value for one node, because only the active controller acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strandline.controller.metadata.config_keys import Update
from strandline.controller.metadata.image import MetadataImage
from strandline.controller.metadata.node_keys import CONTROLLER_KEYS
from strandline.protocol.errors import UsageError
from strandline.protocol.loggers import get_logger
from strandline.protocol.messages.admin import RESOURCE_BROKER

logger = get_logger(__name__)

_DYNAMIC = tuple(key for key in CONTROLLER_KEYS if key.update is not Update.RESTART)


def current_values(image: MetadataImage, static: Mapping[str, Any]) -> dict[str, Any]:
    """Every key of `static`, the controller's file and defaults, with its present value. If another version has stored a value
    that this version does not accept, the value in `static` stays."""
    values, changed = dict(static), image.config(RESOURCE_BROKER, "")
    for key in _DYNAMIC:
        if key.name in changed:
            try:
                values[key.name] = key.parse(changed[key.name])
            except UsageError as e:
                logger.warning("config.value_ignored", key=key.name, value=changed[key.name], reason=str(e))
    return values
