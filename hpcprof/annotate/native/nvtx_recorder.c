/* Records NVTX ranges and marks of one training into ranks/N/nvtx.bin.
 *
 * NVTX itself loads this library into the process that NVTX_INJECTION64_PATH is set for. The format
 * is that of hpcprof/artifacts/nvtx_format.py. Does not interpret what it records.
 *
 * It lives inside somebody's training: it never aborts, takes no signal and allocates nothing (all
 * tables are fixed and cost memory only where they are touched). What cannot be written ends the
 * recording, with one line for the manifest. Only the process that annotate has made the owner
 * writes.
 *
 * One thread writes at a time; it takes the buffers' locks, never the other way round. A name is in
 * its table before a record can use it, and a drain looks at the table after it has taken the
 * records: so names come before their use in the file.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "nvtx_abi.h"

#define EXPORTED __attribute__((visibility("default")))
#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)

/* as in artifacts/nvtx_format.py and artifacts/span_format.py */
enum { KIND_NAME = 4, PUSH_POP = 16, START_END = 17, MARK = 18 };
enum { NO_DOMAIN = -1, NO_STEP = -1, VERSION = 1, BLOCK_BYTES = 40 };

typedef struct {
    char magic[12];
    uint32_t version;
    int32_t rank;
    uint32_t pid;
    int64_t realtime_ns, monotonic_ns;
} __attribute__((packed)) Header;

typedef struct {
    int64_t start_ns, end_ns;
    uint32_t name;
    int32_t domain;
    uint32_t thread, flags;
    int64_t value;
} __attribute__((packed)) Record;

_Static_assert(sizeof(Header) == BLOCK_BYTES, "the header is one block");
_Static_assert(sizeof(Record) == BLOCK_BYTES, "a record is one block");
_Static_assert(sizeof(void *) == 8, "handles are pointers that hold our ids");

enum {
    MOST_NAMES = 65536,            /* the last one stands for all beyond */
    NAME_SLOTS = 2 * MOST_NAMES,
    MOST_NAME_BYTES = 2000,
    MOST_TEXT_BYTES = 16 << 20,    /* of all names together */
    MOST_PATH_BYTES = 4096,
    BUFFERS = 64,
    BUFFER_RECORDS = 2048,         /* a step of named operations, so that annotate writes it */
    MOST_DEPTH = 64,
    MOST_DEEP_DOMAINS = 8,
    OPEN_SLOTS = 16384,            /* START ranges that wait for their END */
    OPEN_TRIES = 64,
    OUT_BYTES = 64 << 10,
    FULL_WAIT_MS = 200,            /* for another thread's write, with a full buffer */
    EXIT_WAIT_MS = 200,
};
static const int64_t DRAIN_AFTER_NS = 200 * 1000 * 1000;
static const int64_t ASK_AGAIN_NS = 50 * 1000 * 1000;
static const char MORE_NAMES[] = "more names";

/* ---- whether this process records ---- */

enum { UNDECIDED, ON, OFF };
static int state = UNDECIDED;
static int is_deciding;
static int64_t asked_ns;
static int file = -1;
static pid_t owner;
static char path[MOST_PATH_BYTES];
static char note_path[MOST_PATH_BYTES];
static char unheard_domain[64];
static uint64_t left_out; /* ranges there was no place for */

/* ---- what a thread has: its id, and the ranges it has pushed ---- */

typedef struct {
    int64_t start_ns, value;
    uint32_t name;
    int32_t domain;
} Open;

typedef struct {
    int32_t domain;
    uint32_t count;
} Deep;

static __thread struct {
    volatile sig_atomic_t is_busy; /* a signal handler may use NVTX while we hold a lock */
    uint32_t id;
    uint32_t depth;
    Open stack[MOST_DEPTH];
    Deep deeper[MOST_DEEP_DOMAINS]; /* pushed when the stack was full */
    int is_lost;                    /* too deep in too many domains: which pop is whose? */
} self;

