// What runs the nodes. Each throws a Failure before it writes, or does everything.
#pragma once

#include "tensor.h"

namespace simdattn_onnxruntime {

void group_query_attention(Call* call);  // com.microsoft.GroupQueryAttention
void multi_head_attention(Call* call);   // com.microsoft.MultiHeadAttention
void attention(Call* call);              // Attention of opset 23 and 24
void rotary_embedding(Call* call);       // RotaryEmbedding of opset 23 and of com.microsoft
void linear_attention(Call* call);       // com.microsoft.LinearAttention
void causal_conv(Call* call);            // com.microsoft.CausalConvWithState

}  // namespace simdattn_onnxruntime
