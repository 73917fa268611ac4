// The narrow storage types: rows and panels of codes to f32 and back.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "lib/highway/narrow.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "lib/highway/slots-inl.h"
#include "lib/kv_formats.h"

HWY_BEFORE_NAMESPACE();
namespace simdattn {
namespace HWY_NAMESPACE {

template <KvType kType>
bool AllFiniteNarrow(const FiniteRows& a) {
  return NarrowSlots<kType>::all_finite(a);
}
template <KvType kType>
void StoreRowsNarrow(const StoreRows& a) {
  NarrowSlots<kType>::store_rows(a);
}
template <KvType kType>
void StorePanelsNarrow(const StoreRows& a) {
  NarrowSlots<kType>::store_panels(a);
}
template <KvType kType>
void LoadRowsNarrow(const LoadRows& a) {
  NarrowSlots<kType>::load_rows(a);
}
template <KvType kType>
void LoadPanelsNarrow(const LoadRows& a) {
  NarrowSlots<kType>::load_panels(a);
}
template <KvType kType>
void WidenPanelNarrow(const PackKeys& a) {
  NarrowSlots<kType>::widen_panel(a);
}
template <KvType kType>
void ValueTileNarrow(const ValueTile& a) {
  NarrowSlots<kType>::template value_tile<ValueTileF32>(a);
}

#undef SIMDATTN_READ
#define SIMDATTN_READ(type)                                 \
  template bool AllFiniteNarrow<type>(const FiniteRows& a); \
  template void LoadRowsNarrow<type>(const LoadRows& a);    \
  template void ValueTileNarrow<type>(const ValueTile& a)
#undef SIMDATTN_NARROW
#define SIMDATTN_NARROW(type)                                \
  SIMDATTN_READ(type);                                       \
  template void StoreRowsNarrow<type>(const StoreRows& a);   \
  template void StorePanelsNarrow<type>(const StoreRows& a); \
  template void LoadPanelsNarrow<type>(const LoadRows& a);   \
  template void WidenPanelNarrow<type>(const PackKeys& a)
SIMDATTN_NARROW(KvType::kInt8);
SIMDATTN_NARROW(KvType::kFp8E4M3);
SIMDATTN_NARROW(KvType::kFp8E5M2);
SIMDATTN_NARROW(KvType::kQ8_0);
SIMDATTN_NARROW(KvType::kQ4_0);
SIMDATTN_READ(KvType::kQ4_1);
SIMDATTN_READ(KvType::kQ5_0);
SIMDATTN_READ(KvType::kQ5_1);
SIMDATTN_READ(KvType::kIq4Nl);

}  // namespace HWY_NAMESPACE
}  // namespace simdattn
HWY_AFTER_NAMESPACE();
