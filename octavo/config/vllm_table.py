"""vLLM's arguments that are no settings of Octavo, as data: what each does here, and why.

Four kinds of rows. An argument of :data:`WITHOUT_EFFECT` may have any value: whatever it is, results stay the same. One
of :data:`ONE_VALUE` may have the values that ask for nothing special; others need a feature that is missing, or would
change results, and are rejected. :data:`RENAMED` ones are settings under another name; :data:`CONVERTED` ones are
taken apart by :mod:`octavo.config.vllm_arguments`. The value's type follows the colon.

Arguments that only ``vllm serve`` has are listed in :data:`SERVER_ONLY`.
"""

from typing import Any

# Reason → arguments.
WITHOUT_EFFECT: dict[str, str] = {
    "kernels are chosen by the device": (
        "attention_backend:str attention_config:object disable_cascade_attn:bool mamba_backend:str "
        "mamba_ssu_algorithm:str gdn_prefill_backend:str kda_prefill_backend:str kda_decode_backend:str "
        "linear_backend:str sparse_indexer_topk_backend:str kernel_config:object "
        "ir_op_priority:object enable_flashinfer_autotune:bool monokernel:bool mm_encoder_attn_backend:str "
        "use_fp64_gumbel:bool use_replayssm:bool replayssm_buffer_len:int jit_monitor_mode:str "
        "jit_monitor_verbose:bool"
    ),
    "nothing is compiled ahead of time, and graph sizes follow from max_num_seqs": (
        "cudagraph_capture_sizes:list max_cudagraph_capture_size:int max_seq_len_to_capture:int cuda_graph_sizes:list"
    ),
    "there is one scheduler, which plans steps by its own rules": (
        "long_prefill_token_threshold:int long_prefill_token_threshold_adaptive:bool max_num_partial_prefills:int "
        "max_long_partial_prefills:int scheduler_reserve_full_isl:bool watermark:float prefill_schedule_interval:int "
        "num_scheduler_steps:int multi_step_stream_outputs:bool scheduler_delay_factor:float preemption_mode:str "
        "disable_async_output_proc:bool disable_hybrid_kv_cache_manager:bool disable_chunked_mm_input:bool "
        "stream_interval:int num_lookahead_slots:int use_v2_block_manager:bool"
    ),
    "the cache is on the device only": (
        "swap_space:float swa_bounded_replay:bool prefix_caching_hash_algo:str kv_sharing_fast_prefill:bool "
        "prefix_match_unit:int prefix_cache_retention_interval:int kv_offloading_backend:str "
        "mamba_cache_mode:str enable_mamba_shared_prefix_checkpoint:bool "
        "mamba_cache_philox_rounds:int"
    ),
    "weights are read by one process, without a copy between": (
        "safetensors_load_strategy:str safetensors_prefetch_num_threads:int safetensors_prefetch_block_size:int "
        "max_parallel_loading_workers:int pt_load_map_location:object ignore_patterns:list offload_backend:str "
        "offload_num_in_group:int offload_prefetch_step:int"
    ),
    "no code from a model's folder is run": "code_revision:str",
    "scales of the cache are the checkpoint's, or found with each token": "calculate_kv_scales:bool",
    "devices share layers in one way only": (
        "disable_custom_all_reduce:bool all2all_backend:str master_addr:str master_port:int "
        "distributed_timeout_seconds:int cpu_distributed_timeout_seconds:int numa_bind:bool numa_bind_nodes:list "
        "numa_bind_cpus:list ray_workers_use_nsight:bool enable_expert_parallel:bool enable_ep_weight_filter:bool "
        "expert_placement_strategy:str eplb_config:object dcp_comm_backend:str dcp_q_replicate:bool "
        "dcp_kv_cache_interleave_size:int cp_kv_cache_interleave_size:int data_parallel_address:str "
        "data_parallel_rpc_port:int enable_shm_tensor_arena:bool enable_nccl_comm_suspend:bool "
        "disable_nccl_for_dp_synchronization:bool dbo_decode_token_threshold:int dbo_prefill_token_threshold:int "
        "dp_sync_interval:int elastic_ep_max_dp_size:int enable_batch_sharded_sampling:bool "
        "renderer_num_workers:int data_parallel_supervisor_port:int dp_supervisor_probe_interval_s:float "
        "dp_supervisor_probe_timeout_s:float dp_supervisor_probe_failure_threshold:int grpc_port:int"
    ),
    "models take text only so far": (
        "limit_mm_per_prompt:object language_model_only:bool allowed_local_media_path:str "
        "allowed_media_domains:list media_io_kwargs:object mm_processor_kwargs:object mm_processor_cache_gb:float "
        "mm_processor_cache_type:str disable_mm_preprocessor_cache:bool mm_hasher_algorithm:str "
        "mm_shm_cache_max_object_size_mb:int mm_encoder_tp_mode:str mm_encoder_attn_dtype:str "
        "mm_encoder_fp8_scale_save_margin:float interleave_mm_strings:bool skip_mm_profiling:bool "
        "video_pruning_rate:float video_pruning_method:str mm_tensor_ipc:str mm_processor_device:str "
        "mm_ipc_gpu_memory_gb:float mm_device_do_normalize:bool enable_mm_processor_stats:bool "
        "trust_request_mm_kwargs:bool enable_flash_late_interaction:bool"
    ),
    "matters with LoRA adapters only, which enable_lora turns on": (
        "max_loras:int max_lora_rank:int lora_dtype:str max_cpu_loras:int fully_sharded_loras:bool "
        "lora_target_modules:list specialize_active_lora:bool enable_tower_connector_lora:bool "
        "enable_mixed_moe_lora_format:bool enable_moe_shared_loras:bool max_lora_cls_labels:int "
        "lora_extra_vocab_size:int"
    ),
    "matters with a missing feature only": (
        "per_request_spec_decode_metrics:str kv_cache_metrics_sample:float allow_deprecated_quantization:bool "
        "sleep_mode_backend:str sleep_mode_offload_cudagraph:bool sleep_preserve_parameter_names:list "
        "enable_cumem_allocator:bool fault_tolerance_config:object watchdog_config:object additional_config:object "
        "cohere_is_reasoning_model:bool cohere_format:str ec_manager_config:object aux_output_config:object"
    ),
    "holds without it": (
        "enable_sleep_mode:bool enable_server_load_tracking:bool enable_scale_out:bool enable_offline_docs:bool "
        "disable_log_requests:bool disable_frontend_multiprocessing:bool enable_reasoning:bool log_error_stack:bool "
        "guided_decoding_disable_fallback:bool "
        "aggregate_engine_logging:bool enable_log_deltas:bool show_hidden_metrics_for_version:str "
        "h11_max_incomplete_event_size:int h11_max_header_count:int uvicorn_log_level:str"
    ),
}

