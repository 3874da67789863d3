// matrix.c: the matrix engine. FP32 products, accumulated in FP32; 32 x 32 multiply-adds a cycle.
#include <stdlib.h>
#include <string.h>

#include "card.h"

#define N 8 /* columns of a panel of b */
#define M 4 /* rows of a taken at a time */
typedef float lanes __attribute__((vector_size(4 * N), aligned(4), may_alias));

typedef struct matrix {
  float *p;
  int64_t row, column; /* strides */
} matrix;

// y[0..M)[0..N) of one panel; rows beyond `m` are repeated and not written, columns beyond `n` are zero.
static void block(const matrix *a, const float *panel, const matrix *c, const matrix *y, int64_t m, int64_t n,
                  int64_t k) {
  lanes sum[M] = {{0}};
  const float *row[M];
  for (int i = 0; i < M; i++) row[i] = a->p + (i < m ? i : m - 1) * a->row;
  for (int64_t l = 0; l < k; l++) {
    lanes b = *(const lanes *)(panel + l * N);
    for (int i = 0; i < M; i++) sum[i] += b * row[i][l * a->column];
  }
  for (int64_t i = 0; i < m; i++)
    for (int64_t j = 0; j < n; j++)
      y->p[i * y->row + j * y->column] = sum[i][j] + (c->p ? c->p[i * c->row + j * c->column] : 0);
}

static void product(matrix a, matrix b, matrix c, matrix y, int64_t m, int64_t n, int64_t k, float *panel) {
  for (int64_t j = 0; j < n; j += N) {
    int64_t width = n - j < N ? n - j : N;
    memset(panel, 0, (size_t)k * N * sizeof(float));
    for (int64_t l = 0; l < k; l++)
      for (int64_t q = 0; q < width; q++) panel[l * N + q] = b.p[l * b.row + (j + q) * b.column];
    for (int64_t i = 0; i < m; i += M) {
      matrix rows = {a.p + i * a.row, a.row, a.column}, out = {y.p + i * y.row + j * y.column, y.row, y.column};
      matrix plus = {c.p ? c.p + i * c.row + j * c.column : NULL, c.row, c.column};
      block(&rows, panel, &plus, &out, m - i < M ? m - i : M, width, k);
    }
  }
}

static matrix plane(const view *v, int64_t batch) {
  int32_t d = v->rank - 2;
  if (!v->data) return (matrix){NULL, 0, 0};
  return (matrix){(float *)v->data + (d ? batch * v->stride[0] : 0), v->stride[d], v->stride[d + 1]};
}

static int check(const view *a, const view *b, const view *c, const view *y) {
  int32_t d = y->rank - 2;
  if (d < 0 || d > 1 || a->rank != y->rank || b->rank != y->rank)
    return fail(FPGA_EUNSUPPORTED, "fpga_matmul: ranks %d, %d and %d: the engine takes 2 or 3", a->rank, b->rank,
                y->rank);
  if (a->size[d] != y->size[d] || b->size[d + 1] != y->size[d + 1] || a->size[d + 1] != b->size[d] ||
      (d && (a->size[0] != y->size[0] || b->size[0] != y->size[0])))
    return fail(FPGA_EVALUE, "fpga_matmul: the sizes do not fit");
  return c->rank ? same_size("fpga_matmul: c", c, y) : FPGA_OK;
}

int fpga_matmul(fpga_card_t card, const fpga_operand_t *a, const fpga_operand_t *b, const fpga_operand_t *c,
                const fpga_operand_t *y) {
  view va, vb, vc = {.rank = 0}, vy;
  int status = begin(card, "fpga_matmul");
  if (status) return status;
  status = look(card, "a", a, BIT(FPGA_FP32), 1, &va);
  if (!status) status = look(card, "b", b, BIT(FPGA_FP32), 1, &vb);
  if (!status && c) status = look(card, "c", c, BIT(FPGA_FP32), 1, &vc);
  if (!status) status = look(card, "y", y, BIT(FPGA_FP32), 1, &vy);
  if (!status) status = check(&va, &vb, &vc, &vy);
  if (status || !elements(&vy)) return end(card, status, 0);
  int64_t m = vy.size[vy.rank - 2], n = vy.size[vy.rank - 1], k = va.size[va.rank - 1],
          batch = vy.rank > 2 ? vy.size[0] : 1;
  float *panel = malloc((size_t)(k ? k : 1) * N * sizeof(float));
  if (!panel) return end(card, fail(FPGA_EEXECUTION, "fpga_matmul: the host has no memory"), 0);
  for (int64_t i = 0; i < batch; i++)
    product(plane(&va, i), plane(&vb, i), plane(&vc, i), plane(&vy, i), m, n, k, panel);
  free(panel);
  return end(card, FPGA_OK, (uint64_t)(64 + batch * ((m + 31) / 32) * ((n + 31) / 32) * (k + 32)));
}

int fpga_relu(fpga_card_t card, const fpga_operand_t *x, const fpga_operand_t *y) {
  view vx, vy;
  int status = begin(card, "fpga_relu");
  if (status) return status;
  status = look(card, "y", y, BIT(FPGA_FP32), 1, &vy);
  if (!status) status = look_like(card, "x", x, &vy, 1, &vx);
  if (status) return end(card, status, 0);
  FOR_ROWS(r, &vx, &vy) {
    const float *from = (const float *)r.p[0];
    float *to = (float *)r.p[1];
    for (int64_t i = 0; i < r.length; i++) {
      float v = from[i * r.stride[0]];
      to[i * r.stride[1]] = v > 0 || v != v ? v : 0;
    }
  }
  return end(card, FPGA_OK, (uint64_t)(64 + elements(&vy) / 16));
}
