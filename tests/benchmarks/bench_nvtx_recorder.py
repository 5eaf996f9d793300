"""Cost of one NVTX range (push and pop) under our recorder: a table of medians of seven rounds.

    python tests/benchmarks/bench_nvtx_recorder.py

Aim: 300 ns in one thread. It is CPU time of all threads, and includes writing: a flush after every
200 ranges, as a step of a small model would cause. The recorder's functions are called as NVTX
calls them, by pointer; texts are as long as TensorFlow's, of as many operations.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from hpcprof.annotate import nvtx_recorder
from hpcprof.annotate.native.build_hook import compile_recorder

ROUNDS = 7

_PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "nvtx_abi.h"
enum { RANGES = 200000, NAMES = 170, STEP = 200 };
static NvtxFunctionPointer core2[16];
static NvtxFunctionPointer *places[16];
static int table_of(int module, NvtxFunctionTable *table, unsigned int *size) {
    for (int at = 0; at < 16; at++) places[at] = &core2[at];
    *table = places; *size = 16;
    return module == NVTX_CB_MODULE_CORE2;
}
static const NvtxExportTableCallbacks callbacks = {sizeof callbacks, table_of};
static const void *export_table(uint32_t table) { (void)table; return &callbacks; }
static char names[NAMES][96];
static nvtxStringHandle_t registered[NAMES];
static void *domain;
static int is_registered;
static void (*flush)(void);
static double now(void) {
    struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static void *work(void *unused) {
    int (*push)(void *, const nvtxEventAttributes_t *) = (void *)core2[4];
    int (*pop)(void *) = (void *)core2[5];
    nvtxEventAttributes_t event = {.version = 3, .size = sizeof event};
    event.messageType = is_registered ? NVTX_MESSAGE_TYPE_REGISTERED : NVTX_MESSAGE_TYPE_ASCII;
    for (int each = 0; each < RANGES; each++) {
        if (is_registered) event.message.registered = registered[each % NAMES];
        else event.message.ascii = names[each % NAMES];
        push(domain, &event);
        pop(domain);
        if (each % STEP == 0) flush();
    }
    return unused;
}
int main(int count, char **words) {
    char pid[32]; pthread_t threads[64];
    int many = atoi(words[2]);
    is_registered = atoi(words[3]) + 0 * count;
    snprintf(pid, sizeof pid, "%d", getpid()); setenv("HPCPROF_OWNER_PID", pid, 1);
    void *library = dlopen(words[1], RTLD_NOW);
    int (*init)(NvtxGetExportTableFunc_t) = dlsym(library, "InitializeInjectionNvtx2");
    flush = dlsym(library, "hpcprof_nvtx_flush");
    if (!init(export_table)) return 1;
    domain = ((void *(*)(const char *))core2[12])("TSL");
    for (int at = 0; at < NAMES; at++) {
        snprintf(names[at], sizeof names[at],
                 "StatefulPartitionedCall/gradient_tape/sequential_1/layer_%d/MatMul/MatMul:MatMul",
                 at);
        registered[at] = ((void *(*)(void *, const char *))core2[10])(domain, names[at]);
    }
    double began = now();
    for (int at = 0; at < many; at++) pthread_create(&threads[at], NULL, work, NULL);
    for (int at = 0; at < many; at++) pthread_join(threads[at], NULL);
    printf("%f\n", (now() - began) / RANGES / many);
    return 0;
}
"""


def measure(program: Path, library: Path, threads: int, *, registered: bool) -> float:
    """Median CPU time of a range in ns."""
    costs = []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "HPCPROF_RANK_FOLDER": folder, "HPCPROF_RANK": "0"}
            argv = [program, library, str(threads), str(int(registered))]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
            written = (Path(folder) / "nvtx.bin").stat().st_size
            if written < 200_000 * 40 * threads:
                raise SystemExit(f"only {written} bytes were recorded")
        costs.append(float(done.stdout))
    return statistics.median(costs)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library = compile_recorder(folder)
        source = folder / "bench.c"
        source.write_text(_PROGRAM)
        program = folder / "bench"
        include = Path(nvtx_recorder.__file__).with_name("native")
        command = ["cc", "-O2", f"-I{include}", "-o", program, source, "-ldl", "-pthread"]
        subprocess.run(command, check=True)
        print(f"{'range (push and pop)':<34}{'median ns':>10}")
        for threads in (1, 4):
            for registered in (True, False):
                cost = measure(program, library, threads, registered=registered)
                text = f"{threads} thread{'s' * (threads > 1)}, "
                text += "registered name" if registered else "text of 80 bytes"
                print(f"{text:<34}{cost:>10.0f}")


if __name__ == "__main__":
    main()