/* ---- tables ---- */

typedef struct {
    uint64_t hash;
    uint32_t offset, length;
} Name;

static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static Name names[MOST_NAMES + 1]; /* by id; ids count from 1 */
static uint32_t name_slots[NAME_SLOTS];
static uint32_t name_count;
static char texts[MOST_TEXT_BYTES];
static uint32_t text_bytes;

typedef struct {
    pthread_mutex_t lock;
    uint32_t count;
    Record records[BUFFER_RECORDS];
} Buffer;

static Buffer buffers[BUFFERS];

typedef struct {
    uint64_t id; /* 0: free, 1: being filled or emptied */
    Open range;
} Slot;

static Slot slots[OPEN_SLOTS];
static uint64_t slot_turn;

/* A flag and no mutex: a disk that hangs keeps the thread that writes to it, and nobody else. */
static int is_written; /* somebody writes; what follows belongs to him */
static int is_stuck;   /* somebody has waited for him in vain: until he is done nobody else waits */
static uint32_t written_names;
static int64_t drained_ns;
static Record staged[BUFFERS * BUFFER_RECORDS];
static char out[OUT_BYTES];
static size_t out_bytes;

static int64_t clock_ns(clockid_t which) {
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

static int may_write(void) { return !__atomic_exchange_n(&is_written, 1, __ATOMIC_ACQUIRE); }

static void has_written(void) { STORE(is_written, 0); }

static int may_write_within(int milliseconds) {
    const struct timespec pause = {0, 1000 * 1000};
    for (; !may_write(); milliseconds--) {
        if (milliseconds <= 0) return 0;
        nanosleep(&pause, NULL);
    }
    return 1;
}

/* ---- names ---- */

static uint64_t hash_of(const char *text, uint32_t length) {
    uint64_t hash = length * 0x9e3779b97f4a7c15u, part;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&part, text, 8);
        hash = (hash ^ part) * 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    part = 0;
    memcpy(&part, text, length);
    hash = (hash ^ part) * 0xc4ceb9fe1a85ec53u;
    return hash ^ (hash >> 29);
}

/* The id of a text that is in the table, else 0; ``slot`` is where it is or would be. */
static uint32_t find_name(uint64_t hash, const char *text, uint32_t length, uint32_t *slot) {
    for (uint32_t at = hash % NAME_SLOTS;; at = (at + 1) % NAME_SLOTS) {
        uint32_t id = LOAD(name_slots[at]);
        *slot = at;
        if (!id) return 0; /* a table that is never more than half full */
        const Name *name = &names[id];
        if (name->hash == hash && name->length == length
            && !memcmp(texts + name->offset, text, length))
            return id;
    }
}

static uint32_t add_name(uint64_t hash, const char *text, uint32_t length) {
    uint32_t slot, id = find_name(hash, text, length, &slot);
    if (id) return id;
    if (name_count >= MOST_NAMES - 1 || text_bytes + length > MOST_TEXT_BYTES - sizeof MORE_NAMES) {
        text = MORE_NAMES;
        length = sizeof MORE_NAMES - 1;
        hash = hash_of(text, length);
        id = find_name(hash, text, length, &slot);
        if (id) return id;
    }
    id = name_count + 1;
    names[id] = (Name){hash, text_bytes, length};
    memcpy(texts + text_bytes, text, length);
    text_bytes += length;
    STORE(name_count, id);
    STORE(name_slots[slot], id);
    return id;
}

/* The id of a text; a long one is cut, between two characters of UTF-8. */
static uint32_t name_of(const char *text) {
    if (!text) text = "";
    uint32_t length = strnlen(text, MOST_NAME_BYTES + 1), slot;
    if (length > MOST_NAME_BYTES)
        for (length = MOST_NAME_BYTES; length && (text[length] & 0xc0) == 0x80;) length--;
    uint64_t hash = hash_of(text, length);
    uint32_t id = find_name(hash, text, length, &slot);
    if (id) return id;
    pthread_mutex_lock(&naming);
    id = add_name(hash, text, length);
    pthread_mutex_unlock(&naming);
    return id;
}

