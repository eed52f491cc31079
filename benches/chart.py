"""Draws `results/*.json` as the chart, the tables and the figures of the documentation.

The chart, `docs/results.svg`, has seconds to save a tree and read it, one bar for each of a few
libraries, and follows the light or dark theme of the page. The tables are in `docs/benchmarks.md`,
the figures in README and `docs/index.md` as well.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

RESULTS = Path(__file__).parent / "results"
DOCS = Path(__file__).parents[1] / "docs"
PICTURE = DOCS / "results.svg"
PAGES = (DOCS / "benchmarks.md", DOCS / "index.md", DOCS.parent / "README.md")

LIBRARIES = ("flax", "orbax", "orbax defaults", "safetensors", "treepack")
SAVE, LOAD = "save, not synced", "load, sum every array"

WIDTH, LEFT, RIGHT, TOP, STEP, HEIGHT = 760, 125, 120, 62, 32, 20

STYLE = """
    text { font: 14px system-ui, sans-serif; fill: #1f2328; }
    .title { font-weight: 600; }
    .note { font-size: 12px; fill: #59636e; }
    .save { fill: #8c959f; } .load { fill: #d1d9e0; }
    .own .save { fill: #b3364b; } .own .load { fill: #e59aa6; }
    .own text { font-weight: 600; }
    @media (prefers-color-scheme: dark) {
      text { fill: #f0f6fc; }
      .note { fill: #9198a1; }
      .save { fill: #848d97; } .load { fill: #4a525c; }
      .own .save { fill: #e5687c; } .own .load { fill: #8f3a48; }
    }
"""


def seconds(results: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Returns the times to save and to load of each library, slowest first."""
    rows = {
        row["op"]: row["seconds"]
        for workload in results["workloads"]
        for row in workload["rows"]
        if row["op"] in (SAVE, LOAD)
    }
    found = {name: (rows[SAVE][name], rows[LOAD][name]) for name in LIBRARIES if name in rows[SAVE]}
    return dict(sorted(found.items(), key=lambda item: -sum(item[1])))


def workload(results: dict[str, Any]) -> str:
    """Returns the name of the tree that is saved."""
    [name] = [
        workload["workload"]
        for workload in results["workloads"]
        if any(row["op"] == SAVE for row in workload["rows"])
    ]
    return str(name).removesuffix(", file")


def svg(results: dict[str, Any]) -> str:
    """Returns the chart."""
    found = seconds(results)
    scale = (WIDTH - LEFT - RIGHT) / max(map(sum, found.values()))
    bottom = TOP + STEP * len(found)
    title = f"Save {workload(results)}, then load and read every array"
    lines = [
        f'<text class="title" x="0" y="16">{escape(title)}</text>',
        '<text class="note" x="0" y="38">seconds to <tspan class="save">■</tspan> save and to '
        '<tspan class="load">■</tspan> load and read; shorter is better</text>',
    ]
    for row, (name, (save, load)) in enumerate(found.items()):
        y, middle = TOP + STEP * row, TOP + STEP * row + HEIGHT / 2 + 5
        end = LEFT + (save + load) * scale
        lines += [
            f'<g class="{"own" if name == "treepack" else "peer"}">',
            f'<text x="{LEFT - 10}" y="{middle:g}" text-anchor="end">{name}</text>',
            f'<rect class="save" x="{LEFT}" y="{y}" width="{save * scale:.1f}" height="{HEIGHT}"/>',
            f'<rect class="load" x="{LEFT + save * scale:.1f}" y="{y}" '
            f'width="{load * scale:.1f}" height="{HEIGHT}"/>',
            f'<text x="{end + 8:.1f}" y="{middle:g}">{save + load:.2f} s</text>',
            "</g>",
        ]
    note = f"{results['machine']}; files in the page cache, not synced"
    lines.append(f'<text class="note" x="0" y="{bottom + 14}">{escape(note)}</text>')
    body = "\n  ".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + 24}" '
        f'viewBox="0 0 {WIDTH} {bottom + 24}" role="img">\n  <title>{escape(title)}</title>\n'
        f"  <style>{STYLE}  </style>\n  {body}\n</svg>\n"
    )


PEERS = ("flax", "arrow", "msgspec", "safetensors", "ormsgpack", "pickle", "equinox", "orbax")
PEERS += ("orbax defaults",)
UNITS = {"s": 1, "ms": 1e-3, "us": 0}


def duration(seconds: float) -> str:
    """Returns a time with three digits."""
    unit = next(unit for unit, least in UNITS.items() if seconds >= least)
    return f"{seconds / (UNITS[unit] or 1e-6):.3g} {unit}"


def ratio(value: float | None) -> str:
    """Returns a ratio with two digits, or a dash."""
    if value is None:
        return "-"
    return "<0.1" if value < 0.1 else f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def table(results: dict[str, Any]) -> str:
    """Returns the times of treepack, and of other libraries as multiples of these."""
    lines = [f"{'':27}{'treepack':>9}" + "".join(f"{name:>{len(name) + 2}}" for name in PEERS)]
    for workload in results["workloads"]:
        lines.append(workload["workload"])
        for row in workload["rows"]:
            own, times = row["seconds"]["treepack"], row["seconds"]
            ratios = {name: ratio(times[name] / own if name in times else None) for name in PEERS}
            cells = "".join(f"{cell:>{len(name) + 2}}" for name, cell in ratios.items())
            lines.append(f"  {row['op']:25}{duration(own):>9}{cells}")
    return "\n".join(lines)


def compression(results: list[dict[str, Any]]) -> str:
    """Returns MB/s and ratios of compression, and MB/s of decompression."""
    names = [" ".join(it["data"].split(" (")[0].split()[-2:]) for it in results]
    lines = [f"{'MB/s, ratio':31}" + "".join(f"{name:>17}" for name in names), "compress"]
    for name in results[0]["compress"]:
        found = [it["compress"][name] for it in results]
        lines.append(f"  {name:29}" + "".join(f"{speed:10.0f}{size:7.2f}" for speed, size in found))
    for stream, coders in results[0]["decompress"].items():
        lines.append(f"decompress, {'Python gzip' if stream.startswith('P') else stream}")
        for name in coders:
            found = [it["decompress"][stream][name] for it in results]
            lines.append(
                f"  {name:29}" + "".join(f"{speed:10.0f}{'':7}" for speed in found).rstrip()
            )
    return "\n".join(lines)


def memory(results: dict[str, Any]) -> str:
    """Returns the peak of memory in MiB, and how much of it are pages of mapped files."""
    names = ["treepack", *(name for name in results["memory"][-1]["bytes"] if name != "treepack")]
    size = f"for {results['size_mib']:,} MiB"
    lines = [f"{size:27}" + "".join(f"{name:>15}" for name in names)]
    for row in results["memory"]:
        cells = []
        for name in names:
            peak, mapped = (it / 2**20 for it in row["bytes"].get(name, (-1, 0)))
            pages = f" ({mapped:,.0f})" if mapped >= 1 else ""
            cells.append(f"{peak:,.0f}{pages}" if peak >= 0 else "-")
        op = "load, sum every array" if row["op"] == "load" else row["op"]
        lines.append(f"  {op:25}" + "".join(f"{cell:>15}" for cell in cells))
    return "\n".join(lines)


def settings(results: dict[str, Any]) -> str:
    """Returns the settings of each library that differ from its defaults."""
    names = {name: it for name, it in results["settings"].items() if it}
    return "\n".join(f"{name:15}{it}" for name, it in names.items())


def figures(text: str, results: dict[str, Any]) -> str:
    """Returns a page with the figures of its sentences, its table and the text of the chart."""
    total = {name: f"{sum(times):.2f}" for name, times in seconds(results).items()}
    listed = ", ".join(f"{name} {it}" for name, it in total.items())
    text = re.sub(r"(sum every array: )[^\]]*", rf"\g<1>{listed}", text)
    text = re.sub(
        r"[\d.]+ s where flax\s+takes\s+[\d.]+ s",
        f"{total['treepack']} s where flax takes {total['flax']} s",
        text,
    )
    defaults = f"{total['orbax defaults']} s (synced, compressed)"
    orbax = f"{total['orbax']} s; default {defaults}" if "orbax" in total else defaults
    cells = (f"{total['treepack']} s", f"{total['flax']} s", orbax, f"{total['safetensors']} s")
    row = re.compile(r"^(\| save \d+ MiB[^|]*\|).*", re.M)
    return row.sub(lambda it: f"{it[1]} {' | '.join(cells)} |", text)


def page(text: str) -> str:
    """Returns a page with the tables and figures of the results."""
    results = json.loads((RESULTS / "results.json").read_text())
    compressed = json.loads((RESULTS / "gzip.json").read_text())
    tables = {
        "results": table(results),
        "settings": settings(results),
        "memory": memory(results),
        "gzip": compression(compressed),
    }
    for name, drawn in tables.items():
        begin, end = (f"<!-- {name}: {it} -->" for it in ("begin", "end"))
        before, there, rest = text.partition(begin)
        if there:
            text = f"{before}{begin}\n```text\n{drawn}\n```\n{end}{rest.partition(end)[2]}"
    return figures(text, results)


def main() -> None:
    """Draws the results of `compare.py --full` and `compare_gzip.py --write`."""
    results = json.loads((RESULTS / "results.json").read_text())
    PICTURE.write_text(svg(results))
    for path in PAGES:
        path.write_text(page(path.read_text()))


if __name__ == "__main__":
    main()
