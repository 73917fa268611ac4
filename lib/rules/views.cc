#include "lib/rules/views.h"

#include "lib/contract/dtypes.h"

namespace simdattn {
namespace {

bool accepted(DType t, Accept accept) {
  return static_cast<uint32_t>(t) < 8 && (static_cast<unsigned>(accept) >> static_cast<uint32_t>(t) & 1) != 0;
}

/// Every view, in the order of the rules. Small, not fast: good ones that are not empty do not come here.
[[gnu::cold, gnu::noinline]] Status check_any(const void* address, DType dtype, const int64_t* shape,
                                              const int64_t* stride, int rank, bool output, Accept accept,
                                              const Argument& argument, ByteSet* bytes, Data data) {
  const int last = rank - 1;
  bytes->clear();
  if (!accepted(dtype, accept)) return {Code::kDType, argument.dtype};
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    if (shape[i] < 0 || shape[i] > kMaxSize) return {Code::kShape, argument.shape};
    empty = empty || shape[i] == 0;
  }
  if (!empty) {
    if (address == nullptr && data == Data::kNeeded) return {Code::kNullPointer, argument.null};
    if (stride[last] != 1 && shape[last] > 1) return {Code::kStride, argument.stride};
  }
  const int64_t size = size_of(dtype);
  bytes->restart(shape, shape[last] * size);  // any address will do for the strides
  for (int i = last - 1; i >= 0; --i) {
    if (shape[i] > 0 && !bytes->add(shape[i], stride[i], size)) {
      bytes->clear();
      return {Code::kStride, argument.range};
    }
  }
  const bool coincide = !empty && output && self_overlap(*bytes);
  if (empty || coincide || address == nullptr) {
    bytes->clear();
  } else {
    bytes->first += reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(shape);
  }
  return coincide ? Status{Code::kStride, argument.self_overlap} : Status{};
}

/// size_of() of an accepted type, without a branch.
constexpr uint8_t kBytes[] = {4, 2, 2, 1, 4, 8};
static_assert(kBytes[slot(DType::kF32)] == 4 && kBytes[slot(DType::kBF16)] == 2 && kBytes[slot(DType::kF16)] == 2 &&
              kBytes[slot(DType::kU8)] == 1 && kBytes[slot(DType::kI32)] == 4 && kBytes[slot(DType::kI64)] == 8);
/// At least 1, and not too large.
bool is_size(int64_t n) { return static_cast<uint64_t>(n) - 1 < static_cast<uint64_t>(kMaxSize); }

}  // namespace

// Sizes are looked at one by one: put together, compilers load two at once, and wait for what the caller has just stored
// one by one. What is computed stays in registers: `bytes` may be `v` for all that they know.
template <int kRank, bool kConst>
Status check_view(const BasicView<kRank, kConst>& v, Accept accept, const Argument& argument, ByteSet* bytes,
                  Data data) {
  constexpr size_t kLast = kRank - 1;
  const int64_t row = v.shape[kLast];
  bool good = accepted(v.dtype, accept) && v.data != nullptr && is_size(row) && (row == 1 || v.stride[kLast] == 1);
  if (good) [[likely]] {
    const int64_t size = kBytes[slot(v.dtype)];
    ByteExtent extent;
    extent.first = reinterpret_cast<uintptr_t>(v.data);
    extent.span = extent.width = row * size;
    extent.outer = 0;
    extent.nested = true;
    for (size_t i = kLast; good && i-- > 0;) {
      const int64_t n = v.shape[i];
      if (n != 1) good = is_size(n) && extent.add(n, v.stride[i], size, &bytes->dims);
    }
    if (good && (kConst || extent.nested)) [[likely]] {
      static_cast<ByteExtent&>(*bytes) = extent;
      return {};
    }
  }
  return check_any(v.data, v.dtype, v.shape.data(), v.stride.data(), kRank, !kConst, accept, argument, bytes, data);
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
