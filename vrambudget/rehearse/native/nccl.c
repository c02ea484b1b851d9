/* A stub of NCCL, as far as one process with several cards uses it: DataParallel's broadcasts and reductions.
 *
 * Nothing is sent, as no kernel runs. One of several ranks has PyTorch's fake group instead (hook/ranks.py); all ranks of
 * a server run, in processes of their own, each with a communicator that knows its rank. What is not here is an error.
 * NCCL's own buffers count where the environment says them (outside.c). */
#include "virtual_gpu.h"

#include <string.h>

enum { SUCCESS = 0, VERSION = 22809 }; /* 2.28.9: what PyTorch asks for is older */
typedef void *comm;

static int ranks; /* of the last communicator: what a fresh one is asked for at once */

EXPORT int ncclGetVersion(int *version) { *version = VERSION; return SUCCESS; }
EXPORT const char *ncclGetErrorString(int error) {
  return error ? "not supported by the virtual GPU" : "no error";
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
static int join(comm *out, int count, int rank) {
  virtual_take_communicator();
  *out = (comm)(uintptr_t)(rank + 1);
  ranks = count;
  return SUCCESS;
}
struct unique { char bytes[128]; }; /* ncclUniqueId */
EXPORT int ncclCommInitRank(comm *out, int count, struct unique id, int rank) { (void)id; return join(out, count, rank); }
EXPORT int ncclCommInitRankConfig(comm *out, int count, struct unique id, int rank, void *config) {
  (void)id; (void)config; return join(out, count, rank);
}
EXPORT int ncclCommSplit(comm of, int colour, int key, comm *out, void *config) {
  (void)of; (void)colour; (void)config; *out = (comm)(uintptr_t)(key + 1); return SUCCESS;
}
EXPORT int ncclCommCuDevice(comm of, int *device) { (void)of; *device = virtual_device; return SUCCESS; }
EXPORT int ncclCommFinalize(comm of) { (void)of; return SUCCESS; }
EXPORT int ncclCommRegister(const comm of, void *buffer, size_t bytes, void **handle) {
  (void)of; (void)bytes; *handle = buffer; return SUCCESS;
}
EXPORT int ncclCommDeregister(const comm of, void *handle) { (void)of; (void)handle; return SUCCESS; }
EXPORT int ncclSend(void) { return SUCCESS; }
EXPORT int ncclRecv(void) { return SUCCESS; }
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
