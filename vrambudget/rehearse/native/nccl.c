/* A stand-in for NCCL, as far as one process with several cards uses it: DataParallel's broadcasts and reductions.
 *
 * Nothing is sent, as no kernel runs. Ranks in processes of their own have PyTorch's fake group instead (hook/ranks.py):
 * to begin with them, and all that is not here, is an error. NCCL's own buffers are not counted. */
#include "virtual_gpu.h"

#include <string.h>

enum { SUCCESS = 0, VERSION = 22809 }; /* 2.28.9: what PyTorch asks for is older */
typedef void *comm;

static int ranks; /* of the last communicator: what a fresh one is asked for at once */

EXPORT int ncclGetVersion(int *version) { *version = VERSION; return SUCCESS; }
EXPORT const char *ncclGetErrorString(int error) {
  return error ? "not supported by the virtual GPU: ranks run with PyTorch's fake group" : "no error";
}
EXPORT const char *ncclGetLastError(comm of) { (void)of; return ""; }
EXPORT int ncclGetUniqueId(void *id) { memset(id, 0, 128); return SUCCESS; }

/* A handle is the rank's number and one more: none is NULL. */
EXPORT int ncclCommInitAll(comm *out, int count, const int *devices) {
  (void)devices;
  for (int rank = 0; rank < count; rank++) out[rank] = (comm)(uintptr_t)(rank + 1);
  ranks = count;
  return SUCCESS;
}
EXPORT int ncclCommDestroy(comm of) { (void)of; return SUCCESS; }
EXPORT int ncclCommAbort(comm of) { (void)of; return SUCCESS; }
EXPORT int ncclCommCount(comm of, int *count) { (void)of; *count = ranks; return SUCCESS; }
EXPORT int ncclCommUserRank(comm of, int *rank) { *rank = (int)(uintptr_t)of - 1; return SUCCESS; }
EXPORT int ncclCommGetAsyncError(comm of, int *error) { (void)of; *error = SUCCESS; return SUCCESS; }

EXPORT int ncclGroupStart(void) { return SUCCESS; }
EXPORT int ncclGroupEnd(void) { return SUCCESS; }
EXPORT int ncclBcast(void) { return SUCCESS; }
EXPORT int ncclBroadcast(void) { return SUCCESS; }
EXPORT int ncclReduce(void) { return SUCCESS; }
EXPORT int ncclAllReduce(void) { return SUCCESS; }
EXPORT int ncclAllGather(void) { return SUCCESS; }
EXPORT int ncclReduceScatter(void) { return SUCCESS; }
