/* A virtual GPU for the CUDA runtime: memory is accounted for, kernels are accepted and not run.
 *
 * Loaded ahead of the real runtime, it lets PyTorch's own CUDA build with its own allocator and its own
 * host-side code run where no GPU is. Whatever is read back from the device is zero. Every call of the real
 * library that is not written here is accepted and does nothing (stub_libraries.py makes that list).
 *
 * Not modelled: peers, memory pools (cudaMallocAsync's statistics), what CUDA graphs hold, textures. */
#include "virtual_gpu.h"
#include "properties.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, INVALID_DEVICE = 101 };
enum { UNREGISTERED = 0, HOST = 1, DEVICE = 2 }; /* enum cudaMemoryType */
typedef void *handle;                            /* streams, events, graphs: opaque to PyTorch */
typedef struct { unsigned x, y, z; } dim3;

static __thread int last_error;
static int fail(int error) { return last_error = error; }

/* ---- memory ---------------------------------------------------------------------------------------------- */

struct range { const char *start; size_t bytes; int device; };
struct ranges { struct range *all; size_t count, room; };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct ranges segments, pinned;

static void add_range(struct ranges *list, const void *start, size_t bytes) {
  pthread_mutex_lock(&lock);
  if (list->count == list->room) {
    list->room = list->room ? 2 * list->room : 256;
    list->all = realloc(list->all, list->room * sizeof *list->all);
    if (!list->all) abort();
  }
  list->all[list->count++] = (struct range){start, bytes, virtual_device};
  pthread_mutex_unlock(&lock);
}

/* The range that begins at `start`, which is forgotten; one of 0 bytes where there is none. */
static struct range take_range(struct ranges *list, const void *start) {
  struct range taken = {NULL, 0, 0};
  pthread_mutex_lock(&lock);
  for (size_t i = list->count; i-- > 0;)
    if (list->all[i].start == start) {
      taken = list->all[i];
      list->all[i] = list->all[--list->count];
      break;
    }
  pthread_mutex_unlock(&lock);
  return taken;
}

static int device_of(const struct ranges *list, const char *address, int none) {
  int found = none;
  pthread_mutex_lock(&lock);
  for (size_t i = 0; i < list->count && found == none; i++)
    if (address >= list->all[i].start && address < list->all[i].start + list->all[i].bytes) found = list->all[i].device;
  pthread_mutex_unlock(&lock);
  return found;
}

EXPORT int cudaMalloc(void **out, size_t bytes) {
  *out = NULL;
  virtual_note_use();
  if (!virtual_take(virtual_device, bytes)) return fail(OUT_OF_MEMORY);
  *out = (void *)virtual_segment(bytes);
  add_range(&segments, *out, bytes);
  return SUCCESS;
}

EXPORT int cudaFree(void *address) {
  struct range taken = take_range(&segments, address);
  if (!taken.bytes) return SUCCESS;
  virtual_give(taken.device, taken.bytes);
  virtual_give_addresses(address, taken.bytes);
  return SUCCESS;
}

EXPORT int cudaMallocAsync(void **out, size_t bytes, handle stream) { (void)stream; return cudaMalloc(out, bytes); }
EXPORT int cudaFreeAsync(void *address, handle stream) { (void)stream; return cudaFree(address); }

EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  *free_bytes = virtual_free_bytes(virtual_device);
  *total = virtual_card()->total;
  return SUCCESS;
}

EXPORT int cudaHostAlloc(void **out, size_t bytes, unsigned flags) {
  (void)flags;
  if (posix_memalign(out, 4096, bytes ? bytes : 1)) return fail(OUT_OF_MEMORY);
  add_range(&pinned, *out, bytes);
  return SUCCESS;
}
EXPORT int cudaMallocHost(void **out, size_t bytes) { return cudaHostAlloc(out, bytes, 0); }
EXPORT int cudaFreeHost(void *address) { take_range(&pinned, address); free(address); return SUCCESS; }
EXPORT int cudaHostRegister(void *address, size_t bytes, unsigned flags) {
  (void)flags; add_range(&pinned, address, bytes); return SUCCESS;
}
EXPORT int cudaHostUnregister(void *address) { take_range(&pinned, address); return SUCCESS; }
EXPORT int cudaHostGetDevicePointer(void **out, void *address, unsigned flags) {
  (void)flags; *out = address; return SUCCESS;
}

struct pointer_attributes { int type, device; void *device_pointer, *host_pointer; };
EXPORT int cudaPointerGetAttributes(struct pointer_attributes *out, const void *address) {
  int on_card = virtual_is_device(address), pin = on_card ? -1 : device_of(&pinned, address, -1);
  int type = on_card ? DEVICE : pin >= 0 ? HOST : UNREGISTERED;
  int device = on_card ? device_of(&segments, address, virtual_device) : pin;
  *out = (struct pointer_attributes){type, device, type == UNREGISTERED ? NULL : (void *)address,
                                     type == HOST ? (void *)address : NULL};
  return SUCCESS;
}

