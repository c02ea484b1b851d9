"""Options of vLLM's and SGLang's servers that people paste, and that have no rules of their own.

What talks to clients or writes logs decides no memory. Prefix caching and chunked prefill are the
defaults that the rules count.

Source: vllm/engine/arg_utils.py, entrypoints/openai/cli_args.py (0.19); sglang/srt/server_args.py
(0.5.9).
"""

from vrambudget.config.foreign.meanings import Same, Table, Uncounted, ignored

SERVERS: Table = {
    **ignored(
        "host port api_key served_model_name tokenizer tokenizer_mode tokenizer_path revision"
        " chat_template tool_call_parser reasoning_parser response_role uvicorn_log_level"
        " log_level download_dir seed random_seed distributed_executor_backend swap_space"
        " generation_config allowed_origins root_path max_log_len schedule_policy"
    ),
    **ignored(
        "trust_remote_code enable_auto_tool_choice enable_prefix_caching enable_chunked_prefill"
        " disable_log_requests disable_log_stats enable_metrics async_scheduling"
        " skip_tokenizer_init skip_server_warmup no_enable_log_requests enable_log_requests",
        flag=True,
    ),
    "tp": Same("tensor_parallel_size"),
    "tp_size": Same("tensor_parallel_size"),
    "pp_size": Same("pipeline_parallel_size"),
    "limit_mm_per_prompt": Uncounted("pictures and films of a prompt", flag=False),
    "hf_overrides": Uncounted("another configuration", flag=False),
    "rope_scaling": Uncounted("another configuration", flag=False),
    "compilation_config": Uncounted("a way to compile of one's own", flag=False),
    "max_loras": Uncounted("adapters", flag=False),
    "max_lora_rank": Uncounted("adapters", flag=False),
    "lora_modules": Uncounted("adapters", flag=False),
    "no_enable_prefix_caching": Uncounted("a cache without prefixes"),
    "no_enable_chunked_prefill": Uncounted("prefills in one piece"),
    "load_format": Uncounted("another way to load", ("auto", "safetensors", "dummy"), flag=False),
}
"""The words of `vrambudget serve` that are not its own."""
