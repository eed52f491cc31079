"""treepack's gzip and numbers beside the gzip of others, and a copy: speed and ratio.

    python benches/compare_gzip.py             # 32 MiB of each kind of data
    python benches/compare_gzip.py --size 128

All take turns on the same data; each output is decompressed and compared once.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deflate
import isal.igzip
import jax.numpy as jnp
import numpy as np
import rapidgzip
import zstandard

import measure
import treepack

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import demo

RESULTS = Path(__file__).parent / "results"


def corpora(size: int) -> dict[str, bytes]:
    """Returns about `size` bytes of each kind of data; the demo's model is as large as it is."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal(size // 2, dtype=np.float32) * 0.02
    eighth = size // 8
    mixed = [
        (rng.standard_normal(2 * eighth, dtype=np.float32) * 6).astype(np.int8),
        rng.random(2 * eighth, dtype=np.float32) < 0.05,
        np.repeat(rng.integers(0, 100, eighth // 64), 64).astype(np.int8),
        np.zeros(3 * eighth, np.uint8),
    ]
    return {
        "bfloat16 weights": weights.astype(jnp.bfloat16).tobytes(),
        "float32 weights": weights[: size // 4].tobytes(),
        "mixed (int8, masks, zeros)": b"".join(part.tobytes() for part in mixed),
        "the trained model of the demo": treepack.serialization.to_bytes(
            demo.train(demo.new_state(), 0, 60)[0]
        ),
    }


def _libdeflate(stream: bytes) -> bytes:
    # It needs the size, which ours have in their last member and others at the end.
    tail = stream[-66:]
    if tail[12:14] == b"TE":
        size = struct.unpack("<Q", tail[24:32])[0]
    else:
        size = struct.unpack("<I", stream[-4:])[0]
    return bytes(deflate.gzip_decompress(stream, originalsize=size))


def _rapidgzip(stream: bytes) -> bytes:
    with rapidgzip.open(io.BytesIO(stream), parallelization=2) as file:
        return file.read()


COMPRESS: dict[str, Callable[[bytes], Any]] = {
    "treepack": treepack.serialization.compress_bytes,
    "treepack, level 6": lambda data: treepack.serialization.compress_bytes(data, level=6),
    "treepack, numbers": lambda data: treepack.serialization.compress_bytes(
        data, compress="numbers"
    ),
    "a copy": bytearray,
    "Python gzip 6 (eformer)": lambda data: gzip.compress(data, 6),
    "ISA-L 1": lambda data: isal.igzip.compress(data, 1),
    "libdeflate 1": lambda data: bytes(deflate.gzip_compress(data, 1)),
    "zstd 1, 2 threads (no gzip)": zstandard.ZstdCompressor(level=1, threads=2).compress,
}

# The reader of streams of numbers.
NUMBERS: dict[str, Callable[[Any], bytes]] = {
    "treepack": treepack.serialization.decompress_bytes,
}

DECOMPRESS: dict[str, Callable[[Any], bytes]] = {
    "treepack": treepack.serialization.decompress_bytes,
    "Python gzip (eformer)": gzip.decompress,
    "ISA-L": isal.igzip.decompress,
    "libdeflate": _libdeflate,
    "rapidgzip, 2 threads": _rapidgzip,
}


def main() -> None:
    """Measures and prints everything."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--size", type=int, default=32, help="MiB of each kind of data")
    parser.add_argument("--rounds", type=int, default=7, help="how often each is measured")
    parser.add_argument("--write", action="store_true", help="write results/gzip.json")
    arguments = parser.parse_args()
    results = []
    for name, data in corpora(arguments.size << 20).items():
        row = measure_corpus(data, arguments.rounds)
        results.append({"data": name, "bytes": len(data), **row})
        print(f"\n{name}, {len(data) / 2**20:.1f} MiB{'':20}MB/s    ratio")
        for who, (speed, ratio) in row["compress"].items():
            print(f"  compress    {who:36}{speed:8.0f}{ratio:9.4f}")
        for stream, speeds in row["decompress"].items():
            for who, speed in speeds.items():
                print(f"  decompress  {who:25}{stream:>11}{speed:8.0f}", flush=True)
    if arguments.write:
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / "gzip.json").write_text(json.dumps(results, indent=1) + "\n")


def measure_corpus(data: bytes, rounds: int) -> dict[str, Any]:
    """Returns speeds in MB of data per second, and ratios."""
    ours, theirs = treepack.serialization.compress_bytes(data), gzip.compress(data, 6)
    numbers = treepack.serialization.compress_bytes(data, compress="numbers")
    streams = {
        "ours": (ours, DECOMPRESS),
        "numbers": (numbers, NUMBERS),
        "Python's": (theirs, DECOMPRESS),
    }
    for stream, readers in streams.values():
        for who, decompress in readers.items():
            if decompress(stream) != data:
                raise AssertionError(who)
    sizes = {who: len(compress(data)) for who, compress in COMPRESS.items()}

    def speeds(calls: dict[str, Callable[[Any], Any]], given: bytes) -> dict[str, float]:
        bound = {who: lambda call=call: call(given) for who, call in calls.items()}
        found = measure.medians(bound, memory=2 * len(data), rounds=rounds)
        return {who: len(data) / seconds / 1e6 for who, seconds in found.items()}

    compress = speeds(COMPRESS, data)
    return {
        "compress": {who: (speed, len(data) / sizes[who]) for who, speed in compress.items()},
        "decompress": {
            name: speeds(readers, stream) for name, (stream, readers) in streams.items()
        },
    }


if __name__ == "__main__":
    main()
