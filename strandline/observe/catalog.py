"""Every metric that a node prints, one row each: what it is called, what it says, and what Kafka calls it.

A metric that is not here is not printed, and what is here is printed by the roles that the row names; tests hold both
against real scrapes. `docs/metrics.md` is made from these rows.

**Names.** Where Kafka has the thing, the name is what Kafka 4.3 prints through the Prometheus JMX exporter with the
exporter's own example rules for KRaft (`kafka-kraft-3_0_0.yml`), so that alert rules and dashboards go on working; labels
are the exporter's, capitals included. Where Kafka has no such thing, the name begins with `strandline_` and ends with its
unit. Two differences, both on purpose:

- Kafka's exporter prints quantiles for what Kafka measures as a histogram. Quantiles of several nodes can not be added
  up, so here the same name is a Prometheus histogram (`_bucket`, `_sum`, `_count`), in the unit that the name ends with:
  `...totaltimems` is in milliseconds. `_count` means what it means there (versions of the exporter from 1.0 on print
  `_count_total`). A query for a quantile becomes `histogram_quantile(0.99, sum by (le) (rate(..._bucket[5m])))`. Our own
  histograms are in seconds.
- What has a rate in Kafka (`...PerSec`) is its counter, as the exporter prints it: `_total`, and `rate()` is the reader's.
"""

from __future__ import annotations

from strandline.observe.row import BOTH, Row, Section
from strandline.observe.rows_of_control import CONTROL, QUORUM
from strandline.observe.rows_of_data import METADATA, PARTITIONS, REPLICATION, TRAFFIC
from strandline.observe.rows_of_nodes import CONNECTIONS, DISK, NODE, REQUESTS

__all__ = ["BOTH", "ROWS", "SECTIONS", "Row", "Section"]

SECTIONS = (REPLICATION, PARTITIONS, TRAFFIC, REQUESTS, CONNECTIONS, DISK, CONTROL, QUORUM, METADATA, NODE)
ROWS: dict[str, Row] = {row.name: row for section in SECTIONS for row in section.rows}