/* ---- copies: only what the host sees matters --------------------------------------------------------------- */

/* Told about each read from the device: its values are zeros, and a program that acts on them goes astray. */
static void (*on_read)(size_t bytes);
EXPORT void virtual_gpu_on_read(void (*callback)(size_t)) { on_read = callback; }

/* What this thread's small reads give where it is known (hook/vrambudget_hook/following.py); known values are not told. */
static __thread struct { int on, told; long long number; } answer;
EXPORT void virtual_gpu_answer(int on, int told, long long number) {
  answer.on = on; answer.told = told; answer.number = number;
}

/* Whole pages are given back to the kernel, which has them as zeros again: offloaded weights take no memory. MADV_FREE
   fails for pages of a file or shared ones, which would keep what they hold. */
static void zero(char *to, size_t bytes) {
  uintptr_t from = ((uintptr_t)to + 4095) & ~(uintptr_t)4095, end = ((uintptr_t)to + bytes) & ~(uintptr_t)4095;
  if (bytes < ((size_t)1 << 20) || madvise((void *)from, end - from, MADV_FREE)
      || madvise((void *)from, end - from, MADV_DONTNEED)) { memset(to, 0, bytes); return; }
  memset(to, 0, from - (uintptr_t)to);
  memset((void *)end, 0, (uintptr_t)to + bytes - end);
}

static void read_back(void *to, size_t bytes) {
  zero(to, bytes);
  if (answer.on && bytes <= sizeof answer.number) memcpy(to, &answer.number, bytes); /* all our machines are little-endian */
  if (on_read && (!answer.on || answer.told)) on_read(bytes);
}

EXPORT int cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
  (void)kind; /* addresses say it */
  if (!bytes || virtual_is_device(to)) return SUCCESS;
  if (virtual_is_device(from)) read_back(to, bytes);
  else memmove(to, from, bytes);
  return SUCCESS;
}
EXPORT int cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, handle stream) {
  (void)stream; return cudaMemcpy(to, from, bytes, kind);
}
EXPORT int cudaMemcpy2D(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height, int kind) {
  for (size_t row = 0; row < height; row++) cudaMemcpy(to + row * to_pitch, from + row * from_pitch, width, kind);
  return SUCCESS;
}
EXPORT int cudaMemcpy2DAsync(char *to, size_t to_pitch, const char *from, size_t from_pitch, size_t width, size_t height,
                             int kind, handle stream) {
  (void)stream; return cudaMemcpy2D(to, to_pitch, from, from_pitch, width, height, kind);
}

/* ---- the card ---------------------------------------------------------------------------------------------- */

EXPORT int cudaGetDeviceCount(int *count) { *count = virtual_devices(); return SUCCESS; }
EXPORT int cudaGetDevice(int *device) { *device = virtual_device; return SUCCESS; }
EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= virtual_devices()) return fail(INVALID_DEVICE);
  virtual_device = device;
  return SUCCESS;
}
EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device; *value = virtual_attribute(attribute); return SUCCESS;
}
EXPORT int cudaDeviceGetPCIBusId(char *text, int room, int device) {
  snprintf(text, (size_t)room, "00000000:%02X:00.0", VIRTUAL_BUS + device); return SUCCESS;
}
EXPORT int cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = virtual_linked() && device != peer; return SUCCESS;
}
/* Another process's memory, seen here: it counts where it was allocated. */
struct ipc_handle { char bytes[64]; };
EXPORT int cudaIpcGetMemHandle(struct ipc_handle *out, void *address) {
  (void)address; memset(out, 0, sizeof *out); return SUCCESS;
}
EXPORT int cudaIpcOpenMemHandle(void **out, struct ipc_handle of, unsigned flags) {
  (void)of; (void)flags; *out = (void *)virtual_addresses((size_t)1 << 30); return SUCCESS;
}
EXPORT int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return SUCCESS; }
EXPORT int cudaDriverGetVersion(int *version) { *version = CUDA_VERSION; return SUCCESS; }
EXPORT int cudaRuntimeGetVersion(int *version) { *version = CUDA_VERSION; return SUCCESS; }

