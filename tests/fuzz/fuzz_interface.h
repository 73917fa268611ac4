// What a fuzzer of the C functions works with: its input, blocks of memory, and a call on two targets.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simdattn/simdattn_c.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#include <sanitizer/asan_interface.h>
#endif
#if __has_feature(memory_sanitizer)
#include <sanitizer/msan_interface.h>
#define SIMDATTN_UNINITIALISED(data, bytes) __msan_poison(data, bytes)
#endif
#endif
#ifndef SIMDATTN_UNINITIALISED
#define SIMDATTN_UNINITIALISED(data, bytes) static_cast<void>(0)
#endif
#ifndef ASAN_POISON_MEMORY_REGION
#define ASAN_POISON_MEMORY_REGION(data, bytes) static_cast<void>(0)
#define ASAN_UNPOISON_MEMORY_REGION(data, bytes) static_cast<void>(0)
#endif

namespace simdattn::fuzz {

using simdattn::BasicView;
using simdattn::DType;
using simdattn::KvLayout;
using simdattn::KvType;

constexpr int64_t kMostBytes = 1 << 16;     // of an array: larger ones say nothing new
constexpr int64_t kMostElements = 1 << 14;  // the same for arrays that are broadcast, and take time
constexpr int64_t kMaxSize = (int64_t{1} << 30) - 1;

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// ---- The input ------------------------------------------------------------------------------------------------------

/// Bytes of the fuzzer, then zeros: 0 is always the ordinary choice.
struct Input {
  const uint8_t* data;
  size_t left;
  int64_t byte() {
    if (left == 0) return 0;
    --left;
    return *data++;
  }
  int64_t below(int64_t n) { return byte() % n; }
  bool one_in(int64_t n) { return byte() % n == n - 1; }
  /// low .. high, now and then at an edge of vectors and blocks.
  int64_t size(int64_t low, int64_t high) {
    const int64_t b = byte();
    if (b < 160) return low + b % (high - low < 12 ? high - low + 1 : 12);
    static constexpr int64_t kEdges[] = {15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 128, 255, 256, 257, 1024, 1040};
    const int64_t edge = kEdges[b % 16];
    return edge < low ? low : edge > high ? high : edge;
  }
  template <class T, size_t kN>
  T of(const T (&list)[kN]) {
    return list[below(static_cast<int64_t>(kN))];
  }
};

// ---- Memory ---------------------------------------------------------------------------------------------------------

/// A large block, kept from one input to the next: fresh pages took a third of the time. A sanitizer sees where it ends
/// all the same.
struct Kept {
  unsigned char* data = nullptr;
  size_t room = 0;
  unsigned char* take(size_t bytes) {
    ASAN_UNPOISON_MEMORY_REGION(data, room);
    if (bytes >= room) {
      std::free(data);
      room = 2 * bytes + 64;
      data = static_cast<unsigned char*>(std::malloc(room));
    }
    ASAN_POISON_MEMORY_REGION(data + bytes, room - bytes);
    return data;
  }
};
inline Kept kept_workspace, kept_partial, kept_contents;

struct Block {
  unsigned char* data;
  size_t bytes;
  bool output;  // its bytes hold a pattern before the call
  bool changes;
};
struct Memory {
  Block block[40];
  int count = 0;
  bool skip = false;      // an array would be too large: not an input to run
  uint64_t state = 1;     // of the numbers that fill arrays
  int64_t values = 0;     // ordinary, any bits, both
  unsigned char* before;  // what the blocks held, then what the first target made of them
  unsigned char* after;

