/* In front of the user's own cuDNN: PyTorch asks it for engines and workspaces, and no engine runs.
 *
 * Since 9.8 cuDNN answers for a card that is described to it ("deviceless": CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). PyTorch
 * asks with a handle, which wants a real card; wherever it hands in ours, the description takes its place. So heuristics,
 * engines and workspaces are NVIDIA's own, and PyTorch allocates the workspaces as on a card. VRAMBUDGET_CUDNN_CARD is the
 * description, in JSON (see ../../cudnn/gpu.py). The names of attributes are those of cudnn_graph_v9.h.
 *
 * cuDNN's libraries call each other by these names too: such calls go through as they are.
 *
 * Batch normalisation's older interface needs a handle for its sizes. They are 0, with which it "functions exactly like the
 * non-extended function" (documentation of cudnnBatchNormalizationForwardTrainingEx).
 * Not modelled: workspaces of batch normalisation by the NHWC kernel in half precision; recurrent layers and CTC, which
 * PyTorch is kept from handing to cuDNN (hook/vrambudget_hook/cudnn.py); the interface of version 7. */
#include "virtual_gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_INITIALIZED = 1001, NOT_SUPPORTED = 3000 };
enum { HEURISTICS_GRAPH = 201, HEURISTICS_CARD = 204, PLAN_HANDLE = 400, PLAN_CARD = 407, GRAPH_HANDLE = 800 };
enum { ENGINE_GRAPH = 1300, ENGINE_CARD = 1307, CARD_JSON = 2702 };
enum { OF_DESCRIPTORS = 15, OF_CHARACTERS = 24, CARD_DESCRIPTOR = 38 };
typedef void *descriptor;
#define CUDNN "libcudnn.so.9" /* an older one does not answer without a card */

/* A function of the library that PyTorch loaded by its name. */
static void *real(const char *name) {
  static void *library;
  if (!library) library = dlopen(CUDNN, RTLD_LAZY | RTLD_NOLOAD);
  void *found = library ? dlsym(library, name) : NULL;
  if (!found) { fprintf(stderr, "virtual GPU: " CUDNN " has no %s\n", name); abort(); }
  return found;
}
/* dladdr looks through all symbols of the library it finds, and PyTorch's has very many: each place is asked for once. */
static int is_cudnns(void *caller) {
  static uintptr_t answered[4096]; /* the place, and the answer in the lowest bit */
  uintptr_t place = (uintptr_t)caller, *slot = &answered[place % 4096], told = __atomic_load_n(slot, __ATOMIC_RELAXED);
  if (told >> 1 == place) return told & 1;
  Dl_info info;
  uintptr_t yes = dladdr(caller, &info) && info.dli_fname && strstr(info.dli_fname, "libcudnn") != NULL;
  __atomic_store_n(slot, place << 1 | yes, __ATOMIC_RELAXED);
  return (int)yes;
}

typedef int set_function(descriptor, int, int, int64_t, const void *);
static int set(descriptor of, int name, int type, int64_t count, const void *values) {
  static set_function *call;
  if (!call) call = (set_function *)real("cudnnBackendSetAttribute");
  return call(of, name, type, count, values);
}

/* The card as cuDNN knows it; NULL where this cuDNN does not take a description, or not this one. */
static descriptor card(void) {
  static descriptor made;
  const char *json = getenv("VRAMBUDGET_CUDNN_CARD");
  if (made || !json) return made;
  descriptor fresh;
  if (((int (*)(int, descriptor *))real("cudnnBackendCreateDescriptor"))(CARD_DESCRIPTOR, &fresh)) return NULL;
  if (set(fresh, CARD_JSON, OF_CHARACTERS, (int64_t)strlen(json), json)) return NULL;
  if (((int (*)(descriptor))real("cudnnBackendFinalize"))(fresh)) return NULL;
  return made = fresh;
}

/* Its version, 91900 for 9.19, where it answers for this card; else 0. */
EXPORT size_t virtual_cudnn_version(void) {
  if (!dlopen(CUDNN, RTLD_LAZY | RTLD_NOLOAD)) return 0;
  return card() ? ((size_t (*)(void))real("cudnnGetVersion"))() : 0;
}

static int handle; /* only its address matters */
EXPORT int cudnnCreate(void **out) { *out = &handle; return card() ? SUCCESS : NOT_INITIALIZED; }
EXPORT int cudnnDestroy(void *of) { (void)of; return SUCCESS; }
static __thread void *stream;
EXPORT int cudnnSetStream(void *of, void *now) { (void)of; stream = now; return SUCCESS; }
EXPORT int cudnnGetStream(void *of, void **out) { (void)of; *out = stream; return SUCCESS; }

