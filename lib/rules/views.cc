#include "lib/rules/views.h"

#include "lib/dtypes.h"

namespace simdattn {
namespace {

bool accepted(DType t, Accept accept) {
  return static_cast<uint32_t>(t) < 8 && (static_cast<unsigned>(accept) >> static_cast<uint32_t>(t) & 1) != 0;
}

}  // namespace

template <int kRank, bool kConst>
Status check_view(const BasicView<kRank, kConst>& v, Accept accept, const Argument& argument, ByteSet* bytes,
                  Data data) {
  constexpr int kLast = kRank - 1;
  const int64_t* shape = v.shape.data();
  const int64_t* stride = v.stride.data();
  bytes->clear();
  if (!accepted(v.dtype, accept)) return {Code::kDType, argument.dtype};
  uint64_t sizes = 0;  // one comparison for all: the limit is a power of two less one
  bool empty = false;
  for (int i = 0; i < kRank; ++i) {
    sizes |= static_cast<uint64_t>(shape[i]);
    empty = empty || shape[i] == 0;
  }
  if (sizes > static_cast<uint64_t>(kMaxSize)) return {Code::kShape, argument.shape};
  if (!empty) {
    if (v.data == nullptr && data == Data::kNeeded) return {Code::kNullPointer, argument.null};
    if (stride[kLast] != 1 && shape[kLast] > 1) return {Code::kStride, argument.stride};
  }

  const int64_t size = size_of(v.dtype);
  bytes->restart(&v, shape[kLast] * size);  // any address will do for the strides
  for (int i = kLast - 1; i >= 0; --i) {
    if (shape[i] > 0 && !bytes->add(shape[i], stride[i], size)) {
      bytes->clear();
      return {Code::kStride, argument.range};
    }
  }
  if (empty) {
    bytes->clear();
    return {};
  }
  if (!kConst && self_overlap(*bytes)) {
    bytes->clear();
    return {Code::kStride, argument.self_overlap};
  }
  if (v.data == nullptr) {
    bytes->clear();
  } else {
    bytes->first += reinterpret_cast<uintptr_t>(v.data) - reinterpret_cast<uintptr_t>(&v);
  }
  return {};
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
