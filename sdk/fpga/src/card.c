// card.c: cards, their memory, errors and faults; the look at every operand.
//
// Contract: a card address is an offset into a PROT_NONE range, so that the host faults when it touches one; commands
// get the address translated to the backing pages. One mutex a card serialises its commands.
#include "card.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define CARDS_MAX 8
#define ALIGNMENT 64

typedef struct block {
  uint64_t at, bytes;
  int used;
  struct block *next;
} block;

struct fpga_card {
  pthread_mutex_t mutex;
  int is_open, is_lost;
  uint64_t index_limit;
  int32_t index;
  char *base, *backing; /* the range that may not be touched, and what it stands for */
  uint64_t bytes, free_bytes, cycles, commands;
  block *blocks; /* in order of address, without gaps */
  const char *command;
};

static struct fpga_card cards[CARDS_MAX] = {
    [0 ... CARDS_MAX - 1] = {.mutex = PTHREAD_MUTEX_INITIALIZER},
};
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char error_text[256];

int fail(int status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(error_text, sizeof(error_text), format, arguments);
  va_end(arguments);
  return status;
}

static int64_t setting(const char *name, int64_t otherwise, int64_t most) {
  const char *text = getenv(name);
  int64_t value = text && *text ? strtoll(text, NULL, 10) : otherwise;
  return value < 0 ? 0 : value > most ? most : value;
}

// FPGA_MM_FAULT: "fail:7" or "lost:7", the seventh command of a card.
static int fault(fpga_card_t card) {
  const char *text = getenv("FPGA_MM_FAULT"), *number = text ? strchr(text, ':') : NULL;
  if (!number || strtoull(number + 1, NULL, 10) != card->commands) return FPGA_OK;
  if (strncmp(text, "lost", 4)) return fail(FPGA_EEXECUTION, "%s: failed (injected by FPGA_MM_FAULT)", card->command);
  card->is_lost = 1;
  return FPGA_OK;
}

int begin(fpga_card_t card, const char *command) {
  if (card < cards || card >= cards + CARDS_MAX || !card->is_open)
    return fail(FPGA_ECARD, "%s: %p is not an open card", command, (void *)card);
  pthread_mutex_lock(&card->mutex);
  card->command = command;
  card->commands++;
  int status = fault(card);
  if (card->is_lost) status = fail(FPGA_ELOST, "%s: card %d does not answer", command, card->index);
  if (status) pthread_mutex_unlock(&card->mutex);
  return status;
}

int end(fpga_card_t card, int status, uint64_t cycles) {
  if (!status) card->cycles += cycles;
  pthread_mutex_unlock(&card->mutex);
  return status;
}

size_t item_size(int32_t dtype) {
  static const size_t sizes[] = {0, 4, 8, 1, 1, 2, 4, 8};
  return dtype > 0 && dtype <= FPGA_BITS64 ? sizes[dtype] : 0;
}

int64_t elements(const view *v) {
  int64_t n = 1;
  for (int32_t d = 0; d < v->rank; d++) n *= v->size[d];
  return n;
}

// The backing of `bytes` bytes at a card address.
static int reach(fpga_card_t card, const char *what, const void *address, uint64_t bytes, char **data) {
  uint64_t at = (uint64_t)address - (uint64_t)card->base;
  const char *command = card->command;
  if (at >= card->bytes)
    return fail(FPGA_EADDRESS, "%s: %s: %p is not memory of card %d", command, what, address, card->index);
  const block *b = card->blocks;
  while (b && at >= b->at + b->bytes) b = b->next;
  if (!b || !b->used) return fail(FPGA_EADDRESS, "%s: %s: %p is not allocated", command, what, address);
  if (bytes > b->at + b->bytes - at)
    return fail(FPGA_EADDRESS, "%s: %s: %" PRIu64 " bytes from %p on reach beyond the allocation, which has %" PRIu64,
                command, what, bytes, address, b->at + b->bytes - at);
  *data = card->backing + at;
  return FPGA_OK;
}

