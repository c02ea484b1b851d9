/* The card and its accounts. */
#include "virtual_gpu.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEVICES 1024

static struct virtual_card card;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t used[DEVICES];
EXPORT __thread int virtual_device;

__attribute__((constructor)) static void read_card(void) {
  const char *name = getenv("VRAMBUDGET_GPU_NAME"), *numbers = getenv("VRAMBUDGET_GPU");
  card.name = name ? name : "virtual GPU";
  if (!numbers || sscanf(numbers, "%zu %zu %d %d %d %zu %zu %d %d", &card.total, &card.context, &card.major,
                         &card.minor, &card.processors, &card.l2, &card.shared_per_block,
                         &card.threads_per_processor, &card.blocks_per_processor) != 9) {
    fprintf(stderr, "virtual GPU: VRAMBUDGET_GPU does not describe a card\n");
    exit(2);
  }
}

EXPORT const struct virtual_card *virtual_card(void) { return &card; }

static size_t capacity(void) { return card.total > card.context ? card.total - card.context : 0; }
static size_t pages(size_t bytes) { return (bytes + PAGE - 1) / PAGE * PAGE; }

static size_t *most; /* that this process took of one card, where its parent reads it */

/* Leave a file for each process that uses the card: the parent then knows of one that leaves no record. */
EXPORT void virtual_note_use(void) {
  static pid_t noted;
  const char *folder = getenv("VRAMBUDGET_FOLDER");
  char path[4096];
  if (!folder || noted == getpid()) return;
  noted = getpid();
  snprintf(path, sizeof path, "%s/used-%d", folder, (int)noted);
  int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  most = NULL;
  if (file >= 0 && ftruncate(file, sizeof *most) == 0) {
    void *mapped = mmap(NULL, sizeof *most, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED) most = mapped;
  }
  if (file >= 0) close(file);
}

EXPORT int virtual_devices(void) {
  const char *number = getenv("VRAMBUDGET_DEVICES");
  int count = number ? atoi(number) : 1;
  return count < 1 ? 1 : count > DEVICES ? DEVICES : count;
}

EXPORT int virtual_linked(void) { return getenv("VRAMBUDGET_LINKED") != NULL; }

EXPORT size_t virtual_free_bytes(int device) {
  pthread_mutex_lock(&lock);
  size_t left = capacity() - used[device];
  pthread_mutex_unlock(&lock);
  return left;
}

EXPORT int virtual_take(int device, size_t bytes) {
  virtual_note_use();
  pthread_mutex_lock(&lock);
  size_t left = capacity() - used[device];
  int fits = bytes <= left && pages(bytes) <= left;
  if (fits) used[device] += pages(bytes);
  if (most && used[device] > *most) *most = used[device];
  pthread_mutex_unlock(&lock);
  return fits;
}

EXPORT void virtual_give(int device, size_t bytes) {
  pthread_mutex_lock(&lock);
  used[device] -= pages(bytes);
  pthread_mutex_unlock(&lock);
}

EXPORT int virtual_is_device(const void *address) { return (uintptr_t)address >= FIRST_ADDRESS; }

EXPORT int virtual_blocks(int block_size) {
  int blocks = card.threads_per_processor / (block_size > 0 ? block_size : 1);
  return blocks > card.blocks_per_processor ? card.blocks_per_processor : blocks < 1 ? 1 : blocks;
}

EXPORT int virtual_accepted(void) { return 0; }

/* The numbers are cudaDeviceAttr's (CUDA Runtime API, "Data types used by CUDA Runtime"). Any other feature is 0: absent. */
EXPORT int virtual_attribute(int attribute) {
  switch (attribute) {
    case 1: return 1024;                            /* threads per block */
    case 2: case 3: return 1024;                    /* block x, y */
    case 4: return 64;                              /* block z */
    case 5: return 2147483647;                      /* grid x */
    case 6: case 7: return 65535;                   /* grid y, z */
    case 8: return 49152;                           /* shared bytes per block, without asking for more */
    case 10: return 32;                             /* warp */
    case 12: case 82: return 65536;                 /* registers per block, per multiprocessor */
    case 16: return card.processors;
    case 38: return (int)card.l2;
    case 39: return card.threads_per_processor;
    case 41: return 1;                              /* unified addressing */
    case 75: return card.major;
    case 76: return card.minor;
    case 81: return (int)card.shared_per_block + 1024; /* per multiprocessor: 1 KiB of it is the system's */
    case 95: return 1;                              /* cooperative launch */
    case 97: return (int)card.shared_per_block;     /* per block, when asked for */
    case 102: return 1;                             /* virtual memory management: expandable segments */
    case 106: return card.blocks_per_processor;
    case 132: return virtual_linked() && card.major >= 9; /* multicast over NVLink */
    default: return 0;
  }
}

static int unknown_workspaces;
EXPORT void virtual_note_unknown_workspace(int library) { unknown_workspaces |= library; }
EXPORT int virtual_gpu_unknown_workspaces(void) { return unknown_workspaces; }
