#include "lib/intrinsics/amx.h"

#include "lib/scalar/int8_attention.h"

namespace simdattn {

int64_t AmxInt8::query_bytes(int64_t dim) { return int8_query_bytes(dim); }
int64_t AmxInt8::panel_bytes(int64_t dim) { return int8_panel_bytes(dim); }
int64_t AmxInt8::values_bytes(int64_t dim) { return int8_values_bytes(dim); }

template <>
void AmxInt8::prepare_query<float>(const void* row, void* query, int64_t dim) {
  Int8Integers::prepare_query<float>(row, query, dim);
}
template <>
void AmxInt8::prepare_query<bf16>(const void* row, void* query, int64_t dim) {
  Int8Integers::prepare_query<bf16>(row, query, dim);
}
template <>
void AmxInt8::prepare_query<f16>(const void* row, void* query, int64_t dim) {
  Int8Integers::prepare_query<f16>(row, query, dim);
}
void AmxInt8::pack_keys(const PackKeys& a) { Int8Integers::pack_keys(a); }
void AmxInt8::score_packed(const ScoreTile& a) { Int8Integers::score_packed(a); }
void AmxInt8::pack_values(const PackValues& a) { Int8Integers::pack_values(a); }
void AmxInt8::value_packed(const ValueTile& a) { Int8Integers::value_packed(a); }

}  // namespace simdattn