# Argument → the values that ask for nothing (None always does), and what another value would need.
ONE_VALUE: dict[str, tuple[tuple[Any, ...], str]] = {
    "tokenizer_mode:str": (("auto", "hf", "slow", "fast"), "another kind of tokenizer"),
    "config_format:str": (("auto", "hf"), "another format of configuration"),
    "hf_config_path:str": (("",), "a configuration from another place; set hf_overrides"),
    "model_class_overrides:object": (({},), "model classes of your own"),
    "model_loader_extra_config:object": (({},), "another way to load weights"),
    "model_weights:str": (("",), "weights from another place than the model's"),
    "quantization_config:object": (({},), "details of how weights are quantised; set quantization"),
    "mamba_cache_dtype:str": (("auto",), "models with recurrent state"),
    "mamba_ssm_cache_dtype:str": (("auto",), "models with recurrent state"),
    "mamba_config:object": (({},), "models with recurrent state"),
    "enable_mamba_cache_stochastic_rounding:bool": ((False,), "models with recurrent state"),
    "kv_offloading_size:float": ((0,), "a cache that is offloaded to host memory"),
    "cpu_offload_gb:float": ((0,), "weights that are offloaded to host memory"),
    "cpu_offload_params:list": (([],), "weights that are offloaded to host memory"),
    "offload_params:list": (([],), "weights that are offloaded to host memory"),
    "offload_group_size:int": ((0,), "weights that are offloaded to host memory"),
    "logprobs_mode:str": (("raw_logprobs",), "log-probabilities other than raw ones"),
    "disable_sliding_window:bool": ((False,), "sliding windows that are cut off; set max_model_len"),
    "return_sampling_mask:bool": ((False,), "sampling masks in outputs"),
    "enable_trace_replay:bool": ((False,), "replay of traces"),
    "io_processor_plugin:str": (("",), "plugins for inputs and outputs"),
    "logits_processor_pattern:str": (("",), "logits processors that requests name; set logits_processors"),
    "pipeline_parallel_size:int": ((1,), "pipeline parallelism; set tensor_parallel_size"),
    "data_parallel_size:int": ((1,), "several engines; start several servers behind a balancer"),
    "data_parallel_size_local:int": ((0, 1), "several engines; start several servers behind a balancer"),
    "data_parallel_rank:int": ((0,), "several engines; start several servers behind a balancer"),
    "data_parallel_start_rank:int": ((0,), "several engines; start several servers behind a balancer"),
    "data_parallel_backend:str": (("mp",), "several machines"),
    "data_parallel_hybrid_lb:bool": ((False,), "several engines; start several servers behind a balancer"),
    "data_parallel_external_lb:bool": ((False,), "several engines; start several servers behind a balancer"),
    "data_parallel_multi_port_external_lb:bool": (
        (False,),
        "several engines; start several servers behind a balancer",
    ),
    "decode_context_parallel_size:int": ((1,), "several devices"),
    "prefill_context_parallel_size:int": ((1,), "several devices"),
    "nnodes:int": ((1,), "several machines"),
    "node_rank:int": ((0,), "several machines"),
    "device_ids:list": (([],), "a choice of devices; set the variable CUDA_VISIBLE_DEVICES"),
    "worker_cls:str": (("auto",), "worker classes of your own"),
    "worker_extension_cls:str": (("",), "worker classes of your own"),
    "scheduler_cls:str": (("",), "schedulers of your own"),
    "enable_eplb:bool": ((False,), "mixture-of-experts models"),
    "enable_hc_sp:bool": ((False,), "several devices"),
    "enable_dbo:bool": ((False,), "several devices"),
    "ubatch_size:int": ((0,), "several devices"),
    "enable_elastic_ep:bool": ((False,), "mixture-of-experts models"),
    "enable_fault_tolerance:bool": ((False,), "several devices"),
    "enable_mm_embeds:bool": ((False,), "models that take images"),
    "mm_encoder_only:bool": ((False,), "models that take images"),
    "mm_encoder_fp8_scale_path:str": (("",), "models that take images"),
    "mm_encoder_fp8_scale_save_path:str": (("",), "models that take images"),
    "enable_lora:bool": ((False,), "LoRA adapters"),
    "default_mm_loras:object": (({},), "LoRA adapters"),
    "lora_modules:list": (([],), "LoRA adapters"),
    "speculative_model:str": (("",), "speculative decoding"),
    "num_speculative_tokens:int": ((0,), "speculative decoding"),
    "spec_method:str": (("",), "speculative decoding"),
    "spec_model:str": (("",), "speculative decoding"),
    "spec_tokens:int": ((0,), "speculative decoding"),
    "watermark_config:object": (({},), "watermarks"),
    "diffusion_config:object": (({},), "diffusion models"),
    "engram_config:object": (({},), "models with engram layers"),
    "kv_transfer_config:object": (({},), "a cache that is moved between engines"),
    "ec_transfer_config:object": (({},), "models that take images"),
    "weight_transfer_config:object": (({},), "weights that are sent between engines; set weight_update_dir"),
    "collect_detailed_traces:list": (([],), "traces of parts of a step"),
    "kv_cache_metrics:bool": ((False,), "metrics of cache blocks"),
    "custom_histogram_buckets:object": (({},), "histogram buckets of your own"),
    "cudagraph_metrics:bool": ((False,), "metrics of graphs"),
    "enable_layerwise_nvtx_tracing:bool": ((False,), "NVTX ranges; set profiler_config"),
    "enable_mfu_metrics:bool": ((False,), "metrics of utilisation; octavo bench engine measures it"),
    "enable_logging_iteration_details:bool": ((False,), "log lines for each step"),
    "headless:bool": ((False,), "several machines"),
    "grpc:bool": ((False,), "gRPC"),
    "trust_request_chat_template:bool": ((False,), "chat templates that requests bring; set chat_template"),
    "tool_strict_level:str": (("auto", "none"), "a level of strictness for all tools; set strict in the tools"),
    "enable_ssl_refresh:bool": ((False,), "certificates that are read again while the server runs"),
    "logging_config:str": (("",), "another configuration of logging; set log_config_file"),
    "guided_decoding_disable_additional_properties:bool": ((False,), "closed objects; say so in the schema"),
}