static int properties(struct properties *p) {
  const struct virtual_card *card = virtual_card();
  *p = (struct properties){
      .total_bytes = card->total, .major = card->major, .minor = card->minor, .processors = card->processors,
      .shared_per_block = 49152, .registers_per_block = 65536, .warp = 32, .pitch = 2147483647,
      .threads_per_block = 1024, .block = {1024, 1024, 64}, .grid = {2147483647, 65535, 65535},
      .constant_bytes = 65536, .texture_alignment = 512, .concurrent_kernels = 1, .copy_engines = 3,
      .unified_addressing = 1, .bus_width = 256, .l2_bytes = (int)card->l2,
      .threads_per_processor = card->threads_per_processor, .shared_per_processor = card->shared_per_block + 1024,
      .registers_per_processor = 65536, .managed_memory = 1, .cooperative_launch = 1,
      .shared_per_block_on_request = card->shared_per_block, .blocks_per_processor = card->blocks_per_processor,
      .reserved_shared = 1024};
  snprintf(p->name, sizeof p->name, "%s", card->name);
  return SUCCESS;
}
#if CUDA_MAJOR >= 13
EXPORT int cudaGetDeviceProperties(struct properties *p, int device) { (void)device; return properties(p); }
#else
EXPORT int cudaGetDeviceProperties_v2(struct properties *p, int device) { (void)device; return properties(p); }
#endif

EXPORT int cudaGetLastError(void) { int error = last_error; last_error = SUCCESS; return error; }
EXPORT int cudaPeekAtLastError(void) { return last_error; }
EXPORT const char *cudaGetErrorString(int error) {
  return error == SUCCESS ? "no error" : error == OUT_OF_MEMORY ? "out of memory" : "error of the virtual GPU";
}
EXPORT const char *cudaGetErrorName(int error) {
  return error == SUCCESS ? "cudaSuccess" : error == OUT_OF_MEMORY ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

/* ---- streams, events, graphs: all work is done as soon as it is asked for --------------------------------- */

static handle new_handle(void) { static uintptr_t next = 0x1000; return (handle)__sync_add_and_fetch(&next, 16); }
static handle capturing; /* the stream whose work is being recorded into a graph */
static unsigned long long captures;

EXPORT int cudaStreamCreate(handle *stream) { *stream = new_handle(); return SUCCESS; }
EXPORT int cudaStreamCreateWithFlags(handle *stream, unsigned flags) { (void)flags; return cudaStreamCreate(stream); }
EXPORT int cudaStreamCreateWithPriority(handle *stream, unsigned flags, int priority) {
  (void)flags; (void)priority; return cudaStreamCreate(stream);
}
EXPORT int cudaEventCreate(handle *event) { *event = new_handle(); return SUCCESS; }
EXPORT int cudaEventCreateWithFlags(handle *event, unsigned flags) { (void)flags; return cudaEventCreate(event); }
EXPORT int cudaEventElapsedTime(float *ms, handle from, handle to) { (void)from; (void)to; *ms = 1; return SUCCESS; }
EXPORT int cudaStreamGetPriority(handle stream, int *priority) { (void)stream; *priority = 0; return SUCCESS; }
EXPORT int cudaLaunchHostFunc(handle stream, void (*call)(void *), void *data) { (void)stream; call(data); return SUCCESS; }
EXPORT int cudaStreamAddCallback(handle stream, void (*call)(handle, int, void *), void *data, unsigned flags) {
  (void)flags; call(stream, SUCCESS, data); return SUCCESS;
}
EXPORT int cudaStreamBeginCapture(handle stream, int mode) { (void)mode; capturing = stream; captures++; virtual_begin_graph(); return SUCCESS; }
/* A graph says how many kernels it has, and so does what is made of it. */
static handle graph_of(size_t nodes) {
  size_t *made = malloc(sizeof *made);
  if (!made) abort();
  *made = nodes;
  return made;
}
EXPORT int cudaStreamEndCapture(handle stream, handle *graph) {
  (void)stream; capturing = NULL; *graph = graph_of(virtual_graph_nodes()); return SUCCESS;
}
EXPORT int cudaGraphCreate(handle *graph, unsigned flags) { (void)flags; *graph = graph_of(0); return SUCCESS; }
EXPORT int cudaGraphDestroy(handle graph) { free(graph); return SUCCESS; }
EXPORT int cudaStreamIsCapturing(handle stream, int *status) { *status = capturing && stream == capturing; return SUCCESS; }
/* The later arguments, which changed from version to version, may all be left unanswered. */
static int capture_info(handle stream, int *status, unsigned long long *id) {
  cudaStreamIsCapturing(stream, status);
  if (id) *id = captures;
  return SUCCESS;
}
#if CUDA_MAJOR >= 13
EXPORT int cudaStreamGetCaptureInfo(handle s, int *status, unsigned long long *id) { return capture_info(s, status, id); }
#else
EXPORT int cudaStreamGetCaptureInfo_v2(handle s, int *status, unsigned long long *id) { return capture_info(s, status, id); }
EXPORT int cudaStreamGetCaptureInfo_v3(handle s, int *status, unsigned long long *id) { return capture_info(s, status, id); }
#endif
EXPORT int cudaGraphInstantiate(handle *out, handle graph, unsigned long long flags) {
  (void)flags;
  size_t nodes = graph ? *(size_t *)graph : 0;
  virtual_keep_graph((long long)nodes);
  *out = graph_of(nodes);
  return SUCCESS;
}
EXPORT int cudaGraphExecDestroy(handle made) {
  if (made) virtual_keep_graph(-(long long)*(size_t *)made);
  free(made);
  return SUCCESS;
}
EXPORT int cudaGraphInstantiateWithFlags(handle *out, handle graph, unsigned long long flags) {
  return cudaGraphInstantiate(out, graph, flags);
}
EXPORT int cudaGraphGetNodes(handle graph, handle *nodes, size_t *count) {
  (void)graph; (void)nodes; *count = 1; return SUCCESS; /* 0 would make PyTorch warn of an empty graph */
}

EXPORT int cudaMemsetAsync(void) { return virtual_note_kernel(); }
EXPORT int __cudaLaunchKernel(void) { return virtual_note_kernel(); } /* what CUDA 13 compiles a launch to */
EXPORT int cudaLaunchKernel(void) { return virtual_note_kernel(); }
EXPORT int cudaLaunchKernelExC(void) { return virtual_note_kernel(); }
EXPORT int cudaLaunchCooperativeKernel(void) { return virtual_note_kernel(); }

/* ---- kernels ------------------------------------------------------------------------------------------------ */

static int kernel_version; /* e.g. 80: the newest architecture in PyTorch's binary that the card can run */
EXPORT void virtual_gpu_set_kernels(int version) { kernel_version = version; }


struct function_attributes {
  size_t shared, constant, local;
  int threads_per_block, registers, ptx, binary, cache_mode, dynamic_shared, carveout;
};
EXPORT int cudaFuncGetAttributes(struct function_attributes *out, const void *function) {
  const struct virtual_card *card = virtual_card();
  int version = kernel_version ? kernel_version : 10 * card->major + card->minor;
  (void)function;
  *out = (struct function_attributes){0, 0, 0, 1024, 32, version, version, 0, (int)card->shared_per_block, 0};
  return SUCCESS;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *f, int size, size_t s, unsigned flags) {
  (void)f; (void)s; (void)flags; *blocks = virtual_blocks(size); return SUCCESS;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *f, int size, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, f, size, shared, 0);
}

