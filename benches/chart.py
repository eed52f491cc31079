"""Draws `results/results.json` as `results/results.png`: how much faster than flax."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import NullFormatter

RESULTS = Path(__file__).parent / "results"

COLORS = {
    "treepack": "#d1495b",
    "arrow": "#00798c",
    "msgspec": "#edae49",
    "safetensors": "#66a182",
    "ormsgpack": "#8d96a3",
    "pickle": "#2e4057",
    "equinox": "#9d79bc",
    "orbax": "#c08552",
    "eformer": "#bbbbbb",
}


def panels(results: dict[str, Any]) -> list[tuple[str, dict[str, float]]]:
    """Returns the title of each panel, and each library's speed relative to flax."""
    found = []
    for workload in results["workloads"]:
        for row in workload["rows"]:
            seconds = row["seconds"]
            ratios = {name: seconds["flax"] / seconds[name] for name in COLORS if name in seconds}
            if len(ratios) > 1:
                found.append((f"{workload['workload']}\n{row['op']}", ratios))
    return found


def main() -> None:
    """Draws all operations that have peers, one panel each."""
    results = json.loads((RESULTS / "results.json").read_text())
    found = panels(results)
    columns = 3
    rows = -(-len(found) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(13, 2.4 * rows), layout="constrained")
    for axis in axes.flat[len(found) :]:
        axis.set_visible(False)
    for axis, (title, ratios) in zip(axes.flat, found, strict=False):
        names = sorted(ratios, key=lambda name: ratios[name])
        bars = axis.barh(
            names, [ratios[name] for name in names], color=[COLORS[name] for name in names]
        )
        labels = [
            f"{ratios[name]:,.0f}x" if ratios[name] >= 100 else f"{ratios[name]:.3g}x"
            for name in names
        ]
        axis.bar_label(bars, labels, padding=3, fontsize=8)
        axis.set_xscale("log")
        axis.xaxis.set_minor_formatter(NullFormatter())
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_title(title, fontsize=9)
        axis.tick_params(labelsize=8)
        axis.margins(x=0.18)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle(f"Speed relative to flax (1x), {results['machine']}", fontsize=11)
    figure.savefig(RESULTS / "results.png", dpi=90)


if __name__ == "__main__":
    main()
