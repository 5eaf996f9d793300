#include "names.h"

#include <pthread.h>
#include <string.h>

#include "atomics.h"

enum {
    MOST_NAMES = 65536, /* the last one stands for all beyond */
    NAME_SLOTS = 2 * MOST_NAMES,
    MOST_TEXT_BYTES = 16 << 20, /* of all names together */
};
static const char MORE_NAMES[] = "more names";

typedef struct {
    uint64_t hash;
    uint32_t offset, length;
} Name;

/* who adds a name has it; to look one up nobody needs it */
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;
static Name names[MOST_NAMES + 1]; /* by id */
static uint32_t name_slots[NAME_SLOTS];
static uint32_t name_count;
static char texts[MOST_TEXT_BYTES];
static uint32_t text_bytes;

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

uint32_t name_of(const char *text) {
    if (!text) text = "";
    uint32_t length = (uint32_t)strnlen(text, MOST_NAME_BYTES + 1), slot;
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

uint32_t wide_name_of(const wchar_t *wide) {
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

uint32_t known_names(void) { return LOAD(name_count); }

const char *text_of(uint32_t id, uint32_t *length) {
    *length = names[id].length;
    return texts + names[id].offset;
}
