#define _GNU_SOURCE
#include "record_file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "atomics.h"
#include "names.h"

enum { NO_STEP = -1, VERSION = 1, BLOCK_BYTES = 40 };

typedef struct {
    char magic[12];
    uint32_t version;
    int32_t rank;
    uint32_t pid;
    int64_t realtime_ns, monotonic_ns;
} __attribute__((packed)) Header;

_Static_assert(sizeof(Header) == BLOCK_BYTES, "the header is one block");
_Static_assert(sizeof(Record) == BLOCK_BYTES, "a record is one block");

enum {
    BUFFERS = 64,
    BUFFER_RECORDS = 2048, /* a step of named operations, so that annotate writes it */
    OUT_BYTES = 64 << 10,
    FULL_WAIT_MS = 200, /* for another thread's write, with a full buffer */
    EXIT_WAIT_MS = 200,
    MOST_PATH_BYTES = 4096,
};
static const int64_t DRAIN_AFTER_NS = 200 * 1000 * 1000;
static const int64_t ASK_AGAIN_NS = 50 * 1000 * 1000;

enum { UNDECIDED, ON, OFF };
static int state = UNDECIDED;
static int is_deciding;
static int64_t asked_ns;
static int file = -1;
static pid_t owner;
static char path[MOST_PATH_BYTES];
static char note_path[MOST_PATH_BYTES];
static char unheard[64];
static uint64_t left_out;

/* a thread's records are in the buffer of its id */
typedef struct {
    pthread_mutex_t lock;
    uint32_t count;
    Record records[BUFFER_RECORDS];
} Buffer;

static Buffer buffers[BUFFERS];

/* A flag and no mutex: a disk that hangs keeps the thread that writes to it, and nobody else. */
static int is_written; /* somebody writes; what follows belongs to him */
static int is_stuck;   /* somebody has waited for him in vain: until he is done nobody else waits */
static uint32_t written_names;
static int64_t drained_ns;
static Record staged[BUFFERS * BUFFER_RECORDS];
static char out[OUT_BYTES];
static size_t out_bytes;

