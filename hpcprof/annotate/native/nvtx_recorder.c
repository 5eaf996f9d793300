/* Records NVTX ranges and marks of one training into ranks/N/nvtx.bin.
 *
 * NVTX itself loads this library into the process that NVTX_INJECTION64_PATH is set for. The format
 * is that of hpcprof/artifacts/nvtx_format.py. Does not interpret what it records.
 *
 * It lives inside somebody's training: it never aborts, takes no signal and allocates nothing (all
 * tables are fixed and cost memory only where they are touched). What cannot be written ends the
 * recording, with one line for the manifest. Only the process that annotate has made the owner
 * writes.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "atomics.h"
#include "names.h"
#include "nvtx_abi.h"
#include "record_file.h"

#define EXPORTED __attribute__((visibility("default")))

_Static_assert(sizeof(void *) == 8, "handles are pointers that hold our ids");

enum {
    MOST_DEPTH = 64,
    MOST_DEEP_DOMAINS = 8,
    OPEN_SLOTS = 16384,
    OPEN_TRIES = 64,
};

typedef struct {
    int64_t start_ns, value;
    uint32_t name;
    int32_t domain;
} Open;

typedef struct {
    int32_t domain;
    uint32_t count;
} Deep;

/* what a thread has: its id, and the ranges it has pushed */
static __thread struct {
    volatile sig_atomic_t is_busy; /* a signal handler may use NVTX while we hold a lock */
    uint32_t id;
    uint32_t depth;
    Open stack[MOST_DEPTH];
    Deep deeper[MOST_DEEP_DOMAINS]; /* pushed when the stack was full */
    int is_lost;                    /* too deep in too many domains: which pop is whose? */
} self;

/* START ranges that wait for their END, from whatever thread */
typedef struct {
    uint64_t id; /* 0: free, 1: being filled or emptied */
    Open range;
} Slot;

static Slot slots[OPEN_SLOTS];
static uint64_t slot_turn;

/* Every event begins and ends with these; what a signal handler does in between is left out. */
static int enter(void) {
    if (self.is_busy) return 0;
    self.is_busy = 1;
    if (is_recording()) {
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
        if (id && id <= known_names()) return (uint32_t)id;
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
    return id && id <= known_names() ? (int32_t)id : NO_DOMAIN;
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
    leave_out();
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
        uint64_t turn = COUNT(slot_turn), nobody = 0;
        Slot *slot = &slots[turn % OPEN_SLOTS];
        if (!SWAP(slot->id, nobody, 1)) continue;
        slot->range = range;
        STORE(slot->id, turn + OPEN_SLOTS); /* never 0 or 1, and the same slot */
        return turn + OPEN_SLOTS;
    }
    leave_out();
    return 0;
}

static void end(nvtxRangeId_t id) {
    int64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    Slot *slot = &slots[id % OPEN_SLOTS];
    uint64_t expected = id;
    if (id < OPEN_SLOTS || !SWAP(slot->id, expected, 1)) return;
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
    is_recording();
    if (!has_ended()) id = wide ? wide_name_of(wide) : name_of(text);
    self.is_busy = 0;
    return (void *)(uintptr_t)id;
}

static nvtxDomainHandle_t on_create_a(const char *text) {
    nvtxDomainHandle_t handle = handle_of(text, NULL);
    /* without a domain TensorFlow gives its names to CUPTI, which tf.profiler listens to */
    return text && *text && !strcmp(text, unheard_domain()) ? NULL : handle;
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

/* ---- what is called from outside ---- */

EXPORTED void hpcprof_nvtx_flush(void);

/* annotate calls it after each step. */
void hpcprof_nvtx_flush(void) {
    if (self.is_busy) return;
    self.is_busy = 1;
    flush_records();
    self.is_busy = 0;
}

__attribute__((destructor)) static void finish(void) {
    self.is_busy = 1;
    finish_recording();
    self.is_busy = 0;
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
    if (!is_recording() && (has_ended() || is_of_another_training())) return 0;
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
