"""A small line without axes of a number's last minutes. The page shows the number beside it."""

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, HEIGHT = 96, 20
_LINE = 1.5
# A line of a few seconds does not fill the picture.
_LEAST_SPAN_S = 60.0


def sparkline(points: Sequence[tuple[float, float | None]], most: float, label: str) -> Markup:
    """Return the line of points (time in seconds, value), oldest first; None leaves a gap."""
    if not points:
        return Markup("")
    end = points[-1][0]
    span_s = max(_LEAST_SPAN_S, end - points[0][0])
    # Values above `most` rescale the line, so that it stays within the picture.
    highest = max([most, *(value for _, value in points if value is not None)]) or 1.0
    steps, pen = [], "M"
    for at, value in points:
        if value is None:
            pen = "M"
            continue
        x = WIDTH * (1 - (end - at) / span_s)
        y = HEIGHT - _LINE - (HEIGHT - 2 * _LINE) * value / highest
        steps.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" width="{}" height="{}" viewBox="0 0 {} {}">'
        '<path d="{}" fill="none" stroke="currentColor" stroke-width="{}"/></svg>'
    ).format(label, WIDTH, HEIGHT, WIDTH, HEIGHT, " ".join(steps), _LINE)
