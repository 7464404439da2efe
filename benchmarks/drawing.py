"""Loss curves as an SVG, in small panels."""

import math
import pathlib

WIDTH, HEIGHT, LEFT, TOP, GAP = 190, 130, 58, 56, 26
ASIDE = 44  # between two columns: the labels of a loss stand there
STYLES = {  # colour, width, dashes
    "float32": ("#9aa0a6", 5, ""),
    "bare bfloat16": ("#d93025", 3.5, ""),
    "bfloat16, compute float32": ("#e8930c", 1.5, ""),
    "all bfloat16, stochastic": ("#174ea6", 1.5, "5 3"),
}


def draw(panels, path):
    """Writes one panel per curve set, by rows.

    Args:
        panels: rows of (title, {setting: [(step, loss), ...]}); losses on a log scale,
            those that are not finite left out.
        path: of the SVG.
    """
    columns, rows = max(map(len, panels)), len(panels)
    width = LEFT + columns * (WIDTH + ASIDE)
    height = TOP + rows * (HEIGHT + 2 * GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        *_legend(),
        f'<text transform="translate(14,{TOP + (height - TOP - 2 * GAP) / 2}) rotate(-90)" '
        'text-anchor="middle">training loss, logarithmic</text>',
    ]
    for row, panel_row in enumerate(panels):
        for column, (title, curves) in enumerate(panel_row):
            x, y = LEFT + column * (WIDTH + ASIDE), TOP + row * (HEIGHT + 2 * GAP)
            out += [f'<g transform="translate({x},{y})">', *_panel(title, curves), "</g>"]
    pathlib.Path(path).write_text("\n".join([*out, "</svg>", ""]))


def _legend():
    for number, (name, style) in enumerate(STYLES.items()):
        x = LEFT + 190 * number
        yield _line([(x, 18), (x + 24, 18)], style)
        yield f'<text x="{x + 30}" y="22">{name}</text>'


def _panel(title, curves):
    points = [p for curve in curves.values() for p in curve if math.isfinite(p[1])]
    last = max(step for step, _ in points)
    low = math.log10(min(loss for _, loss in points))
    high = math.log10(max(loss for _, loss in points))
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    across = lambda step: step / last * WIDTH
    down = lambda loss: (high - math.log10(loss)) / (high - low) * HEIGHT
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#dadce0"/>'
    yield f'<text x="{WIDTH / 2}" y="-7" text-anchor="middle">{title}</text>'
    finer = (1, 1.5, 2, 2.5, 3, 4, 5, 7) if high - low < 0.5 else (1, 2, 5)
    ticks = finer if high - low < 2 else (1,)
    for loss in (m * 10.0**e for e in range(-6, 3) for m in ticks):
        if low <= math.log10(loss) <= high:
            y = down(loss)
            yield f'<path d="M0 {y:.1f}H{WIDTH}" stroke="#eceff1"/>'
            yield f'<text x="-5" y="{y + 4:.1f}" text-anchor="end">{_label(loss)}</text>'
    yield f'<text x="{WIDTH}" y="{HEIGHT + 15}" text-anchor="end">{last} steps</text>'
    for name, curve in curves.items():
        places = [(across(s), down(loss)) for s, loss in curve if math.isfinite(loss)]
        if places:
            yield _line(places, STYLES[name])


def _label(loss):
    return f"{loss:g}" if loss > 5e-4 else f"{loss:.0e}".replace("e-0", "e-")


def _line(places, style):
    colour, width, dashes = style
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    return (
        f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-linejoin="round" stroke-dasharray="{dashes or "none"}"/>'
    )
