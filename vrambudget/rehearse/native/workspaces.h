/* What the stub libraries for cuFFT, cuSOLVER and cuSPARSE share. These libraries tell their workspaces to real cards only:
 * here they are asked for none, which the report says. Calls whose result another size follows from are not supported.
 *
 * Words stand for arguments that nobody looks at: integers and pointers take a place each. */
#ifndef WORKSPACES_H
#define WORKSPACES_H

#include "virtual_gpu.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

enum { SUCCESS = 0 };
typedef uintptr_t word;
static uintptr_t const handle = 0x40; /* never looked into */

#define W1 word a
#define W2 W1, word b
#define W3 W2, word c
#define W4 W3, word d
#define W5 W4, word e
#define W6 W5, word f
#define W7 W6, word g
#define W8 W7, word h
#define W9 W8, word i
#define W10 W9, word j
#define W11 W10, word k
#define W12 W11, word l
#define W16 W12, word m, word n, word o, word p
#define W17 W16, word q

#define ACCEPT(name) EXPORT int name(void) { return SUCCESS; }
#define MAKE(name) EXPORT int name(uintptr_t *out) { *out = handle; return SUCCESS; }
/* A size of the workspace, of a type, after so many arguments: none is known. */
#define NO_WORKSPACE(name, before, type) \
  EXPORT int name(before, type *out) { virtual_note_unknown_workspace(LIBRARY); *out = 0; return SUCCESS; }

#endif
