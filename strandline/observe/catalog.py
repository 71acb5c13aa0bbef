"""Every metric that a node prints, one row each: its name, its meaning, and Kafka's MBean.

A node prints exactly the metrics listed here for its role; tests compare the rows with real scrapes. `docs/metrics.md` is
generated from these rows.

**Names.** Where Kafka has the thing, the name is what Kafka 4.3 prints through the Prometheus JMX exporter with the
exporter's own example rules for KRaft (`kafka-kraft-3_0_0.yml`), so existing alert rules and dashboards keep working. The
labels are the exporter's, capitals included. If Kafka has no such metric, the name begins with `strandline_` and ends with
its unit. Two differences are intended:

- Kafka's exporter prints quantiles for Kafka's histograms. Quantiles of several nodes cannot be aggregated, so here the
  same name is a Prometheus histogram (`_bucket`, `_sum`, `_count`), in the unit at the end of the name: `...totaltimems` is
  in milliseconds. `_count` has the same meaning (versions of the exporter from 1.0 on print `_count_total`). A query for a
  quantile becomes `histogram_quantile(0.99, sum by (le) (rate(..._bucket[5m])))`. The `strandline_` histograms are in
  seconds.
- Kafka's rates (`...PerSec`) are printed as their counters, `_total`, as the exporter does it; a query applies `rate()`.
"""

from __future__ import annotations

from strandline.observe.row import BOTH, Row, Section
from strandline.observe.rows_of_authorization import AUTHORIZATION
from strandline.observe.rows_of_control import CONTROL, QUORUM
from strandline.observe.rows_of_data import COMPACTION, METADATA, PARTITIONS, REPLICATION, TRAFFIC
from strandline.observe.rows_of_groups import GROUPS, LAG
from strandline.observe.rows_of_nodes import CONNECTIONS, DISK, NODE, REQUESTS
from strandline.observe.rows_of_quotas import QUOTAS
from strandline.observe.rows_of_transactions import TRANSACTIONS

__all__ = ["BOTH", "ROWS", "SECTIONS", "Row", "Section"]

SECTIONS = (
    REPLICATION,
    PARTITIONS,
    COMPACTION,
    TRAFFIC,
    GROUPS,
    LAG,
    TRANSACTIONS,
    REQUESTS,
    CONNECTIONS,
    AUTHORIZATION,
    QUOTAS,
    DISK,
    CONTROL,
    QUORUM,
    METADATA,
    NODE,
)
ROWS: dict[str, Row] = {row.name: row for section in SECTIONS for row in section.rows}