static const char *const dtype_names[] = {"a number", "FP32", "INT64", "BOOL", "BITS8", "BITS16", "BITS32", "BITS64"};

int look(fpga_card_t card, const char *what, const fpga_operand_t *x, uint32_t dtypes, int aligned, view *out) {
  const char *command = card->command;
  if (!x) return fail(FPGA_EVALUE, "%s: %s: NULL", command, what);
  if (x->dtype < 0 || x->dtype > FPGA_BITS64)
    return fail(FPGA_EVALUE, "%s: %s: %d is no dtype", command, what, x->dtype);
  if (!(dtypes & BIT(x->dtype)))
    return fail(FPGA_EUNSUPPORTED, "%s: %s: cannot be %s", command, what, dtype_names[x->dtype]);
  if (x->rank < 0) return fail(FPGA_EVALUE, "%s: %s: rank %d", command, what, x->rank);
  if (x->rank > FPGA_MAX_RANK)
    return fail(FPGA_EUNSUPPORTED, "%s: %s: rank %d; the card has %d dimensions", command, what, x->rank,
                FPGA_MAX_RANK);
  *out = (view){.dtype = x->dtype, .rank = x->rank};
  uint64_t last = 0, item = item_size(x->dtype), span;
  int empty = 0, overflow = 0;
  for (int32_t d = 0; d < x->rank; d++) {
    if (x->size[d] < 0 || x->stride[d] < 0)
      return fail(FPGA_EVALUE, "%s: %s: a negative size or stride", command, what);
    out->size[d] = x->size[d];
    out->stride[d] = x->stride[d];
    empty |= !x->size[d];
    overflow |= x->size[d] && __builtin_mul_overflow((uint64_t)x->size[d] - 1, (uint64_t)x->stride[d], &span);
    overflow |= x->size[d] && __builtin_add_overflow(last, span, &last);
  }
  if (empty) return FPGA_OK;
  overflow |= __builtin_mul_overflow(last + 1, item, &span);
  if (overflow) return fail(FPGA_EVALUE, "%s: %s: too large", command, what);
  if (last >= card->index_limit)
    return fail(FPGA_EUNSUPPORTED, "%s: %s: reaches over %" PRIu64 " elements; an index holds %" PRIu64, command, what,
                last + 1, card->index_limit);
  uint64_t unit = aligned ? ALIGNMENT : item;
  if ((uint64_t)x->address % unit)
    return fail(FPGA_EADDRESS, "%s: %s: address %p is no multiple of %" PRIu64, command, what, x->address, unit);
  return reach(card, what, x->address, span, &out->data);
}

int look_like(fpga_card_t card, const char *what, const fpga_operand_t *x, const view *like, int aligned, view *out) {
  if (x && x->dtype == FPGA_NUMBER) {
    *out = *like;
    for (int32_t d = 0; d < FPGA_MAX_RANK; d++) out->stride[d] = 0;
    out->data = (char *)&out->held;
    if (like->dtype == FPGA_FP32)
      out->held.real = (float)x->real;
    else if (like->dtype == FPGA_BOOL)
      out->held.truth = x->integer != 0;
    else
      out->held.integer = x->integer;
    return FPGA_OK;
  }
  int status = look(card, what, x, BIT(like->dtype), aligned, out);
  return status ? status : same_size(what, out, like);
}

int same_size(const char *what, const view *a, const view *b) {
  int same = a->rank == b->rank;
  for (int32_t d = 0; same && d < a->rank; d++) same = a->size[d] == b->size[d];
  return same ? FPGA_OK : fail(FPGA_EVALUE, "%s: its size is not the result's", what);
}

