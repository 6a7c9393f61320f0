"""Keys of other versions, with what is known about them. What an installed package says itself is in its key table."""

from __future__ import annotations

REMOVED_DEEPSPEED_KEYS = {
    "zero_optimization.cpu_offload_params": "known in early 2021 only (deepspeedai/DeepSpeed#878)",
}
FORMER_DEEPSPEED_KEYS = {"zero_optimization.cpu_offload_params": "zero_optimization.offload_param"}
"""What took the place of a removed key."""
RENAMED_DEEPSPEED_KEYS = {"aio.thread_count": "aio.intra_op_parallelism"}
"""Former names in blocks that pass over what they do not know."""
_ZEROPP = "ZeRO++ (0.9.5 refuses it: deepspeedai/DeepSpeed#3827)"
DEEPSPEED_SINCE = {
    "zero_optimization.zero_hpz_partition_size": (
        "0.10.0",
        f"{_ZEROPP}; every node keeps a second copy of the weights",
    ),
    "zero_optimization.zero_quantized_weights": ("0.10.0", _ZEROPP),
    "zero_optimization.zero_quantized_gradients": ("0.10.0", _ZEROPP),
}
"""First version that takes a key, where the refusal of an earlier one has been reported, and why it matters."""

ACCELERATE_RENAMED = {
    "fsdp_config.fsdp_backward_prefetch_policy": "fsdp_config.fsdp_backward_prefetch",
    "deepspeed_config.zero3_save_fp16_model": "deepspeed_config.zero3_save_16bit_model",
}
"""Former names; accelerate passes over them without a word."""
ACCELERATE_REMOVED = {"ipex_config": "Intel's extension of PyTorch is no longer used; PyTorch itself has it"}
"""Blocks that the questionnaire once wrote."""
ACCELERATE_WITHOUT_EFFECT = {
    "mpirun_config.mpirun_ccl": "oneCCL bindings are no longer set up",
    "fsdp_config.fsdp_limit_all_gathers": "the launcher has never read it",
}

TRAINER_RENAMED = {
    "evaluation_strategy": "eval_strategy",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
    "push_to_hub_model_id": "hub_model_id",
    "push_to_hub_token": "hub_token",
    "include_inputs_for_metrics": "include_for_metrics",
    "warmup_ratio": "warmup_steps",
    "evaluate_during_training": "eval_strategy",
}
"""Former names of TrainingArguments. ``warmup_ratio``: since transformers 5 a share is a ``warmup_steps`` below one."""
TRAINER_REMOVED = {
    "fp16_opt_level": "Apex is gone; fp16 alone",
    "fp16_backend": "Apex is gone",
    "half_precision_backend": "Apex is gone",
    "sharded_ddp": "FairScale is gone; use fsdp or deepspeed",
    "fsdp_min_num_params": "in fsdp_config as min_num_params",
    "fsdp_transformer_layer_cls_to_wrap": "in fsdp_config as transformer_layer_cls_to_wrap",
    "group_by_length": 'train_sampling_strategy: "group_by_length"',
    "overwrite_output_dir": "the folder is written to in any case",
    "logging_dir": "TENSORBOARD_LOGGING_DIR in the environment",
    "save_safetensors": "safetensors is the only format",
    "adafactor": "optim: adafactor",
    "past_index": "removed in transformers 5",
    "torchdynamo": "torch_compile_backend",
    "ray_scope": "removed in transformers 5",
    "use_ipex": "removed in transformers 5",
    "jit_mode_eval": "removed in transformers 5",
    "use_mps_device": "found by itself",
    "mp_parameters": "removed in transformers 5",
    "dispatch_batches": "in accelerator_config",
    "split_batches": "in accelerator_config",
    "tpu_num_cores": "removed in transformers 5",
    "tpu_metrics_debug": "removed in transformers 5",
    "xpu_backend": "ddp_backend",
    "include_tokens_per_second": "removed in transformers 5",
    "use_legacy_prediction_loop": "removed in transformers 5",
}
"""Former arguments and what is there instead; compared with the installed version by a test."""
