#include "lib/rules/views.h"

#include "lib/contract/dtypes.h"

namespace simdattn {

// Sizes are looked at one by one: put together, compilers load two at once, and wait for what the caller has just stored
// one by one.
template <int kRank, bool kConst>
Status check_view(const BasicView<kRank, kConst>& v, Accept accept, const Argument& argument, ByteSet* bytes,
                  Data data) {
  constexpr size_t kLast = kRank - 1;
  bytes->clear();
  const auto type = static_cast<uint32_t>(v.dtype);
  if (type >= 8 || (static_cast<unsigned>(accept) >> type & 1) == 0) return {Code::kDType, argument.dtype};
  bool empty = false;
  for (size_t i = 0; i < kRank; ++i) {
    if (v.shape[i] < 0 || v.shape[i] > kMaxSize) return {Code::kShape, argument.shape};
    empty = empty || v.shape[i] == 0;
  }
  if (!empty) {
    if (v.data == nullptr && data == Data::kNeeded) return {Code::kNullPointer, argument.null};
    if (v.stride[kLast] != 1 && v.shape[kLast] > 1) return {Code::kStride, argument.stride};
  }
  const int64_t size = size_of(v.dtype);
  bytes->restart(v.data, v.shape[kLast] * size);  // where it is: a copy would wait for numbers stored one by one
  bool reaches = true;
  for (size_t i = kLast; i-- > 0;) reaches = reaches && (v.shape[i] == 0 || bytes->add(v.shape[i], v.stride[i], size));
  const bool coincide = reaches && !empty && !kConst && self_overlap(*bytes);
  if (!reaches || coincide || empty || v.data == nullptr) bytes->clear();
  if (!reaches) return {Code::kStride, argument.range};
  return coincide ? Status{Code::kStride, argument.self_overlap} : Status{};
}
#define SIMDATTN_CHECK_VIEW(rank)                                                                          \
  template Status check_view<rank, true>(const ConstView<rank>&, Accept, const Argument&, ByteSet*, Data); \
  template Status check_view<rank, false>(const View<rank>&, Accept, const Argument&, ByteSet*, Data);
SIMDATTN_CHECK_VIEW(1)
SIMDATTN_CHECK_VIEW(2)
SIMDATTN_CHECK_VIEW(3)
SIMDATTN_CHECK_VIEW(4)
SIMDATTN_CHECK_VIEW(5)
#undef SIMDATTN_CHECK_VIEW

}  // namespace simdattn
