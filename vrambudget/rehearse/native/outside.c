/* What a process takes of the GPU beside PyTorch's allocator and the CUDA context, as far as the environment says it. No
 * code says these sizes: they are measured (serving/outside.py has them, with their sources).
 *   VRAMBUDGET_KERNELS     bytes of libraries' kernels, loaded with the first cuBLAS handle
 *   VRAMBUDGET_NCCL        "first,further": bytes of a process's first communicator of NCCL, and of each further one
 *   VRAMBUDGET_GRAPH_NODE  bytes that the driver keeps for a captured kernel, until its graph is destroyed */
#include "virtual_gpu.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned long long first_number(const char *name, char **rest) {
  const char *text = getenv(name);
  *rest = NULL;
  return text ? strtoull(text, rest, 10) : 0;
}

EXPORT void virtual_load_kernels(void) {
  static int loaded;
  char *rest;
  if (!__sync_bool_compare_and_swap(&loaded, 0, 1)) return;
  virtual_take(virtual_device, first_number("VRAMBUDGET_KERNELS", &rest));
}

EXPORT void virtual_take_communicator(void) {
  static int made;
  char *rest;
  unsigned long long bytes = first_number("VRAMBUDGET_NCCL", &rest);
  if (__sync_fetch_and_add(&made, 1) && rest && *rest == ',') bytes = strtoull(rest + 1, NULL, 10);
  if (bytes) virtual_take(virtual_device, bytes);
}

/* The driver takes whole pages for many graphs together. */
static size_t nodes, pages_taken;
static void settle(void) {
  char *rest;
  size_t bytes = nodes * first_number("VRAMBUDGET_GRAPH_NODE", &rest), pages = (bytes + PAGE - 1) / PAGE;
  while (pages_taken < pages && virtual_take(virtual_device, PAGE)) pages_taken++;
  for (; pages_taken > pages; pages_taken--) virtual_give(virtual_device, PAGE);
}
static __thread size_t captured;
EXPORT void virtual_begin_graph(void) { captured = 0; }
EXPORT int virtual_note_kernel(void) { captured++; return 0; }
EXPORT size_t virtual_graph_nodes(void) { return captured; }
EXPORT void virtual_keep_graph(long long more) {
  pthread_mutex_lock(&lock);
  nodes += (size_t)more;
  settle();
  pthread_mutex_unlock(&lock);
}