rows rows_of(int32_t count, const view *const *views) {
  rows r = {.count = count, .left = 1, .length = 1};
  for (int32_t k = 0; k < count; k++) r.p[k] = views[k]->data;
  for (int32_t d = 0; d < views[0]->rank; d++) {
    int64_t n = views[0]->size[d];
    if (n == 0) r.left = 0;
    if (n == 1) continue;
    int join = r.rank > 0;
    for (int32_t k = 0; k < count; k++) {
      int64_t step = views[k]->stride[d] * (int64_t)item_size(views[k]->dtype);
      join = join && r.step[k][r.rank - 1] == step * n;
      r.step[k][r.rank] = step;
    }
    if (join) {
      r.size[r.rank - 1] *= n;
      for (int32_t k = 0; k < count; k++) r.step[k][r.rank - 1] = r.step[k][r.rank];
    } else {
      r.size[r.rank++] = n;
    }
  }
  if (r.rank) {
    r.length = r.size[--r.rank];
    for (int32_t k = 0; k < count; k++) r.stride[k] = r.step[k][r.rank] / (int64_t)item_size(views[k]->dtype);
  }
  for (int32_t d = 0; d < r.rank; d++) r.left *= r.size[d];
  return r;
}

void rows_next(rows *r) {
  if (--r->left <= 0) return;
  for (int32_t d = r->rank; d-- > 0;) {
    for (int32_t k = 0; k < r->count; k++) r->p[k] += r->step[k][d];
    if (++r->at[d] < r->size[d]) return;
    r->at[d] = 0;
    for (int32_t k = 0; k < r->count; k++) r->p[k] -= r->step[k][d] * r->size[d];
  }
}

// ---------------------------------------------------------------- the interface

const char *fpga_error_text(void) { return error_text; }
const char *fpga_version(void) { return "2.0.1"; }

int fpga_card_count(int32_t *count) {
  if (!count) return fail(FPGA_EVALUE, "fpga_card_count: count: NULL");
  *count = (int32_t)setting("FPGA_MM_CARDS", 1, CARDS_MAX);
  return FPGA_OK;
}

