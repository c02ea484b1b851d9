/* A stub of cuBLASLt (matrix products with an epilogue): one algorithm is always found, which needs no workspace of
 * its own; PyTorch gives it the one that it keeps for the handle. */
#include "virtual_gpu.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct heuristic { /* cublasLtMatmulHeuristicResult_t */
  uint64_t algorithm[8];
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

static int create(void **descriptor) { *descriptor = calloc(1, 512); return *descriptor ? 0 : 3; }
static int destroy(void *descriptor) { free(descriptor); return 0; }

EXPORT int cublasLtMatmul(void) { return virtual_note_kernel(); }
EXPORT size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }
EXPORT int cublasLtCreate(void **handle) { return create(handle); }
EXPORT int cublasLtDestroy(void *handle) { return destroy(handle); }
EXPORT int cublasLtMatmulDescCreate(void **d, int compute, int scale) { (void)compute; (void)scale; return create(d); }
EXPORT int cublasLtMatmulDescDestroy(void *d) { return destroy(d); }
EXPORT int cublasLtMatmulPreferenceCreate(void **d) { return create(d); }
EXPORT int cublasLtMatmulPreferenceDestroy(void *d) { return destroy(d); }
EXPORT int cublasLtMatrixLayoutCreate(void **d, int type, uint64_t rows, uint64_t columns, int64_t stride) {
  (void)type; (void)rows; (void)columns; (void)stride; return create(d);
}
EXPORT int cublasLtMatrixLayoutDestroy(void *d) { return destroy(d); }
EXPORT int cublasLtMatmulAlgoGetHeuristic(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference,
                                          int wanted, struct heuristic *results, int *found) {
  (void)handle; (void)operation; (void)a; (void)b; (void)c; (void)d; (void)preference;
  *found = wanted > 0;
  if (wanted > 0) memset(results, 0, sizeof *results);
  return 0;
}
