"""A stand-in for a training: our ranges and beacons, ranges like Horovod's, reads; tells the truth.

Run as ``python nsys_program.py STEPS SPANS_FILE TRUTH_FILE [quiet]``. SPANS_FILE is written as
annotate does; TRUTH_FILE gets the CLOCK_MONOTONIC readings around every Horovod-like range and
every step. ``quiet`` leaves our own ranges and beacons out of the report.
"""

import json
import os
import sys
import time
from contextlib import contextmanager

import nvtx

from hpcprof.artifacts import span_format as fmt
from tests.unit.span_writer import SpanFile

ALLREDUCES_PER_STEP = 2
BYTES = 4096
QUIET = "quiet" in sys.argv
now = time.monotonic_ns


@contextmanager
def range_of(text):
    if not QUIET:
        nvtx.push_range(text, domain=fmt.NVTX_DOMAIN)
    yield
    if not QUIET:
        nvtx.pop_range(domain=fmt.NVTX_DOMAIN)


def mark(text):
    if not QUIET:
        nvtx.mark(text, domain=fmt.NVTX_DOMAIN)


def beacon(file, seq):
    before, realtime = now(), time.time_ns()
    mark(fmt.NVTX_BEACON.format(seq=seq, mono=before, real=realtime))
    after = now()
    mark(fmt.NVTX_BEACON_AFTER.format(seq=seq, mono=after))
    file.beacon(seq, before, after, realtime)


@contextmanager
def phase(file, name, step, nbytes=0):
    with range_of(fmt.NVTX_PHASE_PREFIX + name):
        start = now()
        yield
        file.phase(start, now(), name, step, nbytes)


def allreduce():
    before = now()
    started = nvtx.start_range("HorovodAllreduce", domain="HorovodOps", payload=BYTES)
    opened = now()
    time.sleep(0.002)
    closing = now()
    nvtx.end_range(started)
    return [before, opened, closing, now()]


def main():
    steps, spans_file, truth_file = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    file = SpanFile(rank=0, pid=os.getpid())
    truth = {"allreduces": [], "steps": []}
    for step in range(steps):
        if step % 4 == 0:
            beacon(file, step)
        with phase(file, "input", step):
            time.sleep(0.001)
        before = now()
        with range_of(f"{fmt.NVTX_STEP_PREFIX}{step}"):
            opened = now()
            with phase(file, "forward", step), open(sys.argv[0], "rb") as stream:
                stream.read()
            with phase(file, "allreduce", step, BYTES * ALLREDUCES_PER_STEP):
                reduced = [[step, *allreduce()] for _ in range(ALLREDUCES_PER_STEP)]
            closing = now()
        truth["allreduces"] += reduced
        truth["steps"].append([step, before, opened, closing, now()])
        file.step(opened, closing, step)
        if step % 100 == 0 or step == steps - 1:
            with open(spans_file, "wb") as stream:
                stream.write(file.content)
    beacon(file, steps)
    nvtx.mark("an instant of the user")
    with open(truth_file, "w", encoding="utf-8") as stream:
        json.dump(truth, stream)


if __name__ == "__main__":
    main()
