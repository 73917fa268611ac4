// The rules on structs inside of others, and on what they grow into. Whole arguments may be of other versions: lib/api/sized.h.
#ifndef SIMDATTN_LIB_RULES_INSIDE_H_
#define SIMDATTN_LIB_RULES_INSIDE_H_

#include "lib/rules/views.h"

namespace simdattn {

/// What is inside of another struct has one size, and grows into `reserved`.
#define SIMDATTN_SIZE_INSIDE "inside another struct it is that of this version"
#define SIMDATTN_RESERVED "must be 0"

inline Status check_reserved(const RopeOptions& o) {
  SIMDATTN_REQUIRE((o.reserved[0] | o.reserved[1]) == 0, Code::kStructSize, "options.reserved: " SIMDATTN_RESERVED);
  return {};
}

struct RotationText {
  const char* size;
  const char* reserved;
  const char* options_size;
  const char* options_reserved;
};
#define SIMDATTN_ROTATION_TEXT(name)                                                 \
  {name ".struct_size: " SIMDATTN_SIZE_INSIDE, name ".reserved: " SIMDATTN_RESERVED, \
   name ".options.struct_size: " SIMDATTN_SIZE_INSIDE, name ".options.reserved: " SIMDATTN_RESERVED}

inline Status check_inside(const KeyRotation& r, const RotationText& text) {
  SIMDATTN_REQUIRE(r.struct_size == sizeof r, Code::kStructSize, text.size);
  SIMDATTN_REQUIRE((r.reserved[0] | r.reserved[1]) == 0, Code::kStructSize, text.reserved);
  SIMDATTN_REQUIRE(r.options.struct_size == sizeof r.options, Code::kStructSize, text.options_size);
  SIMDATTN_REQUIRE((r.options.reserved[0] | r.options.reserved[1]) == 0, Code::kStructSize, text.options_reserved);
  return {};
}

}  // namespace simdattn

#endif  // SIMDATTN_LIB_RULES_INSIDE_H_
