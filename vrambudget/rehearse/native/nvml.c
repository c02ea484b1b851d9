/* A stub of NVML, the driver's library of questions: what the card holds, and who uses it.
 *
 * PyTorch asks it before it maps expandable segments, and for the sentence on processes in an out-of-memory message; servers
 * ask it through pynvml which GPU there is.
 * Whatever is not answered here is "not supported", 3. */
#include "virtual_gpu.h"

#include <stdio.h>
#include <unistd.h>

enum { SUCCESS = 0, INSUFFICIENT_SIZE = 7 };
typedef void *device;

EXPORT int nvmlInit_v2(void) { return SUCCESS; }
EXPORT int nvmlInit(void) { return SUCCESS; }
EXPORT int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
EXPORT int nvmlShutdown(void) { return SUCCESS; }
EXPORT const char *nvmlErrorString(int error) { return error ? "not supported by the virtual GPU" : "success"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { *count = (unsigned)virtual_devices(); return SUCCESS; }
/* A handle is the device's number and one more: none is NULL. */
static size_t free_bytes(device of) { return virtual_free_bytes((int)(uintptr_t)of - 1); }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *out) {
  *out = (device)((uintptr_t)index + 1); return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *id, device *out) {
  unsigned bus = VIRTUAL_BUS;
  sscanf(id, "%*x:%x", &bus);
  return nvmlDeviceGetHandleByIndex_v2(bus - VIRTUAL_BUS, out);
}
EXPORT int nvmlDeviceGetName(device of, char *text, unsigned room) {
  (void)of; snprintf(text, room, "%s", virtual_card()->name); return SUCCESS;
}

struct memory { unsigned long long total, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo(device of, struct memory *out) {
  size_t total = virtual_card()->total, left = free_bytes(of);
  *out = (struct memory){total, left, total - left};
  return SUCCESS;
}

/* No link to other cards' memory: PyTorch then takes plain handles for expandable segments. */
struct fabric { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; };
EXPORT int nvmlDeviceGetGpuFabricInfoV(device of, struct fabric *out) {
  (void)of; out->status = SUCCESS; out->clique = 0; out->state = 0; return SUCCESS;
}

/* This process is the only one on the card. */
struct process { unsigned pid; unsigned long long used; };
EXPORT int nvmlDeviceGetComputeRunningProcesses(device of, unsigned *count, struct process *out) {
  unsigned room = *count;
  *count = 1;
  if (room < 1) return INSUFFICIENT_SIZE;
  *out = (struct process){(unsigned)getpid(), virtual_card()->total - free_bytes(of)};
  return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(device of, int *major, int *minor) {
  (void)of; *major = virtual_card()->major; *minor = virtual_card()->minor; return SUCCESS;
}
EXPORT int nvmlDeviceGetUUID(device of, char *text, unsigned room) {
  snprintf(text, room, "GPU-00000000-0000-0000-0000-%012x", (unsigned)(uintptr_t)of); return SUCCESS;
}
EXPORT int nvmlSystemGetDriverVersion(char *text, unsigned room) { snprintf(text, room, "580.00"); return SUCCESS; }
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA_VERSION; return SUCCESS; }
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
EXPORT int nvmlDeviceGetMemoryInfo_v2(device of, struct memory_v2 *out) {
  size_t total = virtual_card()->total, left = free_bytes(of);
  *out = (struct memory_v2){out->version, total, 0, left, total - left};
  return SUCCESS;
}
/* Over NVLink each GPU reaches all others; else the system's bus does not let it (NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED). */
EXPORT int nvmlDeviceGetP2PStatus(device from, device to, int index, int *status) {
  (void)from; (void)to; (void)index; *status = virtual_linked() ? 0 : 1; return SUCCESS;
}
