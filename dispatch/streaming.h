// Stores that bypass the caches: the CPU does not read a line before it is written, and does not keep it. That saves a
// third of the traffic of a copy, but only where nobody reads the results soon.
// The guard has a name because tests/dispatch/counted.h defines it, and its functions instead of these.
#ifndef SIMDATTN_DISPATCH_STREAMING_H_
#define SIMDATTN_DISPATCH_STREAMING_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace simdattn {

#if defined(__x86_64__)
/// memcpy() past the caches, in pieces of 16 bytes: arrays are seldom aligned to more, and wider stores are not faster,
/// because the pieces of a line meet before they leave the core. What is not a whole aligned piece is stored as ever.
inline void copy_past_caches(void* to, const void* from, size_t bytes) {
  char* y = static_cast<char*>(to);
  const char* x = static_cast<const char*>(from);
  const size_t head = -reinterpret_cast<uintptr_t>(y) % 16;
  if (bytes < head + 16) {
    std::memcpy(y, x, bytes);
    return;
  }
  std::memcpy(y, x, head);
  y += head;
  x += head;
  bytes -= head;
  for (; bytes >= 16; bytes -= 16, y += 16, x += 16) {
    _mm_stream_si128(reinterpret_cast<__m128i*>(y), _mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
  }
  std::memcpy(y, x, bytes);
}

/// Orders them before all stores that follow: another thread that sees one of these sees what was copied.
inline void order_copies_past_caches() { _mm_sfence(); }
#else
inline void copy_past_caches(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }
inline void order_copies_past_caches() {}
#endif

}  // namespace simdattn

#endif  // SIMDATTN_DISPATCH_STREAMING_H_