# Argument → the setting of the same meaning.
RENAMED: dict[str, str] = {
    "max_num_queued_tokens:int": "max_num_waiting_tokens",
    "override_pooler_config:object": "pooler_config",
    "guided_decoding_backend:str": "structured_outputs_backend",
    "guided_decoding_disable_any_whitespace:bool": "structured_outputs_disable_any_whitespace",
}

# Argument → what becomes of it.
CONVERTED: dict[str, str] = {
    "task:str": "`runner` and `convert`; reward, draft and transcription are rejected",
    "optimization_level:str": "0 is `enforce_eager`, 1 to 3 have no effect: nothing is compiled ahead of time",
    "compilation_config:object": "0, or `cudagraph_mode` NONE, is `enforce_eager`; all else has no effect",
    "structured_outputs_config:object": (
        "`structured_outputs_backend`, `structured_outputs_disable_any_whitespace`, `reasoning_parser` and "
        "`reasoning_parser_plugin`; `enable_in_reasoning` is rejected if true"
    ),
    "max_num_active_seqs:int": "`max_num_seqs`, of which it is the smaller twin: device state for more serves nothing",
    "tokens_only:bool": "`skip_tokenizer_init`; routes that need text answer with an error",
    "rope_scaling:object": "`hf_overrides`",
    "rope_theta:float": "`hf_overrides`",
}

