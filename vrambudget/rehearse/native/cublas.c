/* A stub of cuBLAS: matrix products are accepted and not computed.
 *
 * Every handle is a new one, because PyTorch keeps a workspace for each. */
#include "virtual_gpu.h"

#include <stdlib.h>

EXPORT int cublasCreate_v2(void **handle) {
  virtual_load_kernels();
  *handle = calloc(1, 4096);
  return *handle ? 0 : 3;
}
EXPORT int cublasGemmEx(void) { return virtual_note_kernel(); }
EXPORT int cublasGemmStridedBatchedEx(void) { return virtual_note_kernel(); }
EXPORT int cublasGemmBatchedEx(void) { return virtual_note_kernel(); }
EXPORT int cublasSgemm_v2(void) { return virtual_note_kernel(); }
EXPORT int cublasDestroy_v2(void *handle) { free(handle); return 0; }
EXPORT int cublasGetMathMode(void *handle, int *mode) { (void)handle; *mode = 0; return 0; }
EXPORT int cublasGetPointerMode_v2(void *handle, int *mode) { (void)handle; *mode = 0; return 0; }
EXPORT int cublasGetVersion_v2(void *handle, int *version) { (void)handle; *version = CUBLAS_VERSION; return 0; }

/* Factorisations of batches say on the host that their arguments were right. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
typedef uintptr_t word;
#define BATCHED(letter) \
  EXPORT int cublas##letter##geqrfBatched(word a, word b, word c, word d, word e, word f, int *info) { \
    *info = 0; return 0; \
  } \
  EXPORT int cublas##letter##getrsBatched(word a, word b, word c, word d, word e, word f, word g, word h, word i, int *info) { \
    *info = 0; return 0; \
  } \
  EXPORT int cublas##letter##gelsBatched(word a, word b, word c, word d, word e, word f, word g, word h, word i, int *info) { \
    *info = 0; return 0; \
  }
BATCHED(S) BATCHED(D) BATCHED(C) BATCHED(Z)
