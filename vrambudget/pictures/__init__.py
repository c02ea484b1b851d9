"""Pictures and video: a pipeline of diffusers is a schedule of phases, and its own code is traced.

    cards         well-known pipelines: the class and configuration of each component
    job           what is asked: train or generate, resolution, frames, what lies on the GPU
    components    each component, built from its class on the meta device (needs diffusers)
    phases        which component runs, what lies on the GPU meanwhile
    four_bit      linear layers in nf4
    generation    the pipeline's own call; `training` a LoRA's or a whole model's step
    budget        a budget of it, with the peak of each phase

No model is written here: forward passes, a pipeline's schedule and its loop are diffusers'.
"""
