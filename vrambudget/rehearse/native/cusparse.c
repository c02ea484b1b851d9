/* A stub of cuSPARSE, as far as PyTorch's products with sparse matrices, triangular solves and sorting of indices use
 * it (aten/src/ATen/native/sparse/cuda/SparseBlasImpl.cpp, SparseCUDABlas.cpp).
 *
 * Not supported: sums and products of two sparse matrices, whose result's size cuSPARSE counts on the card; block-sparse
 * matrices. */
#define LIBRARY VIRTUAL_CUSPARSE
#include "workspaces.h"

MAKE(cusparseCreate)
MAKE(cusparseCreateMatDescr)
MAKE(cusparseCreateDnMat)
MAKE(cusparseCreateDnVec)
MAKE(cusparseCreateConstDnMat)
MAKE(cusparseCreateConstDnVec)
MAKE(cusparseCreateCsr)
MAKE(cusparseCreateCoo)
MAKE(cusparseSpSM_createDescr)
MAKE(cusparseSpSV_createDescr)
EXPORT const char *cusparseGetErrorString(int error) { return error ? "not supported by the virtual GPU" : "success"; }

ACCEPT(cusparseDestroy)
ACCEPT(cusparseDestroyMatDescr)
ACCEPT(cusparseDestroyDnMat)
ACCEPT(cusparseDestroyDnVec)
ACCEPT(cusparseDestroySpMat)
ACCEPT(cusparseSpSM_destroyDescr)
ACCEPT(cusparseSpSV_destroyDescr)
ACCEPT(cusparseSetStream)
ACCEPT(cusparseSetPointerMode)
ACCEPT(cusparseSetMatType)
ACCEPT(cusparseSetMatIndexBase)
ACCEPT(cusparseSetMatFillMode)
ACCEPT(cusparseSetMatDiagType)
ACCEPT(cusparseSpMatSetAttribute)
ACCEPT(cusparseDnMatSetStridedBatch)
ACCEPT(cusparseCsrSetStridedBatch)
ACCEPT(cusparseCsrSetPointers)
ACCEPT(cusparseXcoo2csr)
ACCEPT(cusparseCreateIdentityPermutation)
ACCEPT(cusparseXcoosortByRow)
ACCEPT(cusparseXcsrsort)
ACCEPT(cusparseSpMM)
ACCEPT(cusparseSpMV)
ACCEPT(cusparseSDDMM)
ACCEPT(cusparseSDDMM_preprocess)
ACCEPT(cusparseSpSM_analysis)
ACCEPT(cusparseSpSM_solve)
ACCEPT(cusparseSpSV_analysis)
ACCEPT(cusparseSpSV_solve)

NO_WORKSPACE(cusparseSpMM_bufferSize, W10, size_t)
NO_WORKSPACE(cusparseSpMV_bufferSize, W9, size_t)
NO_WORKSPACE(cusparseSDDMM_bufferSize, W10, size_t)
NO_WORKSPACE(cusparseSpSM_bufferSize, W10, size_t)
NO_WORKSPACE(cusparseSpSV_bufferSize, W9, size_t)
NO_WORKSPACE(cusparseXcoosort_bufferSizeExt, W6, size_t)
NO_WORKSPACE(cusparseXcsrsort_bufferSizeExt, W6, size_t)