static uint32_t wide_name_of(const wchar_t *wide) {
    char text[MOST_NAME_BYTES + 5];
    size_t at = 0;
    for (; wide && *wide && at <= MOST_NAME_BYTES; wide++) {
        uint32_t c = (uint32_t)*wide;
        if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) c = 0xfffd;
        if (c < 0x80) {
            text[at++] = (char)c;
        } else if (c < 0x800) {
            text[at++] = (char)(0xc0 | c >> 6);
            text[at++] = (char)(0x80 | (c & 0x3f));
        } else {
            if (c >= 0x10000) {
                text[at++] = (char)(0xf0 | c >> 18);
                text[at++] = (char)(0x80 | (c >> 12 & 0x3f));
            } else {
                text[at++] = (char)(0xe0 | c >> 12);
            }
            text[at++] = (char)(0x80 | (c >> 6 & 0x3f));
            text[at++] = (char)(0x80 | (c & 0x3f));
        }
    }
    text[at] = 0;
    return name_of(text);
}

/* ---- the file ---- */

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
    const Name *name = &names[id];
    size_t padded = (name->length + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    if (out_bytes + BLOCK_BYTES + padded > OUT_BYTES) write_out();
    Record head = {0, 0, id, NO_STEP, 0, KIND_NAME, name->length};
    memcpy(out + out_bytes, &head, BLOCK_BYTES);
    memset(out + out_bytes + BLOCK_BYTES, 0, padded);
    memcpy(out + out_bytes + BLOCK_BYTES, texts + name->offset, name->length);
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
    for (uint32_t known = LOAD(name_count); written_names < known;) declare(++written_names);
    write_out();
    write_whole((const char *)staged, count * sizeof(Record));
    STORE(drained_ns, clock_ns(CLOCK_MONOTONIC));
    STORE(is_stuck, 0);
}

static void keep(const Record *record) {
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
            if (record->end_ns - LOAD(drained_ns) > DRAIN_AFTER_NS
                && may_write()) {
                drain();
                has_written();
            }
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
    __atomic_add_fetch(&left_out, 1, __ATOMIC_RELAXED);
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
    const char *unheard = getenv("HPCPROF_NVTX_WITHOUT");
    if (!folder || !*folder || !is_number(rank) || strlen(folder) > sizeof path - 16) {
        STORE(state, OFF);
        return;
    }
    snprintf(unheard_domain, sizeof unheard_domain, "%s", unheard ? unheard : "");
    if (!is_number(training) || atol(training) != getpid()) return;
    if (notes && *notes && strlen(notes) < sizeof note_path - 24)
        snprintf(note_path, sizeof note_path, "%s/annotate-error", notes);
    open_file(folder, rank);
}

static int is_on(void) {
    int now = LOAD(state);
    if (now != UNDECIDED) return now == ON;
    if (__atomic_exchange_n(&is_deciding, 1, __ATOMIC_ACQUIRE)) return 0;
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    if (LOAD(state) == UNDECIDED && now_ns - asked_ns > ASK_AGAIN_NS) {
        asked_ns = now_ns;
        decide();
    }
    STORE(is_deciding, 0);
    return LOAD(state) == ON;
}

/* Every event begins and ends with these; what a signal handler does in between is left out. */
static int enter(void) {
    if (self.is_busy) return 0;
    self.is_busy = 1;
    if (is_on()) {
        if (!self.id) self.id = (uint32_t)syscall(SYS_gettid);
        return 1;
    }
    self.is_busy = 0;
    return 0;
}

static void leave(void) { self.is_busy = 0; }

/* ---- ranges ---- */

