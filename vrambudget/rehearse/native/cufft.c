/* A stub of cuFFT, as far as PyTorch uses it (aten/src/ATen/native/cuda/CuFFTPlanCache.h). */
#define LIBRARY VIRTUAL_CUFFT
#include "workspaces.h"

EXPORT int cufftCreate(int *plan) { *plan = 1; return SUCCESS; }
ACCEPT(cufftDestroy)
ACCEPT(cufftSetAutoAllocation)
ACCEPT(cufftSetStream)
ACCEPT(cufftSetWorkArea)
ACCEPT(cufftXtExec)
NO_WORKSPACE(cufftXtMakePlanMany, W12, size_t)
