"""Measures the time and memory of a fresh process that imports the library.

    python benches/startup.py

Each library is imported in processes of its own, which take turns; medians.
"""

from __future__ import annotations

import statistics
import subprocess
import sys

PEERS = {
    "treepack, NumPy trees": "import treepack; treepack.loads(treepack.dumps({'a': 1}))",
    "treepack, with jax": "import treepack, jax",
    "flax.serialization": "from flax import serialization",
    "eformer.pytree.serialization": "from eformer.pytree import serialization",
    "safetensors.numpy": "import safetensors.numpy",
    "orbax.checkpoint": "import orbax.checkpoint",
}

MEASURE = """
import resource, time
start = time.perf_counter()
{code}
seconds = time.perf_counter() - start
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure(code: str) -> tuple[float, float]:
    """Returns seconds and MiB of a fresh process."""
    command = [sys.executable, "-c", MEASURE.format(code=code)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    seconds, mebibytes = output.split()[-2:]
    return float(seconds), float(mebibytes)


def main() -> None:
    """Prints a line for each library."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in PEERS}
    for _ in range(7):
        for name, code in PEERS.items():
            found[name].append(measure(code))
    for name, runs in found.items():
        seconds = statistics.median(run[0] for run in runs[1:])
        mebibytes = statistics.median(run[1] for run in runs[1:])
        print(f"{name:32}{seconds:8.2f} s{mebibytes:8.0f} MiB")


if __name__ == "__main__":
    main()