  unsigned char* add(int64_t bytes, bool output, bool changes) {
    if (bytes > kMostBytes || count == 40) {
      skip = true;
      bytes = 0;
    }
    Block& b = block[count < 40 ? count++ : 39];
    b = {static_cast<unsigned char*>(std::calloc(1, static_cast<size_t>(bytes))), static_cast<size_t>(bytes), output,
         changes};
    return b.data;
  }
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  }
  /// Numbers of so many bytes each.
  void fill(unsigned char* data, int64_t bytes, int64_t size) {
    for (int64_t i = 0; i < bytes; i += 8) {
      uint64_t word = next();
      const bool any = values == 1 || (values == 2 && (word >> 59) == 0);
      if (!any && size == 4)
        word = (word & 0x807FFFFF807FFFFFu) | 0x3E8000003E800000u;  // a quarter to a half, any sign
      if (!any && size == 2) word = (word & 0x80FF80FF80FF80FFu) | 0x3E003E003E003E00u;
      const size_t n = bytes - i < 8 ? static_cast<size_t>(bytes - i) : 8;
      std::memcpy(data + i, &word, n);
    }
  }
  size_t total() const {
    size_t sum = 0;
    for (int i = 0; i < count; ++i) sum += block[i].bytes;
    return sum;
  }
  void save(unsigned char* to) const {
    for (int i = 0; i < count; ++i) {
      if (block[i].bytes > 0) std::memcpy(to, block[i].data, block[i].bytes);
      to += block[i].bytes;
    }
  }
  void restore() const {
    const unsigned char* from = before;
    for (int i = 0; i < count; ++i) {
      if (block[i].bytes > 0) std::memcpy(block[i].data, from, block[i].bytes);
      from += block[i].bytes;
    }
  }
  void pattern(int value) const {
    for (int i = 0; i < count; ++i) {
      if (block[i].output && block[i].bytes > 0) std::memset(block[i].data, value, block[i].bytes);
    }
  }
  ~Memory() {
    for (int i = 0; i < count; ++i) std::free(block[i].data);
  }
};

/// Leaves a pattern where the next call has its variables: what it does not write itself is not the same for both
/// targets.
[[gnu::noinline]] inline void fill_stack(int value) {
  unsigned char bytes[48 << 10];
  std::memset(bytes, value, sizeof(bytes));
  asm volatile("" : : "r"(bytes) : "memory");
}

// ---- One call -------------------------------------------------------------------------------------------------------

/// Members of structs that may be broken.
struct Field {
  void* at;
  int kind;
};
enum Kind { kSize, kStructSize, kEnum, kFlag, kFloat, kDouble, kPointer };

struct Call {
  explicit Call(Input given) : in(given) {}
  Input in;
  Memory memory;
  Field field[320];
  int fields = 0;
  const simdattn_target* target[2];
  simdattn_exec exec;
  uint64_t newer_member[2] = {0, 0};  // what a newer version may have there
  int64_t workspace_less = 0;