static uint32_t message_of(const nvtxEventAttributes_t *event) {
    uint64_t id;
    switch (event->messageType) {
    case NVTX_MESSAGE_TYPE_ASCII: return name_of(event->message.ascii);
    case NVTX_MESSAGE_TYPE_UNICODE: return wide_name_of(event->message.unicode);
    case NVTX_MESSAGE_TYPE_REGISTERED:
        id = (uintptr_t)event->message.registered;
        if (id && id <= LOAD(name_count)) return (uint32_t)id;
    }
    return name_of("");
}

static int64_t of_double(double value) {
    return value > -9e18 && value < 9e18 ? (int64_t)value : 0; /* NaN too */
}

static int64_t payload_of(const nvtxEventAttributes_t *event) {
    switch (event->payloadType) {
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT64:
    case NVTX_PAYLOAD_TYPE_INT64: return event->payload.llValue;
    case NVTX_PAYLOAD_TYPE_DOUBLE: return of_double(event->payload.dValue);
    case NVTX_PAYLOAD_TYPE_UNSIGNED_INT32: return event->payload.uiValue;
    case NVTX_PAYLOAD_TYPE_INT32: return event->payload.iValue;
    case NVTX_PAYLOAD_TYPE_FLOAT: return of_double(event->payload.fValue);
    default: return 0;
    }
}

static int32_t domain_of(nvtxDomainHandle_t handle) {
    uint64_t id = (uintptr_t)handle;
    return id && id <= LOAD(name_count) ? (int32_t)id : NO_DOMAIN;
}

static Open described(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    Open range = {0, 0, 0, domain_of(domain)};
    if (event) {
        range.value = payload_of(event);
        range.name = message_of(event);
    } else {
        range.name = name_of("");
    }
    range.start_ns = clock_ns(CLOCK_MONOTONIC); /* last: our own work is not theirs */
    return range;
}

static Open named(uint32_t name) {
    return (Open){clock_ns(CLOCK_MONOTONIC), 0, name, NO_DOMAIN};
}

static void closed(const Open *range, int64_t end_ns, uint32_t kind) {
    Record record = {
        range->start_ns, end_ns, range->name, range->domain, self.id, kind, range->value};
    keep(&record);
}

static Deep *deeper_of(int32_t domain) {
    Deep *free_one = NULL;
    for (int at = 0; at < MOST_DEEP_DOMAINS; at++) {
        Deep *each = &self.deeper[at];
        if (each->count && each->domain == domain) return each;
        if (!each->count && !free_one) free_one = each;
    }
    if (free_one) free_one->domain = domain;
    return free_one;
}

static void push(Open range) {
    if (self.depth < MOST_DEPTH) {
        self.stack[self.depth++] = range;
        return;
    }
    __atomic_add_fetch(&left_out, 1, __ATOMIC_RELAXED);
    Deep *deeper = deeper_of(range.domain);
    if (deeper)
        deeper->count++;
    else
        self.is_lost = 1;
}

/* NVTX has a stack per thread and domain; ours is one, in which others' ranges may lie above. */
static void pop(int32_t domain) {
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    if (self.is_lost) return;
    for (int at = 0; at < MOST_DEEP_DOMAINS; at++) {
        if (self.deeper[at].count && self.deeper[at].domain == domain) {
            self.deeper[at].count--;
            return;
        }
    }
    for (uint32_t at = self.depth; at-- > 0;) {
        if (self.stack[at].domain != domain) continue;
        Open range = self.stack[at];
        self.depth--;
        memmove(&self.stack[at], &self.stack[at + 1], (self.depth - at) * sizeof(Open));
        closed(&range, now_ns, PUSH_POP);
        return;
    }
}

