/* What the card promises: opaque memory, enforced addresses, errors with words, right numbers. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fpga_mm_sdk.h"

static int failures;
#define CHECK(condition)                                                                                  \
  do {                                                                                                    \
    if (!(condition))                                                                                     \
      failures++, fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, fpga_error_text()); \
  } while (0)

static sigjmp_buf after_fault;
static void on_fault(int number) { siglongjmp(after_fault, number); }

static fpga_operand_t matrix(void *address, int64_t rows, int64_t columns) {
  return (fpga_operand_t){
      .address = address, .dtype = FPGA_FP32, .rank = 2, .size = {rows, columns}, .stride = {columns, 1}};
}
static fpga_operand_t number(double x) {
  return (fpga_operand_t){.dtype = FPGA_NUMBER, .real = x, .integer = (int64_t)x};
}

static void memory(fpga_card_t card) {
  fpga_info_t before, after;
  void *a, *b;
  char bytes[100] = {7}, back[100] = {0};
  CHECK(fpga_get_info(card, &before) == FPGA_OK && before.alignment == 64);
  CHECK(fpga_alloc(card, 100, &a) == FPGA_OK && fpga_alloc(card, 1, &b) == FPGA_OK && (uintptr_t)a % 64 == 0);
  CHECK(fpga_write(card, a, bytes, 100) == FPGA_OK && fpga_read(card, back, a, 100) == FPGA_OK &&
        !memcmp(bytes, back, 100));
  CHECK(fpga_write(card, a, bytes, 200) == FPGA_EADDRESS && strstr(fpga_error_text(), "beyond"));
  CHECK(fpga_write(card, bytes, bytes, 1) == FPGA_EADDRESS);
  CHECK(fpga_alloc(card, before.memory_bytes, &b) == FPGA_EMEMORY);
  volatile int faulted = 0;
  struct sigaction act = {.sa_handler = on_fault}, old;
  sigaction(SIGSEGV, &act, &old);
  if (sigsetjmp(after_fault, 1))
    faulted = 1;
  else
    faulted = *(volatile char *)a != 0 && 0;
  sigaction(SIGSEGV, &old, NULL);
  CHECK(faulted);
  CHECK(fpga_free(card, (char *)a + 64) == FPGA_EADDRESS);
  CHECK(fpga_free(card, a) == FPGA_OK && fpga_free(card, a) == FPGA_EADDRESS && fpga_free(card, b) == FPGA_OK);
  CHECK(fpga_read(card, back, a, 1) == FPGA_EADDRESS);
  CHECK(fpga_get_info(card, &after) == FPGA_OK && after.free_bytes == before.free_bytes &&
        after.cycles > before.cycles);
}

static void products(fpga_card_t card) {
  enum { M = 37, N = 29, K = 53 };
  static float a[M * K], b[K * N], y[M * N];
  void *da, *db, *dy;
  for (int i = 0; i < M * K; i++) a[i] = (float)(i % 13) - 6;
  for (int i = 0; i < K * N; i++) b[i] = (float)(i % 7) - 3;
  CHECK(!fpga_alloc(card, sizeof(a), &da) && !fpga_alloc(card, sizeof(b), &db) && !fpga_alloc(card, sizeof(y), &dy));
  CHECK(!fpga_write(card, da, a, sizeof(a)) && !fpga_write(card, db, b, sizeof(b)));
  fpga_operand_t oa = matrix(da, M, K), ob = matrix(db, K, N), oy = matrix(dy, M, N);
  CHECK(fpga_matmul(card, &oa, &ob, NULL, &oy) == FPGA_OK && !fpga_read(card, y, dy, sizeof(y)));
  int wrong = 0;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      float sum = 0;
      for (int k = 0; k < K; k++) sum += a[i * K + k] * b[k * N + j];
      wrong += sum != y[i * N + j];
    }
  CHECK(wrong == 0);
  CHECK(fpga_matmul(card, &ob, &oa, NULL, &oy) == FPGA_EVALUE);
  oa.address = (char *)da + 4;
  CHECK(fpga_matmul(card, &oa, &ob, NULL, &oy) == FPGA_EADDRESS && strstr(fpga_error_text(), "64"));
  oa = matrix(da, M, K), oa.rank = 5;
  CHECK(fpga_relu(card, &oa, &oa) == FPGA_EUNSUPPORTED);
  CHECK(!fpga_free(card, da) && !fpga_free(card, db) && !fpga_free(card, dy));
}

static void vectors(fpga_card_t card) {
  float x[6] = {1, -2, NAN, 4, 0.5f, 9}, y[6];
  unsigned char truth[6];
  int64_t index[2] = {2, 0}, wrong_index[2] = {3, 0};
  void *dx, *dy, *dt, *di;
  CHECK(!fpga_alloc(card, sizeof(x), &dx) && !fpga_alloc(card, sizeof(y), &dy) && !fpga_alloc(card, 6, &dt) &&
        !fpga_alloc(card, 16, &di));
  CHECK(!fpga_write(card, dx, x, sizeof(x)) && !fpga_write(card, di, index, sizeof(index)));
  fpga_operand_t ox = matrix(dx, 2, 3), oy = matrix(dy, 2, 3), ot = matrix(dt, 2, 3), two = number(2), row;
  ot.dtype = FPGA_BOOL;
  CHECK(!fpga_vector(card, FPGA_MAX, &two, &ox, &oy) && !fpga_read(card, y, dy, sizeof(y)));
  CHECK(y[0] == 2 && y[1] == 2 && isnan(y[2]) && y[3] == 4);
  CHECK(!fpga_relu(card, &ox, &oy) && !fpga_read(card, y, dy, sizeof(y)) && y[1] == 0 && isnan(y[2]) && y[5] == 9);
  CHECK(!fpga_vector(card, FPGA_LT, &ox, &two, &ot) && !fpga_read(card, truth, dt, 6) && truth[0] && !truth[2] &&
        !truth[3]);
  CHECK(!fpga_select(card, &ot, &two, &ox, &oy) && !fpga_read(card, y, dy, sizeof(y)) && y[0] == 2 && y[3] == 4);
  CHECK(fpga_vector(card, FPGA_AND, &ox, &ox, &oy) == FPGA_EUNSUPPORTED &&
        fpga_vector(card, 99, &ox, &ox, &oy) == FPGA_EVALUE);
  row = matrix(dy, 2, 1);
  CHECK(!fpga_reduce(card, FPGA_ADD, &ox, 2, &row) && !fpga_read(card, y, dy, 8) && isnan(y[0]) && y[1] == 13.5f);
  row = matrix(dy, 1, 3);
  CHECK(!fpga_reduce(card, FPGA_MAX, &ox, 1, &row) && !fpga_read(card, y, dy, 12) && y[0] == 4 && y[1] == 0.5f &&
        isnan(y[2]));
  fpga_operand_t oi = {.address = di, .dtype = FPGA_INT64, .rank = 2, .size = {2, 1}, .stride = {1, 1}};
  row = matrix(dy, 2, 1);
  CHECK(!fpga_gather(card, &ox, &oi, 1, &row) && !fpga_read(card, y, dy, 8) && isnan(y[0]) && y[1] == 4);
  CHECK(!fpga_write(card, di, wrong_index, 16) && fpga_gather(card, &ox, &oi, 1, &row) == FPGA_EEXECUTION);
  fpga_operand_t turned = {.address = dy, .dtype = FPGA_FP32, .rank = 2, .size = {2, 3}, .stride = {1, 2}};
  CHECK(!fpga_copy_nd(card, &ox, &turned) && !fpga_read(card, y, dy, sizeof(y)) && y[0] == 1 && y[1] == 4 &&
        y[2] == -2);
  CHECK(!fpga_copy_nd(card, &ox, &ot) && !fpga_read(card, truth, dt, 6) && truth[0] == 1 && truth[2] == 1);
  CHECK(!fpga_free(card, dx) && !fpga_free(card, dy) && !fpga_free(card, dt) && !fpga_free(card, di));
}

int main(void) {
  int32_t count = 0;
  fpga_card_t card, again;
  setenv("FPGA_MM_MEMORY", "16", 0);
  CHECK(fpga_card_count(&count) == FPGA_OK && count == 1);
  CHECK(fpga_open(1, &card) == FPGA_ECARD && fpga_open(0, &card) == FPGA_OK && fpga_open(0, &again) == FPGA_ECARD);
  memory(card);
  products(card);
  vectors(card);
  CHECK(fpga_close(card) == FPGA_OK && fpga_close(card) == FPGA_ECARD && fpga_set(card, NULL, 0, 0) == FPGA_ECARD);
  setenv("FPGA_MM_FAULT", "fail:2", 1);
  void *a, *b;
  CHECK(!fpga_open(0, &card) && !fpga_alloc(card, 1, &a) && fpga_alloc(card, 1, &b) == FPGA_EEXECUTION &&
        !fpga_alloc(card, 1, &b));
  setenv("FPGA_MM_FAULT", "lost:5", 1);
  CHECK(!fpga_free(card, a) && fpga_free(card, b) == FPGA_ELOST && fpga_free(card, b) == FPGA_ELOST &&
        !fpga_close(card));
  if (!failures) puts("ok");
  return failures != 0;
}
