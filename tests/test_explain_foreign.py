"""Messages of servers and of other libraries: known by their words, wrapped or not."""

import io
import json

import pytest

from vrambudget.cli import main
from vrambudget.oom.foreign import explain_foreign

TOO_LONG = (
    "ValueError: To serve at least one request with the models's max seq len (131072), (16.0 GiB KV"
    " cache is needed, which is larger than the available KV cache memory (5.47 GiB). Based on the"
    " available memory, the estimated maximum model length is 44768. Try increasing"
    " `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine."
)
NOT_FREE = (
    "ValueError: Free memory on device cuda:0 (10.5/23.65 GiB) on startup is less than desired GPU"
    " memory utilization (0.9, 21.28 GiB). Decrease GPU memory utilization or reduce GPU memory"
    " used by other processes."
)
MPS = (
    "RuntimeError: MPS backend out of memory (MPS allocated: 17.20 GB, other allocations: 1.28 MB,"
    " max allowed: 18.13 GB). Tried to allocate 3.05 GB on private pool."
)
MESSAGES = [
    pytest.param(
        "ValueError: No available memory for the cache blocks. Try increasing"
        " `gpu_memory_utilization` when initializing the engine.",
        *("vLLM", "Nothing is left for keys and values", "--max-model-len"),
        id="vLLM, nothing left",
    ),
    pytest.param(
        TOO_LONG, "vLLM", "131072 tokens, which takes 16.0 GiB", "--max-model-len 44768", id="long"
    ),
    pytest.param(
        NOT_FREE,
        *("vLLM", "13.15 of 23.65 GiB are in use", "--gpu-memory-utilization 0.44"),
        id="vLLM, a card in use",
    ),
    pytest.param(
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        *("SGLang", "no memory for keys and values", "--mem-fraction-static"),
        id="SGLang",
    ),
    pytest.param(
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 8192.00 MiB on device 0:"
        " cudaMalloc failed: out of memory",
        *("llama.cpp", "8192.00 MiB in one piece", "-ngl"),
        id="llama.cpp",
    ),
    pytest.param(
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        *("PyTorch", "cuBLAS allocates its handle", "a smaller batch"),
        id="cuBLAS",
    ),
    pytest.param(
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        *("PyTorch", "cuDNN allocates its handle", "a smaller batch"),
        id="cuDNN",
    ),
    pytest.param(
        "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to"
        " allocate 17179869184 bytes.",
        *("JAX", "16.00 GiB", "XLA_PYTHON_CLIENT_PREALLOCATE=false"),
        id="JAX",
    ),
    pytest.param(
        "ValueError: The model's max seq len (32768) is larger than the maximum number of tokens"
        " that can be stored in KV cache (7344). Try increasing `gpu_memory_utilization` or"
        " decreasing `max_model_len` when initializing the engine.",
        *("vLLM", "32768 tokens; 7344 fit after", "--max-model-len 7344"),
        id="vLLM before V1",
    ),
    pytest.param(
        "ggml_gallocr_reserve_n: failed to allocate CUDA1 buffer of size 10345253120",
        *("llama.cpp", "9.63 GiB in one piece", "-ub"),
        id="llama.cpp, a graph's buffer",
    ),
    pytest.param(
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling"
        " `cublasCreate(handle)`",
        *("PyTorch", "Most often the GPU is full", "CUDA_LAUNCH_BLOCKING=1"),
        id="no handle",
    ),
    pytest.param(
        "RuntimeError: Resource exhausted: Failed to allocate request for 87.48GiB (93935126000B)"
        " on device ordinal 0",
        *("JAX", "87.48GiB", "a smaller batch"),
        id="JAX, a request",
    ),
    pytest.param(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5.96GiB.",
        *("JAX", "5.96GiB", "a smaller batch"),
        id="JAX, in GiB",
    ),
    pytest.param(
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.\n"
        "total allocation: 20.00GiB",
        *("JAX", "16.00 GiB. The program would hold 20.00GiB in all.", "a smaller batch"),
        id="JAX, with its total",
    ),
    pytest.param(
        "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of"
        " memory RuntimeError: cuda runtime error (2) : out of memory at"
        " /pytorch/aten/src/THC/generic/THCStorage.cu:58",
        *("PyTorch", "before version 1.0 prints no sizes", "a smaller batch"),
        id="PyTorch before 1.0",
    ),
    pytest.param(
        "RuntimeError: [enforce fail at context_gpu.cu:343] error == cudaSuccess. 2 vs 0. Error at:"
        " /caffe2/caffe2/core/context_gpu.cu:343: out of memory",
        *("Caffe2", "asks the driver for each tensor", "IMS_PER_BATCH"),
        id="Caffe2",
    ),
    pytest.param(
        "OOM when allocating tensor with shape[64,512,512,64] and type float"
        " on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc",
        *("TensorFlow", "[64, 512, 512, 64] of float, which takes 4.00 GiB", "ALLOW_GROWTH"),
        id="TensorFlow",
    ),
    pytest.param(
        "CUDA error 2 at /llama.cpp/ggml-cuda.cu:6951: out of memory",
        *("llama.cpp", "the GPU was full", "-ngl"),
        id="llama.cpp, an older error",
    ),
    pytest.param(
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy"
        " requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization` when"
        " initializing the engine.",
        *("vLLM", "1024 dummy requests, its max_num_seqs", "--max-num-seqs"),
        id="vLLM, its sampler",
    ),
    pytest.param(
        "Error: llama runner process has terminated: cudaMalloc failed: out of memory",
        *("Ollama", "more than the GPU has", "num_ctx"),
        id="Ollama",
    ),
    pytest.param(
        "Error: model requires more system memory (18.6 GiB) than is available (7.4 GiB)",
        *("Ollama", "needs 18.6 GiB of main memory", "vrambudget run MODEL"),
        id="Ollama, main memory",
    ),
    pytest.param(MPS, "PyTorch", "holds 17.20 GB", "HIGH_WATERMARK", id="MPS"),
    pytest.param(
        "MPS backend out of memory (MPS allocated: 16.00 GB, other allocations: 3.31 GB, max"
        " allowed: 18.13 GB). Tried to allocate 256 bytes on shared pool.",
        *("PyTorch", "; 256 bytes more were asked for", "HIGH_WATERMARK"),
        id="MPS, a few bytes",
    ),
]