# What only ``vllm serve`` takes, not ``vllm.LLM``.
_SERVER_ONLY = """
    headless grpc grpc_port aggregate_engine_logging lora_modules
    trust_request_chat_template trust_request_mm_kwargs tool_strict_level
    enable_server_load_tracking enable_log_deltas cohere_is_reasoning_model cohere_format
    log_error_stack enable_scale_out tokens_only data_parallel_supervisor_port
    dp_supervisor_probe_interval_s dp_supervisor_probe_timeout_s dp_supervisor_probe_failure_threshold
    data_parallel_multi_port_external_lb uvicorn_log_level enable_ssl_refresh h11_max_incomplete_event_size
    h11_max_header_count enable_offline_docs enable_flash_late_interaction disable_frontend_multiprocessing
    enable_reasoning logging_config
"""
SERVER_ONLY = frozenset(_SERVER_ONLY.split())

SHORT_FLAGS: dict[str, str] = {
    "pipeline_parallel_size": "-pp",
    "data_parallel_size": "-dp",
    "data_parallel_rank": "-dpn",
    "data_parallel_start_rank": "-dpr",
    "data_parallel_size_local": "-dpl",
    "data_parallel_address": "-dpa",
    "data_parallel_rpc_port": "-dpp",
    "data_parallel_backend": "-dpb",
    "data_parallel_hybrid_lb": "-dph",
    "data_parallel_external_lb": "-dpe",
    "data_parallel_multi_port_external_lb": "-dpm",
    "decode_context_parallel_size": "-dcp",
    "prefill_context_parallel_size": "-pcp",
    "enable_expert_parallel": "-ep",
    "nnodes": "-n",
    "node_rank": "-r",
    "diffusion_config": "-dc",
    "compilation_config": "-cc",
    "attention_config": "-ac",
    "optimization_level": "-O",
}
