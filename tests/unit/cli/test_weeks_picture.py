"""The picture of the demo: nothing hides a bar, and weeks that lack days can be told from weeks with few flights."""

from __future__ import annotations

from datetime import date, timedelta

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

from scripts.demonstration.spark_process import Week, Weeks
from scripts.demonstration.weeks_picture import HATCH, PARTIAL, weeks_figure


def weeks(count: int, partial: set[int], flights: int = 6000) -> Weeks:
    first = date(2012, 12, 27)
    return {
        (first + timedelta(days=7 * number)).isoformat(): Week(flights, 12.5, number not in partial)
        for number in range(count)
    }


@pytest.mark.parametrize("count", [1, 2, 53])
def test_the_legend_covers_no_bar(count: int) -> None:
    """The legend stood in the axes, and full bars leave no room there."""
    figure = weeks_figure(weeks(count, {0}), weeks(count, {0}, flights=3000))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (legend,) = [*figure.legends, *(found for axes in figure.axes if (found := axes.get_legend()) is not None)]
    place = legend.get_window_extent(canvas.get_renderer())
    bars = [bar for axes in figure.axes for bar in axes.patches]
    assert len(bars) == 2 * count
    assert [bar for bar in bars if place.overlaps(bar.get_window_extent())] == []
    assert figure.bbox.x0 <= place.x0 < place.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= place.y0 < place.y1 <= figure.bbox.y1


def test_partial_weeks_are_marked_and_the_legend_says_so() -> None:
    """The week before the year's first Thursday has two days only, and looked like a week with few flights."""
    figure = weeks_figure(weeks(53, {0, 52}), weeks(50, {0}))
    upper, lower = figure.axes
    bars = [bar for bar in upper.patches if isinstance(bar, Rectangle)]
    marked = [number % 53 for number, bar in enumerate(bars) if bar.get_hatch() == HATCH]
    assert marked == [0, 52, 0, 52]
    assert np.size(lower.lines[1].get_ydata()) == 1, "the stream read nothing of the last week"
    (legend,) = figure.legends
    assert PARTIAL in [text.get_text() for text in legend.get_texts()]
