// Arithmetic::kBF16 and kInt8 on AMX.
#ifndef SIMDATTN_LIB_INTRINSICS_AMX_H_
#define SIMDATTN_LIB_INTRINSICS_AMX_H_

#include "lib/ukernels.h"

namespace simdattn {

/// What int8_attention() asks for.
struct AmxInt8 {
  static int64_t query_bytes(int64_t dim);
  static int64_t panel_bytes(int64_t dim);
  static int64_t values_bytes(int64_t dim);
  template <class T>
  static void prepare_query(const void* row, void* query, int64_t dim);
  static void pack_keys(const PackKeys& a);
  static void score_packed(const ScoreTile& a);
  static void pack_values(const PackValues& a);
  static void value_packed(const ValueTile& a);
};

template <>
void AmxInt8::prepare_query<float>(const void* row, void* query, int64_t dim);
template <>
void AmxInt8::prepare_query<bf16>(const void* row, void* query, int64_t dim);
template <>
void AmxInt8::prepare_query<f16>(const void* row, void* query, int64_t dim);

}  // namespace simdattn

#endif  // SIMDATTN_LIB_INTRINSICS_AMX_H_
