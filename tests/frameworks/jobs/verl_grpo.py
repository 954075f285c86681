"""verl: GRPO by its `main_ppo`. A server of vLLM, SGLang or TensorRT-LLM generates the answers, nothing else can.

The server's class is asked for in this process first, so that it is not a worker of Ray's that fails.
"""

import transformers.models.qwen2_vl.modeling_qwen2_vl as of_images
from hydra import compose, initialize_config_module

of_images.Qwen2VLCausalLMOutputWithPast = object  # as in verl_sft.py

from verl.trainer.main_ppo import TaskRunnerV1, run_ppo  # noqa: E402 - as above
from verl.workers.rollout.base import get_rollout_class  # noqa: E402 - as above

with initialize_config_module("verl.trainer.config", version_base=None):
    asked = ["algorithm.adv_estimator=grpo", "actor_rollout_ref.rollout.name=vllm", "trainer.device=cpu"]
    config = compose("ppo_trainer", asked)
get_rollout_class(config.actor_rollout_ref.rollout.name, config.actor_rollout_ref.rollout.mode)
run_ppo(config, TaskRunnerV1)
