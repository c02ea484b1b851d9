/* struct cudaDeviceProp, as far as it is filled in: CUDA 13 took the clock rates and the modes out of it.
 *
 * Offsets were read with offsetof from the headers of CUDA 12.4 and 13.0; the assertions hold them. */
#ifndef PROPERTIES_H
#define PROPERTIES_H

#include <stddef.h>

#if CUDA_MAJOR >= 13
#define BY_VERSION(cuda12, cuda13) cuda13
#else
#define BY_VERSION(cuda12, cuda13) cuda12
#endif

struct properties {
  char name[256];
  char uuid[32]; /* and luid, its mask */
  size_t total_bytes, shared_per_block;
  int registers_per_block, warp;
  size_t pitch;
  int threads_per_block, block[3], grid[3];
  int gap0; /* CUDA 12: the clock rate */
  size_t constant_bytes;
  int major, minor;
  size_t texture_alignment, pitch_alignment;
  int gap1[BY_VERSION(1, 0)]; /* device overlap */
  int processors;
  char gap2[BY_VERSION(184, 172)];
  int concurrent_kernels, ecc, pci[3], tcc, copy_engines, unified_addressing;
  int gap3[BY_VERSION(1, 0)]; /* memory clock */
  int bus_width, l2_bytes, persisting_l2_bytes, threads_per_processor;
  char gap4[BY_VERSION(12, 16)];
  size_t shared_per_processor;
  int registers_per_processor, managed_memory;
  char gap5[BY_VERSION(32, 28)];
  int cooperative_launch;
  size_t shared_per_block_on_request;
  char gap6[8];
  int blocks_per_processor;
  int gap7;
  size_t reserved_shared;
  char rest[304];
};

#define AT(field, cuda12, cuda13) \
  _Static_assert(offsetof(struct properties, field) == BY_VERSION(cuda12, cuda13), #field)
AT(total_bytes, 288, 288);
AT(constant_bytes, 352, 352);
AT(major, 360, 360);
AT(texture_alignment, 368, 368);
AT(processors, 388, 384);
AT(concurrent_kernels, 576, 560);
AT(unified_addressing, 604, 588);
AT(bus_width, 612, 592);
AT(threads_per_processor, 624, 604);
AT(shared_per_processor, 640, 624);
AT(managed_memory, 652, 636);
AT(cooperative_launch, 688, 668);
AT(shared_per_block_on_request, 696, 672);
AT(blocks_per_processor, 712, 688);
AT(reserved_shared, 720, 696);
_Static_assert(sizeof(struct properties) == BY_VERSION(1032, 1008), "size of cudaDeviceProp");

#endif
