/* What the chip promises as a whole: which memory it reaches, what it refuses, and when that is the end. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void memory(void) {
  static float around[257];
  float *host = around + 1;
  const size_t bytes = 256 * sizeof(float);
  uint64_t free_before, free_after, total;
  x1_info_t info;
  CHECK(!x1_mem_info(&free_before, &total) && total == 16 << 20 && free_before == total);
  CHECK(x1_mem_map(host, bytes) == host && x1_mem_map(host, bytes) == host);
  CHECK(!x1_get_info(&info) && info.mapped_bytes == bytes);
  CHECK(x1_mem_map(host, 16) == NULL && strstr(x1_last_error(), "overlap"));
  CHECK(x1_mem_map(host + 255, 16) == NULL && x1_mem_map(host - 1, 8) == NULL);
  CHECK(!x1_mem_unmap(host) && x1_add(host, host, host, 256) == X1_OK);
  CHECK(x1_mem_unmap(host + 1) == X1_EADDRESS && !x1_mem_unmap(host) && x1_mem_unmap(host) == X1_EADDRESS);
  CHECK(x1_add(host, host, host, 1) == X1_EADDRESS && strstr(x1_last_error(), "x1_mem_map"));

  float *own = x1_mem_alloc(1000), *more;
  CHECK(own && (uintptr_t)own % 64 == 0);
  own[0] = 3; /* the host sees it */
  CHECK(!x1_add(own, own, own, 250) && own[0] == 6);
  CHECK(x1_add(own, own, own, 251) == X1_EADDRESS && strstr(x1_last_error(), "beyond"));
  CHECK(x1_mem_unmap(own) == X1_EADDRESS && x1_mem_free(own + 1) == X1_EADDRESS);
  CHECK(x1_mem_map(own, 1000) == NULL);
  more = x1_mem_alloc(16 << 20);
  CHECK(!more && strstr(x1_last_error(), "free"));
  CHECK(!x1_mem_copy(own, host, 1000) && !x1_mem_set(own, 0, 4) && x1_mem_set(host, 0, 4) == X1_EADDRESS);
  CHECK(!x1_get_info(&info) && info.copied_bytes == 1000 && info.allocated_bytes == 1000 && info.cycles > 1000);
  CHECK(!x1_mem_free(own) && x1_mem_free(own) == X1_EADDRESS);
  CHECK(!x1_mem_info(&free_after, NULL) && free_after == total);
}

/* Runs `request` in a child in the unforgiving mode; the signal that ended it, or 0. */
static int unforgiven(void (*request)(void)) {
  pid_t child = fork();
  if (!child) {
    freopen("/dev/null", "w", stderr);
    request();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static int convolve(int64_t stride, int64_t padding, int64_t dilation, int64_t groups) {
  const int64_t strides[2] = {stride, 1}, paddings[2] = {0, padding}, dilations[2] = {1, dilation};
  x1_tensor_t x = {x1_mem_alloc(3200), {{1, 8, 10, 10}}, {{800, 100, 10, 1}}, X1_DTYPE_FLOAT32}, none = {0}, y;
  x1_tensor_t w = {x1_mem_alloc(3200), {{8, 8 / groups, 3, 3}}, {{72, 9, 3, 1}}, X1_DTYPE_FLOAT32};
  int status = x1_conv2d_run(&x, &w, &none, strides, paddings, dilations, groups, &y);
  CHECK((status == X1_OK) == (y.data != NULL) && (status == X1_OK || y.shape.d[0] == 0));
  CHECK(!x1_mem_free(x.data) && !x1_mem_free(w.data));
  return status;
}
static void bad_stride(void) { convolve(3, 0, 1, 1); }
static void good(void) { convolve(4, 2, 1, 4); }
static void stray(void) {
  static float host[4];
  x1_add(host, host, host, 4);
}
static void wrong_dtype(void) {
  x1_view_t v = view(NULL, X1_DTYPE_BITS16, 0, NULL);
  x1_unary_ex(X1_NEG, &v, &v);
}

int main(int argc, char **argv) {
  setenv("X1_SIM_MEMORY", "16", 1);
  if (argc > 1) { /* the other process: the mode is read once */
    CHECK(unforgiven(bad_stride) == SIGABRT && unforgiven(stray) == SIGABRT);
    CHECK(!unforgiven(good) && !unforgiven(wrong_dtype));
    return failures != 0;
  }
  CHECK(!strcmp(x1_version(), "1.2.0") && !x1_init_v2(0) && x1_init_v2(1) == X1_EVALUE);
  memory();
  for (int64_t v = 0; v <= 6; v++) {
    CHECK(convolve(v, 0, 1, 1) == (v == 1 || v == 2 || v == 4 ? X1_OK : X1_EUNSUPPORTED));
    CHECK(convolve(1, v, 1, 1) == (v <= 2 ? X1_OK : X1_EUNSUPPORTED));
    CHECK(convolve(1, 0, v, 1) == (v == 1 ? X1_OK : X1_EUNSUPPORTED));
    if (v && 8 % v == 0) CHECK(convolve(1, 0, 1, v) == X1_OK);
  }
  CHECK(convolve(1, 0, 1, 8) == X1_EUNSUPPORTED && strstr(x1_last_error(), "groups is 8"));
  setenv("X1_SIM_UNFORGIVING", "1", 1);
  pid_t child = fork();
  if (!child) execl(argv[0], argv[0], "unforgiving", (char *)NULL);
  int status = 1;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  if (!failures) puts("ok");
  return failures != 0;
}