static int with_card(int status, descriptor of, int name) {
  descriptor described = card();
  return status ? status : set(of, name, OF_DESCRIPTORS, 1, &described);
}
EXPORT int cudnnBackendSetAttribute(descriptor of, int name, int type, int64_t count, const void *values) {
  if (!is_cudnns(__builtin_return_address(0))) {
    if (name == GRAPH_HANDLE) return SUCCESS;
    if (name == PLAN_HANDLE) return with_card(SUCCESS, of, PLAN_CARD);
    if (name == HEURISTICS_GRAPH) return with_card(set(of, name, type, count, values), of, HEURISTICS_CARD);
    if (name == ENGINE_GRAPH) return with_card(set(of, name, type, count, values), of, ENGINE_CARD);
  }
  return set(of, name, type, count, values);
}
EXPORT int cudnnBackendExecute(void *of, descriptor plan, descriptor pack) {
  if (!is_cudnns(__builtin_return_address(0))) return SUCCESS;
  return ((int (*)(void *, descriptor, descriptor))real("cudnnBackendExecute"))(of, plan, pack);
}

/* ---- the older interface, which PyTorch calls with a handle -------------------------------------------------------------- */

#define ACCEPTED(name) EXPORT int name(void) { return SUCCESS; }
ACCEPTED(cudnnBatchNormalizationForwardTrainingEx)
ACCEPTED(cudnnBatchNormalizationForwardInference)
ACCEPTED(cudnnBatchNormalizationBackwardEx)
ACCEPTED(cudnnSpatialTfGridGeneratorForward)
ACCEPTED(cudnnSpatialTfGridGeneratorBackward)
ACCEPTED(cudnnSpatialTfSamplerForward)
ACCEPTED(cudnnSpatialTfSamplerBackward)

/* By which kernel: one for NHWC in half precision takes a workspace that is not known here. */
enum { PERSISTENT = 2, HALF = 2 };
static int guessed;
EXPORT int virtual_cudnn_guessed(void) { return guessed; }
static int no_bytes(int mode, descriptor x, size_t *bytes) {
  int type = 0, dimensions = 0, sizes[8], strides[8];
  typedef int get_function(descriptor, int, int *, int *, int *, int *);
  ((get_function *)real("cudnnGetTensorNdDescriptor"))(x, 8, &type, &dimensions, sizes, strides);
  guessed |= mode == PERSISTENT && type == HALF;
  *bytes = 0;
  return SUCCESS;
}
EXPORT int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(void *of, int mode, int operations, descriptor x,
                                                                    descriptor z, descriptor y, descriptor scale,
                                                                    descriptor activation, size_t *bytes) {
  (void)of; (void)operations; (void)z; (void)y; (void)scale; (void)activation;
  return no_bytes(mode, x, bytes);
}
EXPORT int cudnnGetBatchNormalizationBackwardExWorkspaceSize(void *of, int mode, int operations, descriptor x, descriptor y,
                                                             descriptor dy, descriptor dz, descriptor dx, descriptor scale,
                                                             descriptor activation, size_t *bytes) {
  (void)of; (void)operations; (void)y; (void)dy; (void)dz; (void)dx; (void)scale; (void)activation;
  return no_bytes(mode, x, bytes);
}
EXPORT int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *of, int mode, int operations, descriptor activation,
                                                                descriptor x, size_t *bytes) {
  (void)of; (void)operations; (void)activation;
  return no_bytes(mode, x, bytes);
}

#define REFUSED(name) EXPORT int name(void) { return NOT_SUPPORTED; }
REFUSED(cudnnGetConvolutionForwardAlgorithm_v7)
REFUSED(cudnnGetConvolutionBackwardDataAlgorithm_v7)
REFUSED(cudnnGetConvolutionBackwardFilterAlgorithm_v7)
REFUSED(cudnnFindConvolutionForwardAlgorithmEx)
REFUSED(cudnnFindConvolutionBackwardDataAlgorithmEx)
REFUSED(cudnnFindConvolutionBackwardFilterAlgorithmEx)
REFUSED(cudnnGetConvolutionForwardWorkspaceSize)
REFUSED(cudnnGetConvolutionBackwardDataWorkspaceSize)
REFUSED(cudnnGetConvolutionBackwardFilterWorkspaceSize)
REFUSED(cudnnConvolutionForward)
REFUSED(cudnnConvolutionBackwardData)
REFUSED(cudnnConvolutionBackwardFilter)
REFUSED(cudnnConvolutionBiasActivationForward)
REFUSED(cudnnPoolingForward)
REFUSED(cudnnCTCLoss)
REFUSED(cudnnCTCLoss_v8)
REFUSED(cudnnGetCTCLossWorkspaceSize)
REFUSED(cudnnGetCTCLossWorkspaceSize_v8)
REFUSED(cudnnDropoutGetStatesSize)
REFUSED(cudnnSetDropoutDescriptor)
REFUSED(cudnnRestoreDropoutDescriptor)
REFUSED(cudnnGetRNNWeightSpaceSize)
REFUSED(cudnnGetRNNWeightParams)
REFUSED(cudnnGetRNNTempSpaceSizes)
REFUSED(cudnnRNNForward)
REFUSED(cudnnRNNBackwardData_v8)
REFUSED(cudnnRNNBackwardWeights_v8)
