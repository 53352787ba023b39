"""Charts as inline SVG whose colours follow the page: light, dark or print.

Images and heatmaps as data URIs, small enough to stand in a page.
"""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from jaxtyping import Float, UInt8
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from medclip_dcl.inference.grounding import upsample

# Stand-ins that the page's own colours replace once the chart is drawn.
_COLOURS = {
    "#010101": "currentColor",
    "#020202": "var(--muted)",
    "#030303": "var(--line)",
    "#0a0001": "var(--series-1)",
    "#0a0002": "var(--series-2)",
    "#0a0003": "var(--series-3)",
    "#0a0004": "var(--series-4)",
    "#0a0005": "var(--series-5)",
}
_INK, _MUTED, _LINE, *_SERIES = _COLOURS
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _MUTED,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "xtick.color": _MUTED,
    "ytick.color": _MUTED,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "errorbar.capsize": 3,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
}
_SIZE_IN = (5.4, 3.1)
_MOST_POINTS = 800


@dataclass(frozen=True)
class Series:
    """A named line of a chart."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Labels:
    """Labels of a chart: a description for those who do not see it, and its axes."""

    alt: str
    x: str
    y: str


def draw_lines(lines: Sequence[Series], labels: Labels, *, diagonal: bool = False) -> Markup:
    """Draw at most five lines over a common axis, as an SVG element.

    `diagonal` shows the square from 0 to 1 with its diagonal, as for ROC curves.
    """
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(labels, square=diagonal)
        if diagonal:
            axes.plot([0, 1], [0, 1], color=_MUTED, linewidth=1, linestyle=(0, (3, 3)))
            axes.set_xlim(-0.01, 1.01)
            axes.set_ylim(-0.01, 1.01)
        for line, colour in zip(lines, _SERIES, strict=False):
            drawn = _thinned(len(line.x))
            x, y = (np.asarray(values, dtype=float)[drawn] for values in (line.x, line.y))
            axes.plot(x, y, color=colour, label=_plain(line.name))
        if len(lines) > 1:
            _legend(figure)
        return _svg(figure, labels.alt)


def draw_histogram(
    values: Float[np.ndarray, " items"],
    weights: Float[np.ndarray, " items"],
    labels: Labels,
) -> Markup:
    """Draw how often values occur, each as often as it weighs, as an SVG element."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(labels)
        axes.hist(values, bins=40, weights=weights, color=_SERIES[0], rwidth=0.9)
        axes.grid(visible=False, axis="x")
        return _svg(figure, labels.alt)


def _axes(labels: Labels, *, square: bool = False) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(3.9, 3.6) if square else _SIZE_IN, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(_plain(labels.x))
    axes.set_ylabel(_plain(labels.y))
    axes.tick_params(length=0)
    return figure, axes


def _legend(figure: Figure) -> None:
    # Above the axes, where it covers no line; as many names in a row as there is room for.
    longest = max(map(len, figure.axes[0].get_legend_handles_labels()[1]))
    columns = max(1, int(13 * figure.get_figwidth() / (7 + longest)))  # letters an inch, and a mark
    figure.legend(loc="outside upper left", ncols=columns, borderpad=0)


def _plain(text: str) -> str:
    # Names come from configs and tables: between dollars matplotlib would read a formula.
    return text.replace("$", r"\$")


def _thinned(count: int) -> np.ndarray:
    if count <= _MOST_POINTS:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, _MOST_POINTS).round().astype(int))


def _svg(figure: Figure, alt: str) -> Markup:
    stream = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": alt}):  # ids that are stable, and differ between charts
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r"font: [^;\"]*?(\d+(?:\.\d+)?px)[^;\"]*", r"font-size: \1", text)
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    # matplotlib escapes every text that it is given, so its output is safe markup
    return Markup(text.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1))  # noqa: S704


_IMAGE_PX = 288
_HEAT_PX = 96
_STRONGEST = 0.7  # opacity of the highest score
_FAINTEST = 0.4  # share of the range below which the layer is transparent


def image_uri(image: UInt8[np.ndarray, "size size"]) -> str:
    """Encode a prepared image: a JPEG as data URI, at most 288 pixels wide."""
    picture = Image.fromarray(image)
    picture.thumbnail((_IMAGE_PX, _IMAGE_PX), Image.Resampling.BICUBIC)
    return _uri(picture, "JPEG", quality=85)


def heat_uri(grid: Float[np.ndarray, "rows columns"]) -> str:
    """Encode a grid of scores as a translucent layer over an image: a PNG as data URI."""
    heat = upsample(grid, _HEAT_PX, _HEAT_PX)
    low, high = float(heat.min()), float(heat.max())
    share = (heat - low) / (high - low) if high > low else np.zeros_like(heat)
    colours = mpl.colormaps["plasma"](0.15 + 0.8 * share, bytes=True)
    # Transparent up to two fifths of the range, so that the image stays readable.
    above = np.clip((share - _FAINTEST) / (1 - _FAINTEST), 0, 1)
    colours[..., 3] = np.rint(255 * _STRONGEST * above)
    return _uri(Image.fromarray(colours, "RGBA").quantize(64, Image.Quantize.FASTOCTREE), "PNG")


def _uri(picture: Image.Image, form: str, **options: int) -> str:
    stream = io.BytesIO()
    picture.save(stream, form, **options)
    data = base64.b64encode(stream.getvalue()).decode()
    return f"data:image/{form.lower()};base64,{data}"
