/* A stub of cuSOLVER, as far as torch.linalg uses it (aten/src/ATen/native/cuda/linalg/CUDASolver.cpp).
 *
 * What it writes on the card is read as zeros there: an `info` of zero is success. */
#define LIBRARY VIRTUAL_CUSOLVER
#include "workspaces.h"

MAKE(cusolverDnCreate)
MAKE(cusolverDnCreateParams)
MAKE(cusolverDnCreateGesvdjInfo)
MAKE(cusolverDnCreateSyevjInfo)
ACCEPT(cusolverDnDestroy)
ACCEPT(cusolverDnDestroyParams)
ACCEPT(cusolverDnDestroyGesvdjInfo)
ACCEPT(cusolverDnDestroySyevjInfo)
ACCEPT(cusolverDnSetStream)
ACCEPT(cusolverDnXgesvdjSetTolerance)
ACCEPT(cusolverDnXgesvdjSetMaxSweeps)
ACCEPT(cusolverDnXgesvdjSetSortEig)
EXPORT int cusolverDnXgesvdjGetSweeps(W2, int *sweeps) { *sweeps = 1; return SUCCESS; }
EXPORT int cusolverDnXgesvdjGetResidual(W2, double *residual) { *residual = 0; return SUCCESS; }

#define REAL_AND_COMPLEX(each) each(S) each(D) each(C) each(Z)
#define OF_ALL(letter) \
  NO_WORKSPACE(cusolverDn##letter##geqrf_bufferSize, W5, int) \
  NO_WORKSPACE(cusolverDn##letter##getrf_bufferSize, W5, int) \
  NO_WORKSPACE(cusolverDn##letter##potrf_bufferSize, W5, int) \
  NO_WORKSPACE(cusolverDn##letter##sytrf_bufferSize, W4, int) \
  NO_WORKSPACE(cusolverDn##letter##gesvd_bufferSize, W3, int) \
  NO_WORKSPACE(cusolverDn##letter##gesvdj_bufferSize, W12, int) \
  NO_WORKSPACE(cusolverDn##letter##gesvdjBatched_bufferSize, W11, int) \
  NO_WORKSPACE(cusolverDn##letter##gesvdaStridedBatched_bufferSize, W16, int) \
  ACCEPT(cusolverDn##letter##geqrf) ACCEPT(cusolverDn##letter##getrf) ACCEPT(cusolverDn##letter##getrs) \
  ACCEPT(cusolverDn##letter##potrf) ACCEPT(cusolverDn##letter##potrs) ACCEPT(cusolverDn##letter##potrfBatched) \
  ACCEPT(cusolverDn##letter##potrsBatched) ACCEPT(cusolverDn##letter##sytrf) ACCEPT(cusolverDn##letter##gesvd) \
  ACCEPT(cusolverDn##letter##gesvdj) ACCEPT(cusolverDn##letter##gesvdjBatched) \
  ACCEPT(cusolverDn##letter##gesvdaStridedBatched)
REAL_AND_COMPLEX(OF_ALL)

/* Where complex numbers have other names: orthogonal is unitary, symmetric is Hermitian. */
#define OF_KIND(letter, orthogonal, symmetric) \
  NO_WORKSPACE(cusolverDn##letter##orthogonal##gqr_bufferSize, W7, int) \
  NO_WORKSPACE(cusolverDn##letter##orthogonal##mqr_bufferSize, W11, int) \
  NO_WORKSPACE(cusolverDn##letter##symmetric##evd_bufferSize, W7, int) \
  NO_WORKSPACE(cusolverDn##letter##symmetric##evj_bufferSize, W7, int) \
  NO_WORKSPACE(cusolverDn##letter##symmetric##evjBatched_bufferSize, W7, int) \
  ACCEPT(cusolverDn##letter##orthogonal##gqr) ACCEPT(cusolverDn##letter##orthogonal##mqr) \
  ACCEPT(cusolverDn##letter##symmetric##evd) ACCEPT(cusolverDn##letter##symmetric##evj) \
  ACCEPT(cusolverDn##letter##symmetric##evjBatched)
OF_KIND(S, or, sy) OF_KIND(D, or, sy) OF_KIND(C, un, he) OF_KIND(Z, un, he)

/* Of any type: bytes on the card and on the host. */
#define ANY_TYPE(name, before) \
  ACCEPT(cusolverDnX##name) \
  EXPORT int cusolverDnX##name##_bufferSize(before, size_t *card, size_t *host) { \
    virtual_note_unknown_workspace(LIBRARY); *card = *host = 0; return SUCCESS; \
  }
ANY_TYPE(geqrf, W10)
ANY_TYPE(potrf, W8)
ANY_TYPE(syevd, W11)
ANY_TYPE(syevBatched, W11)
ANY_TYPE(geev, W17)
ANY_TYPE(sytrs, W11)
ACCEPT(cusolverDnXpotrs)
