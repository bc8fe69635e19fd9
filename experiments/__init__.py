"""Experiments with the paper's model, one module each: `vanilla experiment NAME`."""

# In the order of docs/experiments.md.
NAMES = {
    "length_extrapolation": "four position encodings on sequences longer than those of training",
    "attention_backends": "time and memory of attention over length, eager against fused",
    "patches": "images as sequences of patches: the same encoder on digits",
    "table3": "the paper's table 3 in small: heads, sizes, depth, dropout, smoothing, positions",
    "details": "what happens without scaling, warm-up, smoothing, the mask or the shift",
    "decoding": "beams, length penalties, repetition penalty, and what the cache costs and saves",
    "attention_maps": "what the heads of a trained model look at, and the alignment read from it",
}
