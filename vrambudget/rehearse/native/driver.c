/* A stub of the driver, libcuda: kernels that Triton and NVRTC compiled are loaded and launched through it, and
 * expandable segments take their memory from it.
 *
 * Every other call that PyTorch and Triton know of is accepted and does nothing (stub_libraries.py makes that list). */
#include "virtual_gpu.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>

enum { SUCCESS = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500 };
typedef void *handle;
static handle const context = (handle)0x10, module = (handle)0x20, function = (handle)0x30; /* never looked into */

EXPORT int cuDriverGetVersion(int *version) { *version = CUDA_VERSION; return SUCCESS; }
EXPORT int cuGetErrorString(int error, const char **text) {
  *text = error == SUCCESS ? "no error" : error == OUT_OF_MEMORY ? "out of memory" : "error of the virtual GPU";
  return SUCCESS;
}
EXPORT int cuGetErrorName(int error, const char **text) {
  *text = error == SUCCESS ? "CUDA_SUCCESS" : error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
  return SUCCESS;
}
EXPORT int cuGetProcAddress_v2(const char *name, void **call, int version, uint64_t flags, int *status) {
  void *found = dlsym(RTLD_DEFAULT, name);
  (void)version; (void)flags;
  *call = found ? found : (void *)virtual_accepted;
  if (status) *status = 0;
  return SUCCESS;
}
/* NVRTC asks for a table of the driver's inner functions, and does without where there is none. */
EXPORT int cuGetExportTable(const void **table, const void *id) { (void)id; *table = NULL; return NOT_FOUND; }

EXPORT int cuDeviceGetCount(int *count) { *count = virtual_devices(); return SUCCESS; }
EXPORT int cuDeviceGet(int *device, int number) { *device = number; return SUCCESS; }
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device; *value = virtual_attribute(attribute); return SUCCESS;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int device) { (void)device; *bytes = virtual_card()->total; return SUCCESS; }
EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
  (void)device; *flags = 0; *active = 1; return SUCCESS;
}
EXPORT int cuDevicePrimaryCtxRetain(handle *out, int device) { (void)device; *out = context; return SUCCESS; }
EXPORT int cuCtxGetCurrent(handle *out) { *out = context; return SUCCESS; }
EXPORT int cuCtxGetDevice(int *device) { *device = virtual_device; return SUCCESS; }

EXPORT int cuLaunchKernel(void) { return virtual_note_kernel(); }
EXPORT int cuLaunchKernelEx(void) { return virtual_note_kernel(); }
EXPORT int cuModuleLoad(handle *out, const char *path) { (void)path; *out = module; return SUCCESS; }
EXPORT int cuModuleLoadData(handle *out, const void *image) { (void)image; *out = module; return SUCCESS; }
EXPORT int cuModuleLoadDataEx(handle *out, const void *image, unsigned count, int *options, void **values) {
  (void)image; (void)count; (void)options; (void)values; *out = module; return SUCCESS;
}
EXPORT int cuModuleGetFunction(handle *out, handle from, const char *name) {
  (void)from; (void)name; *out = function; return SUCCESS;
}
EXPORT int cuModuleGetGlobal_v2(uintptr_t *address, size_t *bytes, handle from, const char *name) {
  (void)from; (void)name;
  if (address) *address = 0;
  if (bytes) *bytes = 0;
  return SUCCESS;
}
/* cuDNN loads what it compiles at run time as libraries. */
EXPORT int cuLibraryLoadData(handle *out, const void *code, int *options, void **values, unsigned count) {
  (void)code; (void)options; (void)values; (void)count; *out = module; return SUCCESS;
}
EXPORT int cuLibraryLoadFromFile(handle *out, const char *path) { (void)path; *out = module; return SUCCESS; }
EXPORT int cuLibraryGetModule(handle *out, handle library) { *out = library; return SUCCESS; }
EXPORT int cuLibraryGetKernel(handle *out, handle library, const char *name) {
  (void)library; (void)name; *out = function; return SUCCESS;
}
EXPORT int cuLibraryGetGlobal(uintptr_t *address, size_t *bytes, handle library, const char *name) {
  return cuModuleGetGlobal_v2(address, bytes, library, name);
}
EXPORT int cuKernelGetFunction(handle *out, handle kernel) { *out = kernel; return SUCCESS; }
static int function_attribute(int attribute) {
  return attribute == 0 ? 1024 : attribute == 4 ? 32 : 0; /* threads per block, registers; no spills, no shared bytes */
}
EXPORT int cuKernelGetAttribute(int *value, int attribute, handle of, int device) {
  (void)of; (void)device; *value = function_attribute(attribute); return SUCCESS;
}
EXPORT int cuOccupancyMaxPotentialClusterSize(int *size, handle of, const void *config) {
  (void)of; (void)config; *size = 8; return SUCCESS;
}
EXPORT int cuStreamGetCtx(handle stream, handle *out) { (void)stream; *out = context; return SUCCESS; }
EXPORT int cuFuncGetAttribute(int *value, int attribute, handle of) {
  (void)of; *value = function_attribute(attribute); return SUCCESS;
}
EXPORT int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, handle of, int size, size_t shared) {
  (void)of; (void)shared; *blocks = virtual_blocks(size); return SUCCESS;
}
EXPORT int cuOccupancyMaxActiveClusters(int *clusters, handle of, const void *config) {
  (void)of; (void)config; *clusters = 8; return SUCCESS;
}
EXPORT int cuPointerGetAttribute(void *out, int attribute, uintptr_t address) {
  if (attribute == 3) *(uintptr_t *)out = address; /* CU_POINTER_ATTRIBUTE_DEVICE_POINTER: as it is */
  return SUCCESS;
}