static void *pages(uint64_t bytes, int protection) {
  void *p = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

int fpga_open(int32_t index, fpga_card_t *card) {
  int32_t count = 0;
  fpga_card_count(&count);
  if (!card) return fail(FPGA_EVALUE, "fpga_open: card: NULL");
  if (index < 0 || index >= count) return fail(FPGA_ECARD, "fpga_open: no card %d; there are %d", index, count);
  struct fpga_card *c = &cards[index];
  pthread_mutex_lock(&opening);
  int status = c->is_open ? fail(FPGA_ECARD, "fpga_open: card %d is open already", index) : FPGA_OK;
  if (!status) {
    c->index = index;
    if (!c->base) { /* reserved for ever: a stale address faults */
      c->bytes = (uint64_t)setting("FPGA_MM_MEMORY", 1024, 1 << 20) << 20;
      c->index_limit = (uint64_t)setting("FPGA_MM_INDEX_LIMIT", INT64_C(1) << 40, INT64_C(1) << 40);
      c->base = pages(c->bytes, PROT_NONE);
    }
    c->free_bytes = c->bytes;
    c->backing = pages(c->bytes, PROT_READ | PROT_WRITE);
    c->blocks = malloc(sizeof(block));
    if (!c->base || !c->backing || !c->blocks) status = fail(FPGA_EMEMORY, "fpga_open: the host has no memory");
  }
  if (!status) {
    *c->blocks = (block){.at = 0, .bytes = c->bytes};
    c->is_lost = 0;
    c->cycles = c->commands = 0;
    c->is_open = 1;
    *card = c;
  }
  pthread_mutex_unlock(&opening);
  return status;
}

int fpga_close(fpga_card_t card) {
  pthread_mutex_lock(&opening);
  int status = FPGA_OK;
  if (card < cards || card >= cards + CARDS_MAX || !card->is_open) {
    status = fail(FPGA_ECARD, "fpga_close: %p is not an open card", (void *)card);
  } else {
    card->is_open = 0;
    munmap(card->backing, card->bytes);
    for (block *b = card->blocks, *next; b; b = next) next = b->next, free(b);
    card->blocks = NULL;
  }
  pthread_mutex_unlock(&opening);
  return status;
}

int fpga_get_info(fpga_card_t card, fpga_info_t *info) {
  if (!info) return fail(FPGA_EVALUE, "fpga_get_info: info: NULL");
  if (card < cards || card >= cards + CARDS_MAX || !card->is_open)
    return fail(FPGA_ECARD, "fpga_get_info: %p is not an open card", (void *)card);
  pthread_mutex_lock(&card->mutex);
  *info = (fpga_info_t){"FPGA-MM", "", card->bytes, card->free_bytes, card->cycles, ALIGNMENT, 250};
  snprintf(info->serial, sizeof(info->serial), "FMM-%04d", card->index + 1);
  return end(card, FPGA_OK, 0);
}

int fpga_alloc(fpga_card_t card, uint64_t bytes, void **address) {
  if (!address || !bytes) return fail(FPGA_EVALUE, "fpga_alloc: NULL, or nothing wanted");
  int status = begin(card, "fpga_alloc");
  if (status) return status;
  uint64_t size = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  block *b = card->blocks, *rest = NULL;
  while (b && (b->used || b->bytes < size)) b = b->next;
  if (b && b->bytes > size) rest = malloc(sizeof(block));
  if (size < bytes || !b || (b->bytes > size && !rest))
    return end(card,
               fail(FPGA_EMEMORY, "fpga_alloc: %" PRIu64 " bytes wanted, %" PRIu64 " of %" PRIu64 " are free", bytes,
                    card->free_bytes, card->bytes),
               0);
  if (rest) {
    *rest = (block){b->at + size, b->bytes - size, 0, b->next};
    b->next = rest;
    b->bytes = size;
  }
  b->used = 1;
  card->free_bytes -= size;
  *address = card->base + b->at;
  return end(card, FPGA_OK, 0);
}

int fpga_free(fpga_card_t card, void *address) {
  int status = begin(card, "fpga_free");
  if (status) return status;
  uint64_t at = (uint64_t)address - (uint64_t)card->base;
  block *b = card->blocks, *before = NULL;
  while (b && b->at < at) before = b, b = b->next;
  if (!b || b->at != at || !b->used)
    return end(card, fail(FPGA_EADDRESS, "fpga_free: %p is not the start of an allocation", address), 0);
  b->used = 0;
  card->free_bytes += b->bytes;
  for (block *next = b->next; next && !next->used; next = b->next)
    b->bytes += next->bytes, b->next = next->next, free(next);
  if (before && !before->used) before->bytes += b->bytes, before->next = b->next, free(b);
  return end(card, FPGA_OK, 0);
}

// Plain bytes: 32 a cycle over the host's link, 64 in the card's memory.
static int transfer(fpga_card_t card, const char *command, void *to, const void *from, uint64_t bytes, int card_side) {
  int status = begin(card, command);
  if (status) return status;
  char *target = to, *source = (char *)(uintptr_t)from;
  if (bytes && card_side & 1) status = reach(card, "to", to, bytes, &target);
  if (bytes && !status && card_side & 2) status = reach(card, "from", from, bytes, &source);
  if (bytes && !status && (!target || !source)) status = fail(FPGA_EVALUE, "%s: host: NULL", command);
  if (bytes && !status) memmove(target, source, bytes);
  return end(card, status, 250 + bytes / (card_side == 3 ? 64 : 32));
}
int fpga_write(fpga_card_t card, void *to, const void *host, uint64_t n) {
  return transfer(card, __func__, to, host, n, 1);
}
int fpga_read(fpga_card_t card, void *host, const void *from, uint64_t n) {
  return transfer(card, __func__, host, from, n, 2);
}
int fpga_move(fpga_card_t card, void *to, const void *from, uint64_t n) {
  return transfer(card, __func__, to, from, n, 3);
}

int fpga_set(fpga_card_t card, void *to, int32_t byte, uint64_t bytes) {
  char *target = NULL;
  int status = begin(card, __func__);
  if (status) return status;
  if (bytes) status = reach(card, "to", to, bytes, &target);
  if (bytes && !status) memset(target, byte, bytes);
  return end(card, status, 64 + bytes / 64);
}
