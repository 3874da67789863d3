/* check.h: what the tests of the X1 runtime share. */
#ifndef X1_CHECK_H
#define X1_CHECK_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "x1_runtime.h"

static int failures;
#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    if (!(condition))                                                                                   \
      failures++, fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, x1_last_error()); \
  } while (0)

/* A dense view of `rank` sizes. */
static inline x1_view_t view(void *data, int32_t dtype, int32_t rank, const int64_t *shape) {
  x1_view_t v;
  int64_t n = 1;
  memset(&v, 0, sizeof(v));
  v.data = data, v.dtype = dtype, v.rank = rank;
  for (int32_t d = rank; d-- > 0; n *= shape[d]) v.shape[d] = shape[d], v.stride[d] = n;
  return v;
}
static inline x1_view_t number(double x) {
  x1_view_t v;
  memset(&v, 0, sizeof(v));
  v.real = x, v.integer = (int64_t)x;
  return v;
}
#endif
