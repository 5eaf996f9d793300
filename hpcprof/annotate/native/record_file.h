/* The file ranks/N/nvtx.bin: whether this process writes it, what is kept for it, and when.
 *
 * One thread writes at a time; it takes the buffers' locks, never the other way round. A name is in
 * its table before a record can use it, and a drain looks at the table after it has taken the
 * records: so names come before their use in the file.
 */
#ifndef HPCPROF_RECORD_FILE_H
#define HPCPROF_RECORD_FILE_H

#include <stdint.h>
#include <time.h>

/* as in artifacts/nvtx_format.py and artifacts/span_format.py */
enum { KIND_NAME = 4, PUSH_POP = 16, START_END = 17, MARK = 18, NO_DOMAIN = -1 };

typedef struct {
    int64_t start_ns, end_ns; /* CLOCK_MONOTONIC */
    uint32_t name;
    int32_t domain;
    uint32_t thread, kind;
    int64_t value;
} __attribute__((packed)) Record;

/* Whether events are recorded. Asks, now and then, whether this process has become the training. */
int is_recording(void);

/* Whether nothing will be recorded in this process any more. */
int has_ended(void);

/* Whether another living process is the training, which has started this one. */
int is_of_another_training(void);

/* A domain that nobody must listen to, "" for none. */
const char *unheard_domain(void);

/* Keep a record for the file. Waits at most 0.2 s, and not again, where a disk hangs. */
void keep(const Record *record);

/* A range was left out; how many is said at the end. */
void leave_out(void);

/* Write what is kept, unless somebody is writing just now. */
void flush_records(void);

/* The same for the last time; what comes after is not recorded. */
void finish_recording(void);

int64_t clock_ns(clockid_t which);

#endif