/* Expandable segments: a range of addresses is reserved, and memory is created and mapped into it piece by piece. Memory
 * counts from its creation to its release. PyTorch unmaps a handle's memory before it releases the handle. */
EXPORT int cuMemAddressReserve(uintptr_t *out, size_t bytes, size_t alignment, uintptr_t wanted, uint64_t flags) {
  (void)alignment; (void)wanted; (void)flags; *out = virtual_addresses(bytes); return SUCCESS;
}
EXPORT int cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option) {
  (void)properties; (void)option; *bytes = (size_t)2 << 20; return SUCCESS;
}
struct created { size_t bytes; int device; };
struct allocation_properties { int type, handle_types; struct { int type, id; } location; }; /* the beginning of CUmemAllocationProp */
EXPORT int cuMemCreate(uint64_t *out, size_t bytes, const struct allocation_properties *properties, uint64_t flags) {
  (void)flags;
  int device = properties->location.id;
  if (!virtual_take(device, bytes)) return OUT_OF_MEMORY;
  struct created *created = malloc(sizeof *created);
  if (!created) abort();
  *created = (struct created){bytes, device};
  *out = (uint64_t)(uintptr_t)created;
  return SUCCESS;
}
EXPORT int cuMemRelease(uint64_t released) {
  struct created *created = (struct created *)(uintptr_t)released;
  virtual_give(created->device, created->bytes);
  free(created);
  return SUCCESS;
}
/* Memory of other processes, and multicast: a handle takes nothing by itself. */
EXPORT int cuMemExportToShareableHandle(void *out, uint64_t created, int type, uint64_t flags) {
  (void)created; (void)flags;
  if (type == 1) *(int *)out = open("/dev/null", O_RDONLY | O_CLOEXEC); /* as a file descriptor */
  return SUCCESS;
}
static int empty_handle(uint64_t *out) {
  struct created *created = calloc(1, sizeof *created);
  if (!created) abort();
  *out = (uint64_t)(uintptr_t)created;
  return SUCCESS;
}
EXPORT int cuMemImportFromShareableHandle(uint64_t *out, void *from, int type) { (void)from; (void)type; return empty_handle(out); }
EXPORT int cuMulticastCreate(uint64_t *out, const void *properties) { (void)properties; return empty_handle(out); }
EXPORT int cuMulticastGetGranularity(size_t *bytes, const void *properties, int option) {
  (void)properties; (void)option; *bytes = PAGE; return SUCCESS;
}
/* DeepGEMM takes the one kernel of what it compiled, whatever its name is. */
EXPORT int cuLibraryGetKernelCount(unsigned *count, handle library) { (void)library; *count = 1; return SUCCESS; }
EXPORT int cuLibraryEnumerateKernels(handle *out, unsigned count, handle library) {
  (void)library;
  for (unsigned i = 0; i < count; i++) out[i] = function;
  return SUCCESS;
}
EXPORT int cuModuleGetFunctionCount(unsigned *count, handle of) { (void)of; *count = 1; return SUCCESS; }
EXPORT int cuModuleEnumerateFunctions(handle *out, unsigned count, handle of) { return cuLibraryEnumerateKernels(out, count, of); }
