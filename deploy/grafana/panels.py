"""The kinds of panels of the dashboard, and the PromQL that they share.

A panel's queries select the cluster and the nodes that are chosen at the top of the page ($cluster, $instance).
"""

from __future__ import annotations

from typing import NamedTuple

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.builders import dashboard as grafana
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
GREEN, YELLOW, RED = "green", "#EAB839", "red"


class Query(NamedTuple):
    expr: str
    legend: str = "{{instance}}"


# -- PromQL -----------------------------------------------------------------------------------------------------------


def of_cluster(metric: str, *matchers: str) -> str:
    return metric + "{" + ",".join(['cluster="$cluster"', *matchers]) + "}"


def of_nodes(metric: str, *matchers: str) -> str:
    """Select the series of the nodes that are chosen at the top of the page."""
    return of_cluster(metric, 'instance=~"$instance"', *matchers)


def each(metric: str, *matchers: str, by: str = "instance") -> str:
    return f"sum by ({by}) ({of_nodes(metric, *matchers)})"


def rate(metric: str, *matchers: str, by: str = "instance") -> str:
    return f"sum by ({by}) (rate({of_nodes(metric, *matchers)}[$__rate_interval]))"


def per_minute(metric: str, *matchers: str) -> str:
    return f"sum(rate({of_nodes(metric, *matchers)}[$__rate_interval])) * 60"


def quantile(q: float, metric: str, *matchers: str, by: str = "") -> str:
    """Return a query for a quantile of a histogram, aggregated over all labels except those in `by`."""
    return f"histogram_quantile({q}, {rate(f'{metric}_bucket', *matchers, by=f'{by}, le' if by else 'le')})"


def mean(metric: str, *matchers: str, by: str = "instance") -> str:
    return f"{rate(f'{metric}_sum', *matchers, by=by)} / {rate(f'{metric}_count', *matchers, by=by)}"


# -- panels -----------------------------------------------------------------------------------------------------------


def number(title: str, meaning: str, expr: str, *, good: float = 0, bad_colour: str = RED, unit: str = "none") -> stat.Panel:
    """Return a panel with one number: green if it equals `good`, otherwise `bad_colour`, whether smaller or larger."""
    steps = [models.Threshold(value=None, color=bad_colour if good else GREEN)]
    if good:
        steps.append(models.Threshold(value=good, color=GREEN))
    steps.append(models.Threshold(value=good + 0.5, color=bad_colour))
    return (
        stat.Panel()
        .title(title)
        .description(meaning)
        .datasource(SOURCE)
        .unit(unit)
        .height(4)
        .span(3)
        .color_mode(common_models.BigValueColorMode.BACKGROUND)
        .graph_mode(common_models.BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(grafana.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
        .with_target(_target(Query(expr, ""), "A"))
    )


def lines(
    title: str, meaning: str, *queries: Query, unit: str = "short", stacked: bool = False, span: int = 8
) -> timeseries.Panel:
    panel = (
        timeseries.Panel()
        .title(title)
        .description(meaning)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .height(8)
        .span(span)
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common_models.VisibilityMode.NEVER)
        .legend(
            common.VizLegendOptions()
            .display_mode(common_models.LegendDisplayMode.LIST)
            .placement(common_models.LegendPlacement.BOTTOM)
            .show_legend(True)
        )
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI).sort(common_models.SortOrder.DESCENDING))
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    for ref_id, query in zip("ABCDEF", queries, strict=False):
        panel.with_target(_target(query, ref_id))
    return panel


def heat(title: str, meaning: str, metric: str, *matchers: str, unit: str, span: int = 8) -> heatmap.Panel:
    """Return a heat map of a histogram: the observations per bucket over time."""
    query = Query(rate(f"{metric}_bucket", *matchers, by="le"), "{{le}}")
    return (
        heatmap.Panel()
        .title(title)
        .description(meaning)
        .datasource(SOURCE)
        .height(8)
        .span(span)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .cell_gap(1)
        .hide_y_histogram()
        .show_legend()
        .with_target(_target(query, "A").format(PromQueryFormat.HEATMAP))
    )


def _target(query: Query, ref_id: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(ref_id).datasource(SOURCE)
