/* What the stub libraries for the CUDA runtime and the driver share: one card and its memory.
 *
 * The card is described by the environment (see ../card.py):
 *   VRAMBUDGET_GPU_NAME   as torch.cuda.get_device_name() says it
 *   VRAMBUDGET_GPU        "total context major minor processors l2 shared threads blocks", in decimal:
 *                         bytes the driver reports, bytes of CUDA context, compute capability,
 *                         multiprocessors, bytes of L2, and for each multiprocessor the most shared
 *                         bytes a block may ask for, resident threads and resident blocks
 *
 * Memory is accounted for and never touched. Device addresses lie beyond what the processor can map, so that
 * they cannot collide with the host's, a stray look at one faults as it does on a real card, and a card of any
 * size costs nothing. PyTorch's allocator breaks ties by address; the same program gets the same ones every time. */
#ifndef VIRTUAL_GPU_H
#define VIRTUAL_GPU_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

struct virtual_card {
  const char *name;
  size_t total, context, l2, shared_per_block;
  int major, minor, processors, threads_per_processor, blocks_per_processor;
};

/* Both stub libraries use the runtime's: it is the one that keeps the accounts. */
const struct virtual_card *virtual_card(void);
void virtual_note_use(void);
enum { VIRTUAL_BUS = 4 };                   /* the first card's PCI bus; the others follow */
int virtual_devices(void);                  /* equal cards, each with its own memory: VRAMBUDGET_DEVICES, or one */
extern __thread int virtual_device;         /* this thread's */
size_t virtual_free_bytes(int device);
int virtual_take(int device, size_t bytes); /* 1, or 0 where the card has no such bytes left */
void virtual_give(int device, size_t bytes);
#define FIRST_ADDRESS ((uintptr_t)1 << 56)  /* above all user memory of x86-64 and arm64, positive as a signed number */
uintptr_t virtual_addresses(size_t bytes);  /* a fresh range, aligned to 2 MiB */
uintptr_t virtual_segment(size_t bytes);    /* the same for what cudaMalloc gives: it may lie where others were */
void virtual_give_addresses(const void *segment, size_t bytes);
int virtual_is_device(const void *address);
int virtual_attribute(int attribute);       /* cudaDevAttr... and CU_DEVICE_ATTRIBUTE_... have the same numbers */
int virtual_blocks(int block_size);         /* resident blocks of that many threads */
int virtual_linked(void);                   /* each GPU reaches all others' memory, over NVLink: VRAMBUDGET_LINKED */
#define PAGE ((size_t)2 << 20)              /* in which the driver hands out memory */
/* What is taken beside the allocator, where the environment says how much (outside.c). */
void virtual_load_kernels(void);
void virtual_take_communicator(void);
void virtual_begin_graph(void);             /* this thread begins to capture one */
int virtual_note_kernel(void);              /* a kernel was launched, of the graph if one is captured; 0 */
size_t virtual_graph_nodes(void);           /* kernels since then */
void virtual_keep_graph(long long nodes);   /* a graph of so many nodes is made, or destroyed where negative */
int virtual_accepted(void);                 /* does nothing and says that all went well */
enum { VIRTUAL_CUFFT = 1, VIRTUAL_CUSOLVER = 2, VIRTUAL_CUSPARSE = 4 };
void virtual_note_unknown_workspace(int library);     /* its workspaces were asked for, which are not known */

#endif