/* The compiler's own: a launch `kernel<<<grid, block>>>` pushes its configuration, and the kernel's stub pops it. */
static __thread struct { dim3 grid, block; size_t shared; handle stream; } launch;
EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, handle stream) {
  launch.grid = grid; launch.block = block; launch.shared = shared; launch.stream = stream; return 0;
}
EXPORT int __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, handle *stream) {
  *grid = launch.grid; *block = launch.block; *shared = launch.shared; *stream = launch.stream; return SUCCESS;
}
EXPORT void **__cudaRegisterFatBinary(void *binary) { static void *registered; (void)binary; return &registered; }
EXPORT int __cudaGetKernel(void **kernel, const void *function) { *kernel = (void *)function; return SUCCESS; }
EXPORT int cudaGetSymbolAddress(void **out, const void *symbol) {
  static void *device_variables;
  (void)symbol;
  if (!device_variables) device_variables = (void *)virtual_addresses(1);
  *out = device_variables;
  return SUCCESS;
}

/* PyTorch asks the runtime for the driver's calls by name; ours are in the stub of libcuda, loaded with this one. */
EXPORT int cudaGetDriverEntryPoint(const char *name, void **call, unsigned long long flags, int *status) {
  void *found = dlsym(RTLD_DEFAULT, name);
  (void)flags;
  *call = found ? found : (void *)virtual_accepted;
  if (status) *status = 0;
  return SUCCESS;
}
EXPORT int cudaGetDriverEntryPointByVersion(const char *name, void **call, unsigned version, unsigned long long flags, int *status) {
  (void)version; return cudaGetDriverEntryPoint(name, call, flags, status);
}

/* Kernels that a library keeps in a file of their own. */
EXPORT int cudaLibraryLoadFromFile(handle *out, const char *path) { (void)path; *out = new_handle(); return SUCCESS; }
EXPORT int cudaLibraryLoadData(handle *out, const void *code) { (void)code; *out = new_handle(); return SUCCESS; }
EXPORT int cudaLibraryGetKernel(handle *out, handle library, const char *name) {
  (void)library; (void)name; *out = new_handle(); return SUCCESS;
}
EXPORT int cudaLibraryGetKernelCount(unsigned *count, handle library) { (void)library; *count = 1; return SUCCESS; }
EXPORT int cudaLibraryEnumerateKernels(handle *out, unsigned count, handle library) {
  (void)library;
  for (unsigned i = 0; i < count; i++) out[i] = new_handle();
  return SUCCESS;
}
