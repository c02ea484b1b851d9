"""The scripts of inference by a job's mode: one that generates, one that calls the model."""

from functools import partial

from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.engine.module import Module
from vrambudget.errors import NotModelledError
from vrambudget.inference import forward, generate
from vrambudget.inference.caches import cache_of, windows_of
from vrambudget.inference.settings import GenerateSettings
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.training.loops.run import LoopSettings


def run_script(
    model: Module, config: ModelConfig, job: Job, settings: LoopSettings, *, in_full: bool
) -> object:
    """Run the script of the job's mode; return what its variables hold. Raises NotModelledError."""
    if job.mode == "generate":
        return generate.run(model, _generation(config, job, settings), in_full=in_full)
    return _forward(model, config, job, settings)


def _forward(model: Module, config: ModelConfig, job: Job, settings: LoopSettings) -> object:
    if not config.checked_with:
        raise NotModelledError(
            f"{config.model_type} without labels is not modelled",
            hint="--mode eval has them; the models of transformers are called without, too",
        )
    if job.task == "seq2seq-lm" or (job.logits_to_keep and job.task != "causal-lm"):
        raise NotModelledError(
            f"a forward pass for {job.task} like this is not modelled",
            hint="`vrambudget rehearse --gpu GPU -- python run.py` runs a script as it is",
        )
    inputs = {name: value for name, value in settings.batches[0].items() if name != "labels"}
    return forward.run(
        model,
        inputs,
        settings.autocast,
        batches=job.steps,
        keep_outputs=job.keep_outputs,
        logits_to_keep=job.logits_to_keep,
        with_grad=job.with_grad,
        pool=job.pool,
    )


def _check_layers(config: ModelConfig) -> None:
    """Raise where generate fails: T5's cache has as many layers as the encoder."""
    depth, of_encoder = config.depths
    if depth is not None and of_encoder is not None and depth > of_encoder:
        raise NotModelledError(
            f"a cache of {depth} decoder layers is not modelled: generate makes as many as the"
            f" encoder has, {of_encoder}, and fails",
            hint="--cache none works",
        )


def _generation(config: ModelConfig, job: Job, settings: LoopSettings) -> GenerateSettings:
    if config.new_cache() is None or job.task not in {"causal-lm", "seq2seq-lm"}:
        raise NotModelledError(
            f"generation with {config.model_type} for {job.task} is not modelled",
            hint="decoders of transformers with a language modelling head are, and T5 and BART;"
            " `vrambudget rehearse --gpu GPU -- python generate.py` runs a script as it is",
        )
    assert job.prompt is not None  # noqa: S101 - resolved by the caller
    if job.cache != "none":
        _check_layers(config)
    begins_with = 1 if job.task == "seq2seq-lm" else job.prompt  # tokens, for the decoder
    return GenerateSettings(
        **job.values_of(GenerateSettings)
        | {
            "new_cache": partial(
                cache_of,
                job.cache,
                config.new_cache,
                begins_with + job.new - 1,
                job.prompt,
                job.cache_bits,
            ),
            "windows": windows_of(config.new_cache()),
            "masks_by_kind": isinstance(config, DecoderConfig) and len(config.mask_kinds) > 1,
            "answers": max(job.num_return, job.num_beams),
            "autocast": settings.autocast,
            "shown": settings.shown,
            "padded": job.padding == "left",
            "special_tokens": config.special_tokens,
            "forces_last_token": config.forces_last_token,
        }
    )