  void breakable(void* at, Kind kind) {
    if (fields < 320) field[fields++] = {at, kind};
  }
  template <int kRank, bool kConst>
  void breakable(BasicView<kRank, kConst>& v) {
    for (int64_t& n : v.shape) breakable(&n, kSize);
    for (int64_t& n : v.stride) breakable(&n, kSize);
    breakable(&v.dtype, kEnum);
  }
  void break_some() {
    if (!in.one_in(3)) return;
    for (int64_t n = 1 + in.below(2); n > 0; --n) {
      if (fields == 0) return;
      const Field f = field[(in.byte() << 8 | in.byte()) % fields];
      constexpr int64_t kOne = 1;
      const int64_t sizes[] = {
          -1,           0,          1,          2,          3,          5,         8,        31, 32, 33, 64, kMaxSize,
          kMaxSize + 1, kOne << 31, kOne << 32, kOne << 40, kOne << 62, INT64_MAX, INT64_MIN};
      switch (f.kind) {
        case kSize: {
          int64_t& x = *static_cast<int64_t*>(f.at);
          const int64_t how = in.below(24);
          const uint64_t u = static_cast<uint64_t>(x);
          if (how < 19) x = sizes[how];
          else
            x = static_cast<int64_t>(how == 19   ? u + 1
                                     : how == 20 ? u - 1
                                     : how == 21 ? u + 8
                                     : how == 22 ? u * 2
                                                 : -u);
          break;
        }
        case kStructSize: {
          // A size is a promise: bytes behind a struct may be read, so only `exec`, which has some, claims to be newer.
          size_t& x = *static_cast<size_t*>(f.at);
          const size_t newer = &x == &exec.struct_size ? sizeof exec + 8 * static_cast<size_t>(in.below(3)) : x;
          x = in.of({newer, size_t{0}, size_t{8}, x - 8, x - 1, x + 1, size_t{1} << 17, SIZE_MAX});
          newer_member[1] = static_cast<uint64_t>(in.below(2));
          break;
        }
        case kEnum:
          *static_cast<int32_t*>(f.at) =
              in.of({-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 64, INT32_MAX, INT32_MIN});
          break;
        case kFlag: *static_cast<bool*>(f.at) = in.one_in(2); break;
        case kFloat:
          *static_cast<float*>(f.at) = in.of({0.0f, -1.0f, 0.5f, 1e30f, 3e38f, __builtin_nanf(""), __builtin_inff()});
          break;
        case kDouble:
          *static_cast<double*>(f.at) =
              in.of({0.0, -1.0, 0.5, 1.0, 1e-30, 1e15, 1e300, __builtin_nan(""), __builtin_inf()});
          break;
        default: std::memset(f.at, 0, sizeof(void*)); break;
      }
    }
  }

  /// A shape with strides: contiguous, reversed, with gaps or, of inputs, broadcast.
  template <int kRank, bool kConst>
  void shape(BasicView<kRank, kConst>& v, DType type, const int64_t (&sizes)[kRank]) {
    v.dtype = type;
    int64_t step = 1;
    for (int i = kRank - 1; i >= 0; --i) {
      const size_t d = static_cast<size_t>(i);
      v.shape[d] = sizes[i];
      v.stride[d] = step;
      const int64_t how = i == kRank - 1 ? 0 : in.below(16);
      if (how == 13) v.stride[d] = -step;
      if (how == 14) v.stride[d] = step += in.below(9);
      if (how == 15 && kConst) v.stride[d] = 0;
      else step *= sizes[i] > 0 ? sizes[i] : 1;
    }
    breakable(v);
  }
  /// The bytes from the lowest to the highest address of `count` steps each, and where the first element is; false if
  /// no call may accept it, or if it is too large to try.
  struct Extent {
    int64_t low = 0, high = 0;
    bool refused = false;
    void add(int64_t count, int64_t stride, int64_t unit, bool* skip) {
      if (count <= 1) return;
      const __int128 reach = static_cast<__int128>(count - 1) * stride * unit;
      const __int128 size = reach < 0 ? -reach : reach;
      if (size >> 62 != 0) refused = true;
      else if (size > kMostBytes) *skip = true;
      else (reach < 0 ? low : high) += static_cast<int64_t>(reach);
    }
  };
  /// Gives a view its memory.
  template <int kRank, bool kConst>
  unsigned char* memory_of(BasicView<kRank, kConst>& v, bool changes = !kConst) {
    const int64_t size = v.dtype == DType::kU8                               ? 1
                         : v.dtype == DType::kBF16 || v.dtype == DType::kF16 ? 2
                         : v.dtype == DType::kI64                            ? 8
                                                                             : 4;
    bool refused = false, empty = false, skip = false;
    int64_t elements = 1;
    for (const int64_t n : v.shape) refused = refused || n < 0 || n > kMaxSize, empty = empty || n == 0;
    Extent extent;
    for (size_t i = 0; i < kRank && !refused; ++i) {
      if (i + 1 < kRank && !empty) extent.add(v.shape[i], v.stride[i], size, &skip);
      if (elements <= kMostElements) elements *= v.shape[i] > 0 ? v.shape[i] : 1;
    }
    refused = refused || extent.refused;
    if (!refused && (skip || elements > kMostElements)) memory.skip = true;
    // The last dimension is contiguous or refused.
    int64_t bytes = refused || memory.skip ? size : empty ? 0 : extent.high - extent.low + v.shape[kRank - 1] * size;
    unsigned char* const data = memory.add(bytes, !kConst, changes);
    if (memory.skip) return data;
    memory.fill(data, bytes, size);
    v.data = data - (refused || empty ? 0 : extent.low);
    return data;
  }
  template <class... V>
  void memory_of_all(V&... views) {
    (memory_of(views), ...);
  }
  /// An input that may be of any type, of a type that is seldom wrong.
  DType element() { return in.of({DType::kF32, DType::kBF16, DType::kF16}); }

