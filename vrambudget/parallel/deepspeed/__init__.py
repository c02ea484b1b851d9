"""DeepSpeed's ZeRO, after its own code (0.18.9 and 0.19.8).

config          the keys of its JSON that memory depends on
engine          deepspeed.initialize and DeepSpeedEngine: forward, backward, step
stage_1_and_2   states, or gradients too, of one rank: flat weights, buckets, the step
bucket          gradients that are reduced together (stages 1 and 2)
gradient_offload, host_gradients    what goes to main memory (stages 1 and 2; 3)
linear          ZeRO 3's own linear layer
partition       which parameters, and which of their elements, a rank has (stages 1 and 2)
norms           norms of gradients, looks for overflow, the factor that they are scaled by
loop            a script's loop over an engine
"""
