#!/usr/bin/env python3
"""Draws what `./bench` has measured.

    benches/plot.py > docs/performance.svg      the plot
    benches/plot.py --table                     the table, in Markdown

Each field is a request, with its number in a second on each server, over 1, 16 and 64 connections. A line on a bar goes from the slowest run
to the fastest.
"""

import json
import pathlib
import sys

MEASURED = pathlib.Path(__file__).parents[1] / "target" / "bench" / "results.json"
WIDTH, HEIGHT, GAP, LEFT, TOP, COLUMNS = 240, 130, 44, 50, 46, 3
SERVERS = {
    "null": ("#d1d5db", "answers a constant (Rust)"),
    "parse": ("#9ca3af", "only parses (Rust)"),
    "go-null": ("#fcd34d", "answers a constant (Go)"),
    "go": ("#b45309", "the same decisions (Go)"),
    "trustspan": ("#1d4ed8", "trustspan"),
}


def by_request(results):
    """The results of each request, by number of connections."""
    requests = {}
    for name, row in results.items():
        request, connections = name.rsplit("/", 1)
        requests.setdefault(request, {})[int(connections)] = row
    return requests


def field(name, of_request, left, top):
    highest = max(run for row in of_request.values() for server in row.values() for run in server["rates"])
    limit = next(n for n in (m * 10**e for e in range(8) for m in (1, 1.5, 2, 3, 5)) if n >= highest)
    y = lambda rate: top + HEIGHT - rate / limit * HEIGHT
    yield f'<text x="{left}" y="{top - 10}" font-size="13">{name}</text>'
    yield f'<text x="{left - 4}" y="{top + 10}" text-anchor="end">{limit / 1000:g}k</text>'
    yield f'<rect x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#9ca3af"/>'
    group = WIDTH / len(of_request)
    bar = group / (len(SERVERS) + 1)
    for number, (connections, row) in enumerate(of_request.items()):
        start = left + number * group + bar / 2
        for place, (server, (colour, _)) in enumerate(SERVERS.items()):
            x, rates = start + place * bar, row[server]["rates"]
            yield f'<rect x="{x:.1f}" y="{y(row[server]["rate"]):.1f}" width="{bar - 1:.1f}" height="{row[server]["rate"] / limit * HEIGHT:.1f}" fill="{colour}"/>'
            middle = x + bar / 2 - 0.5
            yield f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{y(rates[0]):.1f}" y2="{y(rates[-1]):.1f}" stroke="#111827"/>'
        yield f'<text x="{start + group / 2 - bar / 2:.1f}" y="{top + HEIGHT + 14}" text-anchor="middle">{connections}</text>'


def svg(measured):
    requests = by_request(measured["results"])
    rows = -(-len(requests) // COLUMNS)
    width, height = LEFT + COLUMNS * (WIDTH + GAP), TOP + 24 + rows * (HEIGHT + GAP + 16)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#374151">'
    yield f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    for number, (colour, meaning) in enumerate(SERVERS.values()):
        yield f'<rect x="{LEFT + number * 165}" y="8" width="10" height="10" fill="{colour}"/>'
        yield f'<text x="{LEFT + 14 + number * 165}" y="17">{meaning}</text>'
    for number, (name, of_request) in enumerate(requests.items()):
        left, top = LEFT + number % COLUMNS * (WIDTH + GAP), TOP + 20 + number // COLUMNS * (HEIGHT + GAP + 16)
        yield from field(name, of_request, left, top)
    yield "</svg>"


def table(measured):
    yield "| request | connections | in a second | p50 | p99 | processor time | of `parse` | times `go` |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for name, of_request in by_request(measured["results"]).items():
        for connections, row in of_request.items():
            own = row["trustspan"]
            spread = f'{own["rates"][0]:,.0f} to {own["rates"][-1]:,.0f}'
            ratios = f'{own["rate"] / row["parse"]["rate"]:.2f} | {own["rate"] / row["go"]["rate"]:.1f}'
            yield (f'| {name} | {connections} | {own["rate"]:,.0f} ({spread}) | {own["p50"]:.2f} ms | {own["p99"]:.2f} ms | '
                   f'{own["cpu"]:.0f} µs | {ratios} |')


if __name__ == "__main__":
    measured = json.loads(MEASURED.read_text())
    print("\n".join(table(measured) if sys.argv[1:] == ["--table"] else svg(measured)))
