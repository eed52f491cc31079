"""Runs jobs beside each other, with the output of one at a time.

    python tools/jobs.py [VARIABLE=VALUE] TARGET...     # targets of make
    python tools/jobs.py --say MESSAGE NAME COMMAND...  # a command that prints nothing for long

Prints the lines of the first target when they are complete, and a line when another one ends; after
ten seconds without output, the progress of each. The output of failed jobs comes last, and the last
line is the reason. `.venv/NAME.log` has the output of each job.
"""

from __future__ import annotations

import os
import queue
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

LOGS = Path(".venv")
SILENCE = 10  # seconds
# make's own last line says less than the one before it.
OF_MAKE = re.compile(r"make(\[\d+\])?: \*\*\* ")


class Job:
    """A command, its lines, and its status once it has ended."""

    def __init__(self, name: str, command: list[str], lines: queue.SimpleQueue[Job | str]) -> None:
        """Starts the command."""
        self.name, self.start, self.last = name, time.monotonic(), ""
        self.log = LOGS / f"{name}.log"
        self.status: int | None = None
        self._queue = lines
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TREEPACK_JOB": name},
            close_fds=False,  # those of make's job server
            encoding="utf-8",
            errors="replace",
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with self.log.open("w", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                self.last = line.strip() or self.last
                self._queue.put(f"{self.name}\n{line.rstrip()}")
        self.status = self._process.wait()
        self._queue.put(self)

    def seconds(self) -> str:
        """Returns how long it has run."""
        return f"{time.monotonic() - self.start:.0f} s"

    def progress(self) -> str:
        """Returns its time and its last line."""
        return f"{self.name}, {self.seconds()}: {self.last[:60]}"


def run(commands: dict[str, list[str]], shown: str | None) -> list[Job]:
    """Runs commands, prints the lines of one of them, and returns those that failed."""
    lines: queue.SimpleQueue[Job | str] = queue.SimpleQueue()
    jobs = [Job(name, command, lines) for name, command in commands.items()]
    while any(job.status is None for job in jobs) or not lines.empty():
        try:
            got = lines.get(timeout=SILENCE)
        except queue.Empty:
            print(
                "  " + "; ".join(job.progress() for job in jobs if job.status is None), flush=True
            )
            continue
        if isinstance(got, str):
            name, _, line = got.partition("\n")
            if name == shown or line.startswith("skipped: "):
                print(line if name == shown else f"{name}: {line}", flush=True)
        elif len(jobs) > 1:
            end = "failed, its output follows" if got.status else "done"
            print(f"{got.name}: {end}, {got.seconds()}", flush=True)
    return [job for job in jobs if job.status]


def main(arguments: list[str]) -> int:
    """Runs what the command line says."""
    if arguments[0] == "--say":
        message, name, *command = arguments[1:]
        print(message, flush=True)
        if "TREEPACK_JOB" in os.environ:  # whose output is not shown as it comes
            return subprocess.call(command, close_fds=False)
        commands, shown = {name: command}, None
    else:
        make = [os.environ.get("MAKE", "make"), "--no-print-directory"]
        make += [it for it in arguments if "=" in it]
        targets = [it for it in arguments if "=" not in it]
        commands = {Path(it).name.lstrip("."): [*make, it] for it in targets}
        shown = next(iter(commands))
    try:
        failed = run(commands, shown)
    except KeyboardInterrupt:  # each job has received it, too
        return 130
    for job in failed:
        text = job.log.read_text(encoding="utf-8").rstrip()
        print(f"--- {job.name} ---\n{text}" if job.name != shown or len(failed) > 1 else "")
    for job in failed:
        ends = [line for line in job.log.read_text(encoding="utf-8").split("\n") if line.strip()]
        reason = next((line for line in reversed(ends) if not OF_MAKE.match(line)), "")
        print(f"{job.name} failed: {reason.strip()}", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
