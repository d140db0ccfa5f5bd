#!/usr/bin/env python3
"""Draws what `TRUSTSPAN_SCALE=curves ./test scale` has measured.

    tests/scale/plot.py > docs/scale.svg        the plot
    tests/scale/plot.py --table                 the table, in Markdown

Each column is a kind of object, with its number on a logarithmic axis. Rows begin at zero.
"""

import json
import math
import pathlib
import sys

MEASURED = pathlib.Path(__file__).parents[2] / "target" / "tmp" / "curves.json"
WIDTH, HEIGHT, GAP, LEFT, TOP = 150, 110, 44, 96, 46
COLOURS = {"agent": "#b45309", "webhook": "#1d4ed8"}
ROWS = [
    ("memory,\nMiB", lambda point, process: point[process]["memory_kib"] / 1024),
    ("requests\nin an hour", lambda point, process: point[process]["requests_per_hour"]),
    ("start,\ns", lambda point, process: point[process]["start_ms"] / 1000),
    ("CA written,\nms", lambda point, process: point["write_ms"] if process == "agent" else None),
]


def short(number):
    """10k, 5M: longer labels would overlap."""
    for unit, letter in ((10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:g}{letter}"
    return f"{number:g}"


def columns(points):
    kinds = {}
    for point in points:
        kinds.setdefault(point["objects"], []).append(point)
    return kinds


def panel(points, value, left, top, limit):
    """The lines of both processes in one field."""
    logs = [math.log10(point["count"]) for point in points]
    x = lambda log: left + (log - logs[0]) / (logs[-1] - logs[0]) * WIDTH
    y = lambda number: top + HEIGHT - number / limit * HEIGHT
    yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#9ca3af"/>'
    for process, colour in COLOURS.items():
        line = [(x(log), y(value(point, process))) for log, point in zip(logs, points) if value(point, process) is not None]
        if line:
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in line)
            yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            yield from (f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in line)
    for log, point in zip(logs, points):
        yield f'<text x="{x(log):.1f}" y="{top + HEIGHT + 14}" text-anchor="middle">{short(point["count"])}</text>'


def svg(points):
    kinds = columns(points)
    width, height = LEFT + len(kinds) * (WIDTH + GAP), TOP + len(ROWS) * (HEIGHT + GAP)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#374151">'
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    for number, (process, colour) in enumerate(COLOURS.items()):
        yield f'<text x="{LEFT + number * 70}" y="16" fill="{colour}" font-size="13">{process}</text>'
    for row, (name, value) in enumerate(ROWS):
        top = TOP + row * (HEIGHT + GAP)
        for line, text in enumerate(name.split("\n")):
            yield f'<text x="8" y="{top + 12 + 14 * line}">{text}</text>'
        for column, (kind, of_kind) in enumerate(kinds.items()):
            values = [value(point, process) or 0 for point in of_kind for process in COLOURS]
            # Round numbers, so that the top of a field can be read.
            limit = next(n for n in (m * 10**e for e in range(8) for m in (1, 2, 5)) if n >= max(values))
            left = LEFT + column * (WIDTH + GAP)
            yield f'<text x="{left - 4}" y="{top + 10}" text-anchor="end">{short(limit)}</text>'
            yield f'<text x="{left - 4}" y="{top + HEIGHT}" text-anchor="end">0</text>'
            if row == 0:
                yield f'<text x="{left}" y="{TOP - 10}" font-size="13">{kind}</text>'
            yield from panel(of_kind, value, left, top, limit)
    yield "</svg>"


def table(points):
    yield "| objects | agent: memory | start | requests/h | webhook: memory | start | requests/h | CA written |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for point in points:
        cells = [f'{point["count"]:,} {point["objects"]}']
        for process in COLOURS:
            of = point[process]
            cells += [f'{of["memory_kib"] / 1024:.1f} MiB', f'{of["start_ms"] / 1000:.1f} s', f'{of["requests_per_hour"]:,}']
        yield f'| {" | ".join(cells)} | {point["write_ms"]} ms |'


if __name__ == "__main__":
    measured = json.loads(MEASURED.read_text())
    print("\n".join(table(measured) if sys.argv[1:] == ["--table"] else svg(measured)))