/* The id holds its slot; 0 when all near ones wait for an END that may never come. */
static nvtxRangeId_t start(Open range) {
    for (int tries = 0; tries < OPEN_TRIES; tries++) {
        uint64_t turn = __atomic_add_fetch(&slot_turn, 1, __ATOMIC_RELAXED), nobody = 0;
        Slot *slot = &slots[turn % OPEN_SLOTS];
        if (!__atomic_compare_exchange_n(
                &slot->id, &nobody, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            continue;
        slot->range = range;
        STORE(slot->id, turn + OPEN_SLOTS); /* never 0 or 1, and the same slot */
        return turn + OPEN_SLOTS;
    }
    __atomic_add_fetch(&left_out, 1, __ATOMIC_RELAXED);
    return 0;
}

static void end(nvtxRangeId_t id) {
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    Slot *slot = &slots[id % OPEN_SLOTS];
    uint64_t expected = id;
    if (id < OPEN_SLOTS
        || !__atomic_compare_exchange_n(
            &slot->id, &expected, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
        return;
    Open range = slot->range;
    STORE(slot->id, 0);
    closed(&range, now_ns, START_END);
}

static void mark(Open instant) { closed(&instant, instant.start_ns, MARK); }

/* ---- what NVTX calls ---- */

#define EVENT(action) \
    do { \
        if (enter()) { \
            action; \
            leave(); \
        } \
    } while (0)

/* what NVTX answers without a tool; nobody needs the depth */
#define UNTRACKED (-2)

static int on_domain_push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    EVENT(push(described(domain, event)));
    return UNTRACKED;
}

static int on_domain_pop(nvtxDomainHandle_t domain) {
    EVENT(pop(domain_of(domain)));
    return UNTRACKED;
}

static nvtxRangeId_t on_domain_start(
    nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    nvtxRangeId_t id = 0;
    EVENT(id = start(described(domain, event)));
    return id;
}

static void on_domain_end(nvtxDomainHandle_t domain, nvtxRangeId_t id) {
    (void)domain;
    EVENT(end(id));
}

static void on_domain_mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *event) {
    EVENT(mark(described(domain, event)));
}

static int on_push_ex(const nvtxEventAttributes_t *event) { return on_domain_push(NULL, event); }
static int on_pop(void) { return on_domain_pop(NULL); }
static nvtxRangeId_t on_start_ex(const nvtxEventAttributes_t *event) {
    return on_domain_start(NULL, event);
}
static void on_end(nvtxRangeId_t id) { on_domain_end(NULL, id); }
static void on_mark_ex(const nvtxEventAttributes_t *event) { on_domain_mark(NULL, event); }

static int on_push_a(const char *text) {
    EVENT(push(named(name_of(text))));
    return UNTRACKED;
}

static int on_push_w(const wchar_t *text) {
    EVENT(push(named(wide_name_of(text))));
    return UNTRACKED;
}

static nvtxRangeId_t on_start_a(const char *text) {
    nvtxRangeId_t id = 0;
    EVENT(id = start(named(name_of(text))));
    return id;
}

static nvtxRangeId_t on_start_w(const wchar_t *text) {
    nvtxRangeId_t id = 0;
    EVENT(id = start(named(wide_name_of(text))));
    return id;
}

static void on_mark_a(const char *text) { EVENT(mark(named(name_of(text)))); }
static void on_mark_w(const wchar_t *text) { EVENT(mark(named(wide_name_of(text)))); }

/* Handles are ids of names. They are given also before it is known who records. */
static void *handle_of(const char *text, const wchar_t *wide) {
    uint32_t id = 0;
    if (self.is_busy) return NULL;
    self.is_busy = 1;
    is_on();
    if (LOAD(state) != OFF) id = wide ? wide_name_of(wide) : name_of(text);
    self.is_busy = 0;
    return (void *)(uintptr_t)id;
}

static nvtxDomainHandle_t on_create_a(const char *text) {
    nvtxDomainHandle_t handle = handle_of(text, NULL);
    /* without a domain TensorFlow gives its names to CUPTI, which tf.profiler listens to */
    return text && *text && !strcmp(text, unheard_domain) ? NULL : handle;
}

static nvtxDomainHandle_t on_create_w(const wchar_t *text) { return handle_of("", text); }

static nvtxStringHandle_t on_register_a(nvtxDomainHandle_t domain, const char *text) {
    (void)domain;
    return handle_of(text, NULL);
}

static nvtxStringHandle_t on_register_w(nvtxDomainHandle_t domain, const wchar_t *text) {
    (void)domain;
    return handle_of("", text);
}

/* ---- beginning and end ---- */

EXPORTED void hpcprof_nvtx_flush(void);

/* Write what is kept, unless somebody is writing just now. annotate calls it after each step. */
void hpcprof_nvtx_flush(void) {
    if (LOAD(state) != ON || self.is_busy) return;
    self.is_busy = 1;
    if (may_write()) {
        drain();
        has_written();
    }
    self.is_busy = 0;
}

/* At exit other threads may still be writing, or have died in the middle of it. */
__attribute__((destructor)) static void finish(void) {
    if (LOAD(state) != ON || getpid() != owner) return;
    self.is_busy = 1;
    if (may_write_within(EXIT_WAIT_MS)) {
        drain();
        has_written();
    }
    STORE(state, OFF);
    uint64_t missed = __atomic_load_n(&left_out, __ATOMIC_RELAXED);
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

/* Whether another living process is the training, which has started this one. */
static int is_others(void) {
    const char *training = getenv("HPCPROF_OWNER_PID");
    if (!is_number(training) || atol(training) == getpid()) return 0;
    return !kill((pid_t)atol(training), 0) || errno == EPERM;
}

typedef struct {
    int module, id;
    void *function;
} Subscription;

#define CORE(what, function) {NVTX_CB_MODULE_CORE, NVTX_CBID_CORE_##what, (void *)(function)}
#define CORE2(what, function) {NVTX_CB_MODULE_CORE2, NVTX_CBID_CORE2_##what, (void *)(function)}

static const Subscription subscriptions[] = {
    CORE(MarkEx, on_mark_ex),
    CORE(MarkA, on_mark_a),
    CORE(MarkW, on_mark_w),
    CORE(RangeStartEx, on_start_ex),
    CORE(RangeStartA, on_start_a),
    CORE(RangeStartW, on_start_w),
    CORE(RangeEnd, on_end),
    CORE(RangePushEx, on_push_ex),
    CORE(RangePushA, on_push_a),
    CORE(RangePushW, on_push_w),
    CORE(RangePop, on_pop),
    CORE2(DomainMarkEx, on_domain_mark),
    CORE2(DomainRangeStartEx, on_domain_start),
    CORE2(DomainRangeEnd, on_domain_end),
    CORE2(DomainRangePushEx, on_domain_push),
    CORE2(DomainRangePop, on_domain_pop),
    CORE2(DomainRegisterStringA, on_register_a),
    CORE2(DomainRegisterStringW, on_register_w),
    CORE2(DomainCreateA, on_create_a),
    CORE2(DomainCreateW, on_create_w),
};

EXPORTED int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table);

/* NVTX calls it once for each copy of itself in the process; 0: it does without us. */
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t export_table) {
    if (LOAD(state) == UNDECIDED && is_others()) return 0;
    is_on();
    if (LOAD(state) == OFF) return 0;
    const NvtxExportTableCallbacks *callbacks = export_table(NVTX_ETID_CALLBACKS);
    if (!callbacks) return 0;
    for (size_t at = 0; at < sizeof subscriptions / sizeof *subscriptions; at++) {
        const Subscription *each = &subscriptions[at];
        NvtxFunctionTable table = NULL;
        unsigned int size = 0;
        if (callbacks->GetModuleFunctionTable(each->module, &table, &size)
            && (unsigned int)each->id < size)
            *table[each->id] = (NvtxFunctionPointer)each->function;
    }
    return 1;
}
