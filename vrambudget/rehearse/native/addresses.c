/* Where segments lie. They rise and are never handed out twice; or, where VRAMBUDGET_DRIVER_ADDRESSES is "linux",
 * they lie as NVIDIA's driver for Linux puts them: ../../tape/linux_addresses.py has the rule and where it is from. */
#include "virtual_gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PAGE ((size_t)2 << 20) /* the driver hands out memory in pages of 2 MiB */
#define CHUNK ((size_t)32 << 20)
#define TOP (FIRST_ADDRESS + ((uintptr_t)1 << 50))

struct room {
  uintptr_t start;
  size_t bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uintptr_t next_address = FIRST_ADDRESS, lowest = TOP;
static struct room *rooms; /* by address */
static size_t count, size;

static size_t whole(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

static int is_linux(void) {
  const char *said = getenv("VRAMBUDGET_DRIVER_ADDRESSES");
  return said && !strcmp(said, "linux");
}

static void drop_room(size_t i) { memmove(rooms + i, rooms + i + 1, (--count - i) * sizeof *rooms); }

static void add_room(uintptr_t start, size_t bytes) {
  size_t i = 0;
  while (i < count && rooms[i].start < start) i++;
  if (count == size) rooms = realloc(rooms, (size = 2 * size + 16) * sizeof *rooms);
  memmove(rooms + i + 1, rooms + i, (count++ - i) * sizeof *rooms);
  rooms[i].start = start;
  rooms[i].bytes = bytes;
  if (i + 1 < count && start + bytes == rooms[i + 1].start) {
    rooms[i].bytes += rooms[i + 1].bytes;
    drop_room(i + 1);
  }
  if (i && rooms[i - 1].start + rooms[i - 1].bytes == start) {
    rooms[i - 1].bytes += rooms[i].bytes;
    drop_room(i);
  }
}

static uintptr_t rising(size_t bytes) {
  uintptr_t address = next_address;
  next_address += bytes;
  return address;
}

static uintptr_t as_linux(size_t bytes) {
  for (size_t i = 0; i < count; i++)
    if (rooms[i].bytes >= bytes) {
      uintptr_t address = rooms[i].start;
      rooms[i].start += bytes;
      rooms[i].bytes -= bytes;
      if (!rooms[i].bytes) drop_room(i);
      return address;
    }
  size_t chunk = whole(bytes, CHUNK);
  lowest -= chunk;
  if (chunk > bytes) add_room(lowest + bytes, chunk - bytes);
  return lowest;
}

EXPORT uintptr_t virtual_addresses(size_t bytes) {
  pthread_mutex_lock(&lock);
  uintptr_t address = rising(whole(bytes, PAGE));
  pthread_mutex_unlock(&lock);
  return address;
}

EXPORT uintptr_t virtual_segment(size_t bytes) {
  pthread_mutex_lock(&lock);
  uintptr_t address = is_linux() ? as_linux(whole(bytes, PAGE)) : rising(whole(bytes, PAGE));
  pthread_mutex_unlock(&lock);
  return address;
}

EXPORT void virtual_give_addresses(const void *segment, size_t bytes) {
  if ((uintptr_t)segment < lowest) return; /* it was handed out as one that rises */
  pthread_mutex_lock(&lock);
  add_room((uintptr_t)segment, whole(bytes, PAGE));
  if (rooms[0].start == lowest) {
    lowest += rooms[0].bytes;
    drop_room(0);
  }
  pthread_mutex_unlock(&lock);
}