@pytest.mark.parametrize(("text", "source", "what", "step"), MESSAGES)
@pytest.mark.parametrize("wrapped", [False, True], ids=["one line", "wrapped"])
def test_a_message_is_known_by_its_words(text, source, what, step, wrapped):
    found = explain_foreign(text.replace(" ", "\n  ") if wrapped else f"INFO ...\n{text}\nbye")
    assert found is not None
    assert found.source == source
    assert what in found.what_happened
    assert any(step in each for each in found.next_steps)


def test_a_word_may_be_broken_where_the_terminal_ended():
    found = explain_foreign("(EngineCore pid=316) " + TOO_LONG.replace("cache is", "cach\ne is"))
    assert found is not None
    assert "--max-model-len 44768 is the longest that fits" in found.next_steps


def test_the_total_of_jax_may_stand_some_lines_below():
    stats = "BufferAssignment stats:\n  parameter allocation: 4.00GiB\n  total allocation: 24.00GiB"
    found = explain_foreign(f"RESOURCE_EXHAUSTED: Out of memory allocating 99 bytes.\n{stats}")
    assert found is not None
    assert "The program would hold 24.00GiB in all." in found.what_happened


def test_other_texts_are_not_known():
    assert explain_foreign("epoch 3: loss 1.25\nMemory usage is fine") is None


def test_a_message_may_be_pasted_as_an_argument(capsys):
    assert main(["explain", MPS]) == 0
    text = capsys.readouterr().out
    assert text.startswith("PyTorch: MPS backend out of memory")
    assert max(map(len, text.splitlines())) <= 80


def test_pytorchs_own_message_may_be_pasted_too(capsys):
    message = (
        "CUDA out of memory. Tried to allocate 6.14 GiB. GPU 0 has a total capacity of 11.69 GiB"
        " of which 2.68 GiB is free."
    )
    assert main(["explain", message]) == 0
    assert "6.14 GiB asked for" in capsys.readouterr().out


def test_without_a_name_standard_input_is_read(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(NOT_FREE.encode())))
    assert main(["explain"]) == 0
    assert "10.5/23.65" in capsys.readouterr().out


def test_the_explanation_is_json_too(capsys):
    assert main(["explain", TOO_LONG, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["source"] == "vLLM"


def test_a_text_without_a_message_is_an_error(capsys):
    assert main(["explain", "nothing is wrong here"]) == 2
    assert "error:" in capsys.readouterr().err


def test_what_vllm_says_of_its_sampler_goes_before_the_allocators_message(capsys):
    log = (
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB. GPU 0 has a total"
        " capacity of 23.64 GiB of which 310.00 MiB is free.\n"
        "The above exception was the direct cause of the following exception:\n"
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests."
    )
    assert main(["explain", log]) == 0
    assert "lower --max-num-seqs" in capsys.readouterr().out


def test_the_allocators_message_goes_before_others(capsys):
    log = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 11.69 GiB"
        " of which 1.00 GiB is free.\nthen CUBLAS_STATUS_ALLOC_FAILED"
    )
    assert main(["explain", log]) == 0
    assert "2.00 GiB asked for" in capsys.readouterr().out
