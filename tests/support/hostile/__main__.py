"""Processes that use hostile files; one that ends is followed by another one."""

from __future__ import annotations

import argparse
import collections
import json
import mmap
import os
import queue
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

# So many seeds are given to a process at a time.
BLOCK = 2000

# Where files are written, if there is such a place in memory.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None

# A process that is at one seed for so many seconds, and does not work either, hangs.
IDLE_S = 900


def worker(folder: Path, only: tuple[str, ...], warm_up: int) -> None:
    """Uses the requested cases, line by line, until there are no more."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # nothing may be written there
    from hostile import limits, uses, work

    uses.make_commands()
    with (folder / "seed").open("r+b") as file:
        seed = mmap.mmap(file.fileno(), 8)
    inside = folder / "work"
    inside.mkdir()
    os.environ["TMPDIR"] = tempfile.tempdir = str(inside / "tmp")
    worker = work.Work(inside)
    worker.warm_up(only, warm_up)
    out = os.fdopen(worker.output.own, "w")
    is_confined = limits.write_only_in(inside)
    for line in sys.stdin:
        first, last = map(int, line.split())
        for number in range(first, last):
            seed[:] = struct.pack("<q", number)
            worker.run(number, only)
        print(json.dumps({**worker.summary(), "confined": is_confined}), file=out, flush=True)


class Campaign:
    """Cases of a range of seeds, in processes."""

    def __init__(self, first: int, last: int, options: argparse.Namespace):
        self._options, self._end = options, time.monotonic() + options.seconds
        self.todo: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        for start in range(first, last, BLOCK):
            self.todo.put((start, min(last, start + BLOCK)))
        self.counts: dict[str, collections.Counter[str]] = collections.defaultdict(
            collections.Counter
        )
        self.seen: collections.Counter[str] = collections.Counter()
        self.slowest: tuple[float, str] = (0.0, "")
        self.largest: tuple[int, str] = (0, "")
        self.cases = 0
        self.end = first
        self.crashes: list[str] = []
        self.seconds = 0.0
        self.is_confined = True
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(options.processes)]

    def run(self) -> None:
        """Runs all."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        block = None
        while True:
            with tempfile.TemporaryDirectory(prefix="hostile-", dir=MEMORY) as name:
                block = self._until_end(Path(name), block)
            if block is None:
                return

    def _until_end(self, folder: Path, block: tuple[int, int] | None) -> tuple[int, int] | None:
        """Lets one process work; returns what is left of its block if it ends before."""
        (folder / "seed").write_bytes(bytes(8))
        command = [sys.executable, "-m", "hostile", "--worker", str(folder)]
        command += ["--warm-up", str(self._options.warm_up)]
        command += [it for name in self._options.only for it in ("--only", name)]
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert process.stdin is not None
        assert process.stdout is not None
        seconds = 0.0
        try:
            while True:
                if block is None:
                    if time.monotonic() > self._end:
                        return None
                    try:
                        block = self.todo.get_nowait()
                    except queue.Empty:
                        return None
                    self.end = block[1]
                print(*block, file=process.stdin, flush=True)
                line = self._answer(process)
                if not line:
                    at = struct.unpack("<q", (folder / "seed").read_bytes())[0]
                    return self._ended(process, folder, block, at)
                found = json.loads(line)
                seconds, gone = found["seconds"], seconds
                found["seconds"] -= gone
                self._collect(found, block)
                block = None
        finally:
            process.stdin.close()
            process.wait()

    def _answer(self, process: subprocess.Popen[str]) -> str:
        """Waits for a line; a process that neither works nor is stopped is ended."""
        assert process.stdout is not None
        done = threading.Event()

        def watch() -> None:
            idle, used = 0, -1
            while not done.wait(1):
                fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
                now = int(fields[11]) + int(fields[12])
                idle = idle + 1 if now == used and fields[0] != "T" else 0
                used = now
                if idle > IDLE_S:
                    process.kill()

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            return process.stdout.readline()
        finally:
            done.set()

    def _ended(
        self, process: subprocess.Popen[str], folder: Path, block: tuple[int, int], at: int
    ) -> tuple[int, int] | None:
        status = process.wait()
        output = folder / "work" / "output"
        text = output.read_text(errors="replace")[-3000:] if output.exists() else ""
        with self._lock:
            self.crashes.append(f"seed {at}: the process ends with {status}")
            print(self.crashes[-1], text, sep="\n", flush=True)
            self.cases += at - block[0]
        return (at + 1, block[1]) if at + 1 < block[1] else None

    def _collect(self, found: dict[str, Any], block: tuple[int, int]) -> None:
        with self._lock:
            self.cases += block[1] - block[0]
            self.seconds += found["seconds"]
            self.is_confined &= found["confined"]
            for name, counts in found["counts"].items():
                self.counts[name].update(counts)
            self.slowest = max(self.slowest, tuple(found["slowest"]))
            self.largest = max(self.largest, tuple(found["largest"]))
            if self.cases % (10 * BLOCK) == 0:
                print(f"{self.cases} cases, {sum(self.seen.values())} findings", flush=True)
            for seed, container, use, problem in found["findings"]:
                key = f"{use}: {_kind(problem)}"
                self.seen[key] += 1
                if self.seen[key] <= 3:
                    print(f"seed {seed}, {container}, {use}: {problem}", flush=True)

    def report(self, wall: float) -> None:
        """Prints what has been done."""
        uses: collections.Counter[str] = collections.Counter()
        for container, counts in sorted(self.counts.items()):
            total = sum(counts.values())
            good = sum(count for name, count in counts.items() if name.endswith(": a result"))
            uses[container] = total
            print(f"{container}: {total} uses, {good} with a result")
        verbs: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
        errors: collections.Counter[str] = collections.Counter()
        for counts in self.counts.values():
            for name, count in counts.items():
                verb, _, problem = name.rpartition(": ")
                verbs[verb][problem != "a result"] += count
                errors[problem] += count
        for verb, (good, bad) in sorted(verbs.items()):
            print(f"  {verb}: {good + bad}, {good} with a result")
        print("outcomes:", dict(errors.most_common()))
        print(f"slowest: {self.slowest[0]:.3f} s of CPU ({self.slowest[1]}); ", end="")
        print(f"most memory: {self.largest[0] / 2**20:.1f} MiB ({self.largest[1]})")
        print("findings:", dict(self.seen.most_common()))
        print(f"written elsewhere: {'refused by the system' if self.is_confined else 'not tried'}")
        print(f"seeds below {self.end}")
        print(
            f"{self.cases} cases, {sum(uses.values())} uses, {self.seconds:.0f} s of CPU, "
            f"{wall:.0f} s; {sum(self.seen.values())} findings, {len(self.crashes)} ends"
        )


def _kind(problem: str) -> str:
    """Returns what findings of one kind have in common."""
    lines = problem.strip().splitlines()
    return "".join(char for char in lines[-1][:160] if not char.isdigit()) if lines else ""


def main() -> int:
    """Runs the campaign; returns how many findings there are."""
    parser = argparse.ArgumentParser(prog="hostile")
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], help="a container")
    parser.add_argument("--warm-up", type=int, default=400, help="cases that are not judged")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin nothing after so long")
    parser.add_argument("--worker", type=Path)
    options = parser.parse_args()
    if options.worker is not None:
        worker(options.worker, tuple(options.only), options.warm_up)
        return 0
    begun = time.monotonic()
    last = options.first + options.count
    campaign = Campaign(options.first, last, options)
    campaign.run()
    campaign.report(time.monotonic() - begun)
    return min(1, len(campaign.seen) + len(campaign.crashes))


if __name__ == "__main__":
    sys.exit(main())
