// A fused linear layer. Arguments come from Python as 64-bit numbers: addresses, sizes and flags, in this order.
#pragma once

#include <cstdint>

// Weights as `pack` lays them out: panels of 2 * LANES rows, (panels, depth, 2 * LANES), of int8, bfloat16 or float32.
// The rows of a panel of a SwiGLU are LANES gates and the values that belong to them.
struct Packed {
    int64_t data, scale;  // scale: a float32 for each row of a panel, or 0
    int64_t rows, depth, kind, gated;
};

enum Kind { INT8, BFLOAT16, FLOAT32 };
enum NormKind { NO_NORM, RMS_NORM, LAYER_NORM };
enum Activation { NO_ACTIVATION, SILU, GELU };

struct Linear {
    const Packed* packed;
    int64_t x, half, tokens;  // half: x, norm, bias, residual and result are bfloat16, else float32
    int64_t norm, norm_weight, norm_bias, eps_bits;  // eps: the bits of a float64
    int64_t bias, activation, residual, out, threads;
};

// out = f(norm(x) W^T + bias) + residual; with `wide` the result goes there in float32 instead.
void run_linear(const Linear& asked, float* wide);