  /// How many entries a list gets that should have `count`: any few if no call may accept so many.
  int64_t listed(int64_t count) {
    if (count > 64 && count <= kMaxSize) memory.skip = true;
    return count < 0 || count > 64 ? 4 : count;
  }
  int32_t* numbers(int64_t count, int64_t low, int64_t high) {
    count = listed(count);
    int32_t* const data = reinterpret_cast<int32_t*>(memory.add(4 * count, false, false));
    if (memory.skip) return data;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t b = in.byte();
      data[i] = b == 255   ? INT32_MIN
                : b == 254 ? INT32_MAX
                : b == 253 ? -1
                           : static_cast<int32_t>(low + (high < low         ? 0
                                                         : high - low > 255 ? b
                                                                            : b % (high - low + 1)));
    }
    return data;
  }
  /// Where `count` sequences begin and end among `total` tokens; now and then a number is broken.
  int32_t* offsets(int64_t count, int64_t total) {
    count = listed(count);
    int32_t* const ends = reinterpret_cast<int32_t*>(memory.add(4 * (count + 1), false, false));
    if (memory.skip) return ends;
    ends[0] = 0;
    for (int64_t i = 1; i <= count; ++i) {
      const int64_t before = total <= ends[i - 1] ? 0 : total - ends[i - 1];
      ends[i] = static_cast<int32_t>(i == count ? total : ends[i - 1] + in.below(before < 255 ? before + 1 : 256));
    }
    if (in.one_in(16)) ends[in.below(count + 1)] = in.of({-1, INT32_MIN, INT32_MAX, 1});
    return ends;
  }
  float* floats(int64_t count) {
    count = listed(count);
    unsigned char* const data = memory.add(4 * count, false, false);
    if (!memory.skip) memory.fill(data, 4 * count, 4);
    return reinterpret_cast<float*>(data);
  }
  template <int kRank>
  void positions(BasicView<kRank, true>& v, int64_t high) {
    unsigned char* const data = memory_of(v);
    if (memory.skip || (v.dtype != DType::kI32 && v.dtype != DType::kI64)) return;
    const size_t size = v.dtype == DType::kI32 ? 4 : 8;
    for (size_t i = 0; i + size <= memory.block[memory.count - 1].bytes; i += size) {
      const int64_t b = in.byte();
      const int64_t x = b == 255 ? INT32_MIN : b == 254 ? INT32_MAX : b == 253 ? -1 : high > 0 ? b % high : 0;
      std::memcpy(data + i, &x, size);  // little-endian
    }
  }
  void workspace(size_t bytes) {
    if (in.one_in(16) && workspace_less == 0) workspace_less = 1 + in.below(8);
    if (workspace_less < 0) workspace_less = 0;
    if (bytes > static_cast<size_t>(16 * kMostBytes)) {  // of sizes that are refused
      exec.workspace_bytes = SIZE_MAX;
      bytes = 0;
      memory.skip = memory.skip || workspace_less == 0;
    }
    exec.workspace_bytes =
        bytes > static_cast<size_t>(workspace_less) ? bytes - static_cast<size_t>(workspace_less) : 0;
    exec.workspace = kept_workspace.take(exec.workspace_bytes);
  }

  /// `call` on both targets.
  template <class F>
  void compare(F call) {
    if (memory.skip) return;
    const size_t total = memory.total();
    memory.before = kept_contents.take(2 * total);
    memory.after = memory.before + total;
    memory.pattern(0xA5);
    memory.save(memory.before);
    const simdattn_status first = run(call, 0);
    check_constants(first.code == simdattn::Code::kOk);
    memory.save(memory.after);
    memory.restore();
    memory.pattern(0x5A);
    const simdattn_status second = run(call, 1);
    if (first.code != second.code || std::strcmp(first.detail, second.detail) != 0) {
      std::fprintf(stderr, "\"%s\" on %s, \"%s\" on %s\n", first.detail, simdattn_target_name(target[0]), second.detail,
                   simdattn_target_name(target[1]));
      require(false, "two targets disagree about a call");
    }
    const unsigned char* want = memory.after;
    for (int i = 0; i < memory.count; ++i) {
      const Block& b = memory.block[i];
      const bool same = b.bytes == 0 || std::memcmp(b.data, want, b.bytes) == 0;
      for (size_t j = 0; j < b.bytes && !same; ++j) {
        require(b.data[j] == want[j] || (b.output && b.data[j] == 0x5A && want[j] == 0xA5),
                "two targets give other bits");
      }
      want += b.bytes;
    }
  }

 private:
  template <class F>
  simdattn_status run(F call, int which) {
    exec.target = target[which];
    if (exec.workspace_bytes > 0) {
      std::memset(exec.workspace, which == 0 ? 0xFF : 0, exec.workspace_bytes);
      SIMDATTN_UNINITIALISED(exec.workspace, exec.workspace_bytes);
    }
    fill_stack(which == 0 ? 0 : 0xFF);
    const simdattn_status status = call(exec);
    const int32_t code = static_cast<int32_t>(status.code);
    require(code >= 0 && code <= 10 && status.detail != nullptr && (code == 0) == (*status.detail == '\0'),
            "a status that says nothing");
    return status;
  }
  /// Inputs are as they were; outputs too if the call was refused.
  void check_constants(bool accepted) const {
    const unsigned char* was = memory.before;
    for (int i = 0; i < memory.count; ++i) {
      const Block& b = memory.block[i];
      if (!accepted || !b.changes)
        require(b.bytes == 0 || std::memcmp(b.data, was, b.bytes) == 0,
                accepted ? "an input was written" : "a refused call has written");
      was += b.bytes;
    }
  }
};

struct Heads {
  int64_t batch, kv, all;
};
inline Heads heads(Input& in) {
  const int64_t kv = in.size(1, 2);
  return {in.size(1, 3), kv, kv * (1 + in.below(4))};
}

/// Options of scoring for so many sequences; memory comes after breaking.
struct Scoring {
  simdattn_scoring s;
  int64_t present = 0;

  void choose(Call& c, int64_t batch, int64_t all, int64_t n_q, int64_t n_kv);
  void give_memory(Call& c, int64_t sequences, int64_t mask_batch, int64_t all, int64_t n_q, int64_t n_kv);
};

// ---- The functions without stores (fuzz_interface_rows.cc) ----------------------------------------------------------

enum class Score { kProducts, kGaussian, kBilinear, kAdditive };
void scores(Call& c, Score score);
void softmax(Call& c);
void masked_softmax(Call& c);
void weighted_values(Call& c);
void elementwise(Call& c);
void merge(Call& c);
void rope(Call& c, bool direct);
/// What has no target: tables and sizes.
void tables(Call& c);

// ---- Attention with a state (fuzz_interface_state.cc) ---------------------------------------------------------------

void linear_attention(Call& c);
void causal_conv(Call& c);

}  // namespace simdattn::fuzz
