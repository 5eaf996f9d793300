/* A table of texts. Ids count from 1; a text keeps its id, and is never forgotten. */
#ifndef HPCPROF_NAMES_H
#define HPCPROF_NAMES_H

#include <stdint.h>
#include <wchar.h>

enum { MOST_NAME_BYTES = 2000 };

/* The id of a text, NULL being "". A long one is cut, between two characters of UTF-8; all texts
 * beyond the table's 65535 share one id. */
uint32_t name_of(const char *text);

/* The same for a text of wide characters, which is kept as UTF-8. */
uint32_t wide_name_of(const wchar_t *text);

/* How many ids have been given: a text is in the table before its id is seen by anybody. */
uint32_t known_names(void);

/* The text of an id, which does not end with a zero. */
const char *text_of(uint32_t id, uint32_t *length);

#endif