int64_t clock_ns(clockid_t which) {
    struct timespec now;
    clock_gettime(which, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* One line for the warnings of the manifest, as annotate/notes.py leaves them. */
static void leave_note(const char *text) {
    if (!note_path[0]) return;
    int note = open(note_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (note < 0) return;
    ssize_t ignored = write(note, text, strlen(text));
    (void)ignored;
    close(note);
}

/* The recording has ended; ``error`` says why. */
static void stop(const char *what, int error) {
    static char line[MOST_PATH_BYTES + 256];
    STORE(state, OFF);
    if (file >= 0) close(file);
    file = -1;
    snprintf(line, sizeof line, "%s: %s (%s)\n", what, strerror(error), path);
    leave_note(line);
}

static int may_write(void) { return !TAKE(is_written); }

static void has_written(void) { STORE(is_written, 0); }

static int may_write_within(int milliseconds) {
    const struct timespec pause = {0, 1000 * 1000};
    for (; !may_write(); milliseconds--) {
        if (milliseconds <= 0) return 0;
        nanosleep(&pause, NULL);
    }
    return 1;
}

static void write_whole(const char *data, size_t bytes) {
    while (bytes && LOAD(state) == ON) {
        ssize_t done = write(file, data, bytes);
        if (done > 0) {
            data += done;
            bytes -= (size_t)done;
        } else if (!done || errno != EINTR) {
            stop("recording of NVTX ranges stopped", done ? errno : EIO);
        }
    }
}

static void write_out(void) {
    write_whole(out, out_bytes);
    out_bytes = 0;
}

static void declare(uint32_t id) {
    uint32_t length;
    const char *text = text_of(id, &length);
    size_t padded = (length + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (out_bytes + BLOCK_BYTES + padded > OUT_BYTES) write_out();
    Record head = {0, 0, id, NO_STEP, 0, KIND_NAME, length};
    memcpy(out + out_bytes, &head, BLOCK_BYTES);
    memset(out + out_bytes + BLOCK_BYTES, 0, padded);
    memcpy(out + out_bytes + BLOCK_BYTES, text, length);
    out_bytes += BLOCK_BYTES + padded;
}

/* Write all that is kept; after may_write. */
static void drain(void) {
    if (LOAD(state) != ON) return;
    if (getpid() != owner) { /* a clone() that told no handler of pthread_atfork */
        STORE(state, OFF);
        return;
    }
    size_t count = 0;
    for (int each = 0; each < BUFFERS; each++) {
        Buffer *buffer = &buffers[each];
        if (!__atomic_load_n(&buffer->count, __ATOMIC_RELAXED)) continue;
        pthread_mutex_lock(&buffer->lock);
        memcpy(staged + count, buffer->records, buffer->count * sizeof(Record));
        count += buffer->count;
        __atomic_store_n(&buffer->count, 0, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&buffer->lock);
    }
    for (uint32_t known = known_names(); written_names < known;) declare(++written_names);
    write_out();
    write_whole((const char *)staged, count * sizeof(Record));
    STORE(drained_ns, clock_ns(CLOCK_MONOTONIC));
    STORE(is_stuck, 0);
}

void keep(const Record *record) {
    Buffer *buffer = &buffers[record->thread % BUFFERS];
    for (;;) {
        pthread_mutex_lock(&buffer->lock);
        uint32_t count = buffer->count;
        if (count < BUFFER_RECORDS) {
            buffer->records[count] = *record;
            __atomic_store_n(&buffer->count, count + 1, __ATOMIC_RELAXED);
        }
        pthread_mutex_unlock(&buffer->lock);
        if (count < BUFFER_RECORDS) {
            if (record->end_ns - LOAD(drained_ns) > DRAIN_AFTER_NS) flush_records();
            return;
        }
        if (LOAD(state) != ON) break;
        if (!may_write_within(LOAD(is_stuck) ? 0 : FULL_WAIT_MS)) {
            STORE(is_stuck, 1);
            break;
        }
        drain();
        has_written();
    }
    leave_out();
}

/* ---- is this process the training? ---- */

static int is_number(const char *text) {
    return text && *text && strspn(text, "0123456789") == strlen(text);
}

static void open_file(const char *folder, const char *rank) {
    snprintf(path, sizeof path, "%s/nvtx.bin", folder);
    file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0) {
        stop("NVTX ranges were not recorded", errno);
        return;
    }
    Header header = {{0}, VERSION, atoi(rank), (uint32_t)getpid(), 0, 0};
    memcpy(header.magic, "HPCPROFNVTX", sizeof header.magic);
    header.realtime_ns = clock_ns(CLOCK_REALTIME);
    header.monotonic_ns = clock_ns(CLOCK_MONOTONIC);
    owner = getpid();
    STORE(drained_ns, header.monotonic_ns);
    errno = ENOSPC; /* of a write that is not whole */
    if (write(file, &header, sizeof header) != sizeof header)
        stop("NVTX ranges were not recorded", errno);
    else
        STORE(state, ON); /* from here on other threads write */
}

/* The variables may be set by annotate after NVTX has loaded us, so they are looked at again. */
static void decide(void) {
    const char *folder = getenv("HPCPROF_RANK_FOLDER"), *rank = getenv("HPCPROF_RANK");
    const char *training = getenv("HPCPROF_OWNER_PID"), *notes = getenv("HPCPROF_STATE_FOLDER");
    const char *without = getenv("HPCPROF_NVTX_WITHOUT");
    if (!folder || !*folder || !is_number(rank) || strlen(folder) > sizeof path - 16) {
        STORE(state, OFF);
        return;
    }
    snprintf(unheard, sizeof unheard, "%s", without ? without : "");
    if (!is_number(training) || atol(training) != getpid()) return;
    if (notes && *notes && strlen(notes) < sizeof note_path - 24)
        snprintf(note_path, sizeof note_path, "%s/annotate-error", notes);
    open_file(folder, rank);
}

int is_recording(void) {
    int now = LOAD(state);
    if (now != UNDECIDED) return now == ON;
    if (TAKE(is_deciding)) return 0;
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    if (LOAD(state) == UNDECIDED && now_ns - asked_ns > ASK_AGAIN_NS) {
        asked_ns = now_ns;
        decide();
    }
    STORE(is_deciding, 0);
    return LOAD(state) == ON;
}

int has_ended(void) { return LOAD(state) == OFF; }

int is_of_another_training(void) {
    const char *training = getenv("HPCPROF_OWNER_PID");
    if (!is_number(training) || atol(training) == getpid()) return 0;
    return !kill((pid_t)atol(training), 0) || errno == EPERM;
}

const char *unheard_domain(void) { return unheard; }

void leave_out(void) { COUNT(left_out); }

void flush_records(void) {
    if (LOAD(state) != ON || !may_write()) return;
    drain();
    has_written();
}

/* Other threads may still be writing, or have died in the middle of it. */
void finish_recording(void) {
    if (LOAD(state) != ON || getpid() != owner) return;
    if (may_write_within(EXIT_WAIT_MS)) {
        drain();
        has_written();
    }
    STORE(state, OFF);
    uint64_t missed = LOAD(left_out);
    if (missed) {
        char line[160];
        const char *form = "%llu NVTX ranges were left out: nested too deep, too many open at "
                           "once, or more than could be written\n";
        snprintf(line, sizeof line, form, (unsigned long long)missed);
        leave_note(line);
    }
}

/* A forked child never writes; locks that threads of the parent held are not touched again. */
static void in_child(void) {
    STORE(state, OFF);
    if (file >= 0) close(file);
    file = -1;
}

__attribute__((constructor)) static void begin(void) {
    for (int each = 0; each < BUFFERS; each++) pthread_mutex_init(&buffers[each].lock, NULL);
    pthread_atfork(NULL, NULL, in_child);
}
