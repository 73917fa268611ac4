// Rows of f32 into the types and layouts that keys and values are stored in, and back.
#include <cstring>
#include <type_traits>

#include "lib/panel_columns.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/store.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/loads-inl.h"
#include "lib/highway/slots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;

/// Dimensions of 32 tokens that are converted and then transposed: 8 or 16 KiB, which stay in L1.
constexpr int64_t kStep = 128;

template <class T>
HWY_NOINLINE void Narrow(const char* in, T* out, int64_t n) {
  const D d;
  const float* x = reinterpret_cast<const float*>(in);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) StoreRounded(d, hn::LoadU(d, x + i), out + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    StoreRoundedN(d, hn::LoadN(d, x + i, rest), out + i, rest);
  }
}
template <class T>
HWY_NOINLINE void Widen(const T* in, char* out, int64_t n) {
  const D d;
  float* y = reinterpret_cast<float*>(out);
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(LoadWide(d, in + i), d, y + i);
  if (i < n) {
    const size_t rest = static_cast<size_t>(n - i);
    hn::StoreN(LoadWideN(d, in + i, rest), d, y + i, rest);
  }
}

template <class T>
HWY_INLINE void Rows(const StoreRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.rows) + t * a.ld;
    char* const to = static_cast<char*>(a.out) + t * a.stride;
    if (a.as_stored) {
      std::memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      Narrow(from, reinterpret_cast<T*>(to), a.dim);
    }
  }
}

template <class T>
HWY_INLINE void Panels(const StoreRows& a) {
  for_each_panel(a.column, a.tokens, [&](int64_t panel, int64_t column, int64_t n, int64_t done) HWY_ATTR {
    const char* const rows = static_cast<const char*>(a.rows) + done * a.ld;
    char* const to = static_cast<char*>(a.out) + panel * a.stride;
    if (a.as_stored) {
      rows_to_columns<T>(rows, a.ld, n, a.dim, to, column);
      return;
    }
    HWY_ALIGN T copy[kPanelWidth * kStep];
    for (int64_t d = 0; d < a.dim; d += kStep) {
      const int64_t count = HWY_MIN(kStep, a.dim - d);
      for (int64_t t = 0; t < n; ++t) Narrow(rows + t * a.ld + 4 * d, copy + t * kStep, count);
      rows_to_columns<T>(reinterpret_cast<const char*>(copy), kStep * sizeof(T), n, count,
                         to + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column);
    }
  });
}

template <class T>
HWY_INLINE void Rows(const LoadRows& a) {
  for (int64_t t = 0; t < a.tokens; ++t) {
    const char* const from = static_cast<const char*>(a.in) + t * a.stride;
    char* const to = static_cast<char*>(a.rows) + t * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      std::memcpy(to, from, static_cast<size_t>(a.dim) * sizeof(T));
    } else {
      Widen(reinterpret_cast<const T*>(from), to, a.dim);
    }
  }
}

template <class T>
HWY_INLINE void Panels(const LoadRows& a) {
  for_each_panel(a.column, a.tokens, [&](int64_t panel, int64_t column, int64_t n, int64_t done) HWY_ATTR {
    const char* const from = static_cast<const char*>(a.in) + panel * a.stride;
    char* const rows = static_cast<char*>(a.rows) + done * a.ld;
    if (a.as_stored || std::is_same_v<T, float>) {
      columns_to_rows<T>(from, column, n, a.dim, rows, a.ld);
      return;
    }
    HWY_ALIGN T copy[kPanelWidth * kStep];
    for (int64_t d = 0; d < a.dim; d += kStep) {
      const int64_t count = HWY_MIN(kStep, a.dim - d);
      columns_to_rows<T>(from + d * kPanelWidth * static_cast<int64_t>(sizeof(T)), column, n, count,
                         reinterpret_cast<char*>(copy), kStep * sizeof(T));
      for (int64_t t = 0; t < n; ++t) Widen(copy + t * kStep, rows + t * a.ld + 4 * d, count);
    }
  });
}

}  // namespace

void StoreRowsF32(const StoreRows& a) { Rows<float>(a); }
void StoreRowsBF16(const StoreRows& a) { Rows<bf16>(a); }
void StoreRowsF16(const StoreRows& a) { Rows<f16>(a); }
void StorePanelsF32(const StoreRows& a) { Panels<float>(a); }
void StorePanelsBF16(const StoreRows& a) { Panels<bf16>(a); }
void StorePanelsF16(const StoreRows& a) { Panels<f16>(a); }
void LoadRowsF32(const LoadRows& a) { Rows<float>(a); }
void LoadRowsBF16(const LoadRows& a) { Rows<bf16>(a); }
void LoadRowsF16(const LoadRows& a) { Rows<f16>(a); }
void LoadPanelsF32(const LoadRows& a) { Panels<float>(a); }
void LoadPanelsBF16(const LoadRows& a) { Panels<bf16>(a); }
void LoadPanelsF16(const LoadRows& a) { Panels<f16>(a); }

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
