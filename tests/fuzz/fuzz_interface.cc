// libFuzzer over the C functions, with what tests/support/problems.h never draws: every number of every struct may be broken, sizes of structs
// too. A call is accepted or refused alike on two targets; an accepted one gives the same bits, whatever its outputs and workspace held
// before; a refused one has written nothing and says why. Every array is a block of its own of exactly the bytes that the
// arguments describe, so a sanitizer sees one byte too many. No C++ library beside the headers: MemorySanitizer would have to know it.
//
//   tools/fuzz            a run of every fuzzer, from the corpus in tests/data/fuzz.tar.gz
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

namespace {

using simdattn::BasicView;
using simdattn::DType;
using simdattn::KvLayout;
using simdattn::KvType;

constexpr int64_t kMostBytes = 1 << 16;     // of an array: larger ones say nothing new
constexpr int64_t kMostElements = 1 << 14;  // the same for arrays that are broadcast, and take time
constexpr int64_t kMaxSize = (int64_t{1} << 30) - 1;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

// ---- The input --------------------------------------------------------------------------------------------------------

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

// ---- Memory -------------------------------------------------------------------------------------------------------------

/// A large block, kept from one input to the next: fresh pages took a third of the time. A sanitizer sees where it ends all the same.
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
Kept kept_workspace, kept_partial, kept_contents;

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

/// Leaves a pattern where the next call has its variables: what it does not write itself is not the same for both targets.
[[gnu::noinline]] void fill_stack(int value) {
  unsigned char bytes[48 << 10];
  std::memset(bytes, value, sizeof(bytes));
  asm volatile("" : : "r"(bytes) : "memory");
}

// ---- One call -----------------------------------------------------------------------------------------------------------

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
      static constexpr int64_t kSizes[] = {-1,
                                           0,
                                           1,
                                           2,
                                           3,
                                           5,
                                           8,
                                           31,
                                           32,
                                           33,
                                           64,
                                           kMaxSize,
                                           kMaxSize + 1,
                                           int64_t{1} << 31,
                                           int64_t{1} << 32,
                                           int64_t{1} << 40,
                                           int64_t{1} << 62,
                                           INT64_MAX,
                                           INT64_MIN};
      switch (f.kind) {
        case kSize: {
          int64_t& x = *static_cast<int64_t*>(f.at);
          const int64_t how = in.below(24);
          const uint64_t u = static_cast<uint64_t>(x);
          if (how < 19) x = kSizes[how];
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
  /// The bytes from the lowest to the highest address of `count` steps each, and where the first element is; false if no call
  /// may accept it, or if it is too large to try.
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
      std::fprintf(stderr, "\"%s\" on %s, \"%s\" on %s\n", first.detail, simdattn_name(target[0]), second.detail,
                   simdattn_name(target[1]));
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
Heads heads(Input& in) {
  const int64_t kv = in.size(1, 2);
  return {in.size(1, 3), kv, kv * (1 + in.below(4))};
}

// ---- The functions --------------------------------------------------------------------------------------------------------

enum class Score { kProducts, kGaussian, kBilinear, kAdditive };

void scores(Call& c, Score score) {
  Input& in = c.in;
  const Heads h = heads(in);
  const int64_t n_q = in.size(0, 5), n_kv = in.size(0, 65), d = in.size(1, 65);
  const bool other = score == Score::kBilinear || score == Score::kAdditive;
  const int64_t d_k = other ? in.size(1, 33) : d, e = in.size(1, 33);
  simdattn_const_view4 q, k;
  simdattn_const_view3 m, wq, wk;
  simdattn_const_view2 w;
  simdattn_view4 out;
  c.shape(q, c.element(), {h.batch, h.all, n_q, d});
  c.shape(k, c.element(), {h.batch, h.kv, n_kv, d_k});
  c.shape(out, DType::kF32, {h.batch, h.all, n_q, n_kv});
  simdattn_score_options o;
  o.scale.given = in.one_in(2);
  o.scale.value = 0.25f;
  if (score == Score::kProducts)
    o.arithmetic = in.of({simdattn::Arithmetic::kF32, simdattn::Arithmetic::kBF16, simdattn::Arithmetic::kInt8});
  c.breakable(&o.scale.value, kFloat);
  c.breakable(&o.arithmetic, kEnum);
  c.breakable(&o.struct_size, kStructSize);
  const bool has_wq = in.one_in(2), has_wk = in.one_in(2);
  if (score == Score::kBilinear) c.shape(m, c.element(), {h.all, d, d_k});
  if (score == Score::kAdditive) {
    const int64_t hidden = !has_wq ? d : !has_wk ? d_k : e;
    c.shape(w, DType::kF32, {h.all, hidden});
    if (has_wq) c.shape(wq, c.element(), {h.all, hidden, d});
    if (has_wk) c.shape(wk, c.element(), {h.kv, hidden, d_k});
  }
  c.break_some();
  c.memory_of(q);
  c.memory_of(k);
  c.memory_of(out);
  if (score == Score::kBilinear) c.memory_of(m);
  if (score == Score::kAdditive) {
    c.memory_of(w);
    if (has_wq) c.memory_of(wq);
    if (has_wk) c.memory_of(wk);
  }
  switch (score) {
    case Score::kProducts:
      c.workspace(simdattn_scores_workspace(o.arithmetic, q.shape[3]));
      c.compare([&](const simdattn_exec& exec) { return simdattn_scores(&q, &k, &out, &o, &exec); });
      break;
    case Score::kGaussian:
      c.compare([&](const simdattn_exec& exec) { return simdattn_gaussian_scores(&q, &k, &out, &o, &exec); });
      break;
    case Score::kBilinear:
      c.workspace(simdattn_bilinear_scores_workspace(q.shape[3], k.shape[3]));
      c.compare([&](const simdattn_exec& exec) { return simdattn_bilinear_scores(&q, &m, &k, &out, &o, &exec); });
      break;
    case Score::kAdditive:
      c.workspace(simdattn_additive_scores_workspace(has_wq ? q.shape[3] : 0, has_wk ? k.shape[3] : 0, w.shape[1]));
      c.compare([&](const simdattn_exec& exec) {
        return simdattn_additive_scores(&q, &k, &w, &out, has_wq ? &wq : nullptr, has_wk ? &wk : nullptr, &exec);
      });
      break;
  }
}

void softmax(Call& c) {
  const int64_t rows = c.in.size(0, 9), n = c.in.size(0, 257);
  simdattn_const_view2 x;
  simdattn_view2 out;
  simdattn_view1 lse;
  c.shape(x, DType::kF32, {rows, n});
  c.shape(out, DType::kF32, {rows, n});
  c.shape(lse, DType::kF32, {rows});
  const bool in_place = c.in.one_in(4), with_lse = !c.in.one_in(4);
  c.break_some();
  c.memory_of(x, in_place);
  c.memory_of(out);
  if (with_lse) c.memory_of(lse);
  if (in_place) {
    // Exactly x, or near it.
    const int64_t off = c.in.one_in(8) && x.shape[1] > 0 ? 4 : 0;
    if (off == 0) out.shape = x.shape;
    out.stride = x.stride;
    out.data = const_cast<char*>(static_cast<const char*>(x.data)) + off;
    if (off != 0) out.shape[1] = x.shape[1] - 1;
  }
  c.compare([&](const simdattn_exec& exec) { return simdattn_softmax(&x, &out, with_lse ? &lse : nullptr, &exec); });
}

/// Options of scoring for so many sequences; memory comes after breaking.
struct Scoring {
  simdattn_scoring s;
  int64_t present = 0;

  void choose(Call& c, int64_t batch, int64_t all, int64_t n_q, int64_t n_kv) {
    Input& in = c.in;
    s.scale.given = in.one_in(2);
    s.scale.value = 0.5f;
    if (in.one_in(4)) s.softcap = 3.0f;
    s.causal = in.one_in(2);
    if (in.one_in(3)) s.offset = in.below(40) - 10;
    if (in.one_in(4)) s.window_left = in.below(40);
    if (in.one_in(4)) s.window_right = in.below(40);
    if (in.one_in(6)) s.chunk = 1 + in.below(40);
    present = in.byte();
    if (in.one_in(4)) c.shape(s.bias, c.element(), {in.one_in(3) ? 1 : batch, in.one_in(3) ? 1 : all, n_q, n_kv});
    if (in.one_in(4)) c.shape(s.keep, DType::kU8, {in.one_in(3) ? 1 : batch, in.one_in(3) ? 1 : all, n_q, n_kv});
    if (in.one_in(4)) {
      s.bits.columns = n_kv == 0 ? 0 : in.below(n_kv + 1);
      const int64_t row = (s.bits.columns + 7) / 8;
      s.bits.stride[2] = row;
      s.bits.stride[1] = in.one_in(2) ? 0 : row * n_q;
      s.bits.stride[0] = in.one_in(2) ? 0 : row * n_q * all;
      c.breakable(&s.bits.columns, kSize);
      for (int64_t& n : s.bits.stride) c.breakable(&n, kSize);
    }
    c.breakable(&s.struct_size, kStructSize);
    c.breakable(&s.scale.value, kFloat);
    c.breakable(&s.softcap, kFloat);
    for (int64_t* n : {&s.offset, &s.window_left, &s.window_right, &s.chunk}) c.breakable(n, kSize);
    c.breakable(&s.reserved[1], kSize);
  }
  void give_memory(Call& c, int64_t sequences, int64_t mask_batch, int64_t all, int64_t n_q, int64_t n_kv) {
    if (present & 1) s.offsets = c.numbers(sequences, -5, 30);
    if (present & 2) s.prefix_end = c.numbers(sequences, 0, 30);
    if (present & 4) s.kv_start = c.numbers(sequences, 0, 20);
    if (present & 8) s.kv_length = c.numbers(sequences, 0, n_kv < 0 || n_kv > 2000 ? 0 : n_kv);
    if (present & 16) s.alibi_slopes = c.floats(all);
    if (present & 32) s.sinks = c.floats(all);
    if (s.bias.shape[3] != 0) {
      c.memory_of(s.bias);
      if (present & 64) s.bias_scale = c.floats(all);
    }
    if (s.keep.shape[3] != 0) c.memory_of(s.keep);
    if (s.bits.columns > 0 && s.bits.columns <= 4096 && mask_batch >= 0 && all >= 0 && n_q >= 0 && mask_batch <= 64 &&
        all <= 64 && n_q <= 64) {
      Call::Extent extent;
      bool skip = false;
      const int64_t counts[] = {mask_batch, all, n_q};
      for (size_t i = 0; i < 3; ++i) extent.add(counts[i], s.bits.stride[i], 1, &skip);
      if (skip && !extent.refused) c.memory.skip = true;
      const int64_t bytes = extent.refused || c.memory.skip ? 1 : extent.high - extent.low + (s.bits.columns + 7) / 8;
      unsigned char* const data = c.memory.add(bytes, false, false);
      if (c.memory.skip) return;
      c.memory.fill(data, bytes, 1);
      s.bits.data = data - (extent.refused ? 0 : extent.low);
    }
  }
};

void masked_softmax(Call& c) {
  const int64_t batch = c.in.size(1, 2), all = c.in.size(1, 4), n_q = c.in.size(0, 5), n_kv = c.in.size(0, 100);
  simdattn_const_view4 x;
  simdattn_view4 out;
  simdattn_view3 lse;
  c.shape(x, DType::kF32, {batch, all, n_q, n_kv});
  c.shape(out, DType::kF32, {batch, all, n_q, n_kv});
  c.shape(lse, DType::kF32, {batch, all, n_q});
  Scoring scoring;
  scoring.choose(c, batch, all, n_q, n_kv);
  c.break_some();
  c.memory_of(x);
  c.memory_of(out);
  c.memory_of(lse);
  scoring.give_memory(c, x.shape[0], x.shape[0], x.shape[1], x.shape[2], x.shape[3]);
  c.compare([&](const simdattn_exec& exec) { return simdattn_masked_softmax(&x, &out, &scoring.s, &lse, &exec); });
}

void weighted_values(Call& c) {
  const Heads h = heads(c.in);
  const int64_t n_q = c.in.size(0, 5), n_kv = c.in.size(0, 65), d = c.in.size(1, 65);
  simdattn_const_view4 p, v;
  simdattn_view4 out;
  c.shape(p, DType::kF32, {h.batch, h.all, n_q, n_kv});
  c.shape(v, c.element(), {h.batch, h.kv, n_kv, d});
  c.shape(out, c.element(), {h.batch, h.all, n_q, d});
  simdattn_value_options o;
  o.arithmetic = c.in.of({simdattn::Arithmetic::kF32, simdattn::Arithmetic::kBF16, simdattn::Arithmetic::kInt8});
  c.breakable(&o.arithmetic, kEnum);
  c.breakable(&o.struct_size, kStructSize);
  c.break_some();
  c.memory_of(p);
  c.memory_of(v);
  c.memory_of(out);
  c.workspace(simdattn_weighted_values_workspace(o.arithmetic, v.shape[3]));
  c.compare([&](const simdattn_exec& exec) { return simdattn_weighted_values(&p, &v, &out, &o, &exec); });
}

void elementwise(Call& c) {
  const bool add = c.in.one_in(2);
  const int64_t batch = c.in.size(1, 2), all = c.in.size(1, 3), n = c.in.size(0, 9), d = c.in.size(1, 129);
  simdattn_const_view4 x, p;
  simdattn_view4 out;
  c.shape(x, c.element(), {batch, all, n, d});
  c.shape(p, c.element(), {batch, all, n, d});
  c.shape(out, c.element(), {batch, all, n, d});
  int64_t block = c.in.of<int64_t>({0, 1, 2, 4, 8, 16, 32, 64});
  c.breakable(&block, kSize);
  c.break_some();
  c.memory_of(x);
  c.memory_of(p);
  c.memory_of(out);
  c.compare([&](const simdattn_exec& exec) {
    return add ? simdattn_add_rows(&x, &p, &out, &exec) : simdattn_hadamard(&x, &out, block, &exec);
  });
}

void merge(Call& c) {
  const int64_t parts = c.in.size(0, 4), batch = c.in.size(1, 2), all = c.in.size(1, 3), n = c.in.size(0, 4),
                d = c.in.size(1, 65);
  simdattn_const_view5 x;
  simdattn_const_view4 part_lse;
  simdattn_view4 out;
  simdattn_view3 lse;
  c.shape(x, c.element(), {parts, batch, all, n, d});
  c.shape(part_lse, DType::kF32, {parts, batch, all, n});
  c.shape(out, c.element(), {batch, all, n, d});
  c.shape(lse, DType::kF32, {batch, all, n});
  const bool with_lse = c.in.one_in(2), with_sinks = c.in.one_in(2);
  c.break_some();
  c.memory_of(x);
  c.memory_of(part_lse);
  c.memory_of(out);
  if (with_lse) c.memory_of(lse);
  const float* const sinks = with_sinks ? c.floats(x.shape[2]) : nullptr;
  c.compare([&](const simdattn_exec& exec) {
    return simdattn_attention_merge(&x, &part_lse, &out, with_lse ? &lse : nullptr, sinks, &exec);
  });
}

// ---- Rotary positions -----------------------------------------------------------------------------------------------------

struct Table {
  simdattn_rope_table_options o;
  int64_t present = 0;
  void choose(Call& c, int64_t pairs) {
    Input& in = c.in;
    o.rope_type = static_cast<simdattn::RopeType>(in.below(7));
    o.factor = in.of({0.0, 1.0, 2.5, 8.0});
    o.original_max_position_embeddings = in.of<int64_t>({0, 32, 4096});
    o.max_position_embeddings = in.of<int64_t>({0, 64, 8192});
    o.seq_len = in.of<int64_t>({0, 10, 100000});
    o.truncate = !in.one_in(2);
    o.f32_angles = in.one_in(2);
    o.partial_rotary_factor = in.of({1.0, 0.5, 0.25});
    o.mscale = in.of({0.0, 1.0});
    o.mscale_all_dim = in.of({0.0, 0.7});
    o.attention_factor.given = in.one_in(3);
    o.attention_factor.value = 1.25;
    o.mrope_layout = static_cast<simdattn::MropeLayout>(in.below(3));
    if (in.one_in(3)) {
      o.mrope_section[0] = pairs / 3;
      o.mrope_section[1] = pairs / 3;
      o.mrope_section[2] = pairs - 2 * (pairs / 3);
    }
    present = in.byte();
    for (simdattn_doubles* list : {&o.short_factor, &o.long_factor, &o.freq_factors, &o.inv_freq}) list->size = pairs;
    c.breakable(&o.struct_size, kStructSize);
    c.breakable(&o.rope_type, kEnum);
    c.breakable(&o.mrope_layout, kEnum);
    for (double* x : {&o.rope_theta, &o.factor, &o.beta_fast, &o.beta_slow, &o.mscale, &o.mscale_all_dim,
                      &o.low_freq_factor, &o.high_freq_factor, &o.partial_rotary_factor, &o.attention_factor.value}) {
      c.breakable(x, kDouble);
    }
    for (int64_t* x : {&o.original_max_position_embeddings, &o.max_position_embeddings, &o.seq_len})
      c.breakable(x, kSize);
    for (int64_t& x : o.mrope_section) c.breakable(&x, kSize);
  }
  void give_memory(Call& c) {
    int64_t bit = 1;
    for (simdattn_doubles* list : {&o.short_factor, &o.long_factor, &o.freq_factors, &o.inv_freq}) {
      const bool there = (present & bit) != 0 || (o.rope_type == simdattn::RopeType::kLongRope && bit < 4);
      bit *= 2;
      if (!there) {
        *list = {};
        continue;
      }
      double* const data = reinterpret_cast<double*>(c.memory.add(8 * list->size, false, false));
      if (c.memory.skip) return;
      for (int64_t i = 0; i < list->size; ++i)
        data[i] = c.in.of({1.0, 0.5, 2.0, 1.5, 1.0, 0.25, -1.0, __builtin_nan("")});
      list->data = data;
    }
  }
};

void rope(Call& c, bool direct) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), all = in.size(1, 4), n = in.size(0, 9), d = in.size(1, 66),
                rows = in.size(1, 20);
  int64_t pairs = d < 2 ? 0 : in.one_in(3) ? 1 + in.below(d / 2) : d / 2;
  simdattn_const_view4 x;
  simdattn_view4 out;
  simdattn_const_view2 cos, sin, at2;
  simdattn_const_view3 at3;
  c.shape(x, c.element(), {batch, all, n, d});
  c.shape(out, c.element(), {batch, all, n, d});
  simdattn_rope_options o;
  o.pairing = in.of({simdattn::RopePairing::kHalfSplit, simdattn::RopePairing::kInterleaved});
  o.inverse = in.one_in(2);
  if (in.one_in(4)) o.first_dim = d - 2 * pairs;
  if (in.one_in(4)) o.start = in.below(12);
  c.breakable(&o.struct_size, kStructSize);
  c.breakable(&o.pairing, kEnum);
  c.breakable(&o.first_dim, kSize);
  c.breakable(&o.start, kSize);
  c.breakable(&o.reserved[0], kSize);
  const bool with_positions = in.one_in(2);
  const DType index = in.one_in(2) ? DType::kI64 : DType::kI32;
  Table table;
  if (direct) {
    table.choose(c, pairs);
    c.breakable(&pairs, kSize);
    if (with_positions) c.shape(at3, index, {batch, in.one_in(3) ? 3 : 1, n});
  } else {
    c.shape(cos, DType::kF32, {rows, pairs});
    c.shape(sin, DType::kF32, {rows, pairs});
    if (with_positions) c.shape(at2, index, {batch, n});
  }
  c.break_some();
  c.memory_of(x);
  c.memory_of(out);
  if (direct) {
    table.give_memory(c);
    if (with_positions) c.positions(at3, 100);
    c.workspace(simdattn_rope_direct_workspace(pairs));
    c.compare([&](const simdattn_exec& exec) {
      return simdattn_rope_direct(&x, pairs, &table.o, with_positions ? &at3 : nullptr, &out, &o, &exec);
    });
  } else {
    c.memory_of(cos);
    c.memory_of(sin);
    if (with_positions) c.positions(at2, cos.shape[0]);
    c.compare([&](const simdattn_exec& exec) {
      return simdattn_rope(&x, &cos, &sin, with_positions ? &at2 : nullptr, &out, &o, &exec);
    });
  }
}

/// What has no target: tables and sizes.
void tables(Call& c) {
  Input& in = c.in;
  int64_t pairs = in.size(0, 33), rows = in.size(0, 9), first = in.below(30), count = in.size(1, 40);
  Table table;
  table.choose(c, pairs);
  simdattn_view2 cos, sin, out;
  simdattn_const_view2 positions;
  simdattn_const_view1 at;
  const int64_t which = in.below(4);
  const bool with_positions = in.one_in(2);
  const DType index = in.one_in(2) ? DType::kI64 : DType::kI32;
  double base = 10000;
  c.breakable(&first, kSize);
  if (which == 0) {
    c.shape(cos, DType::kF32, {rows, pairs});
    c.shape(sin, DType::kF32, {rows, pairs});
    if (with_positions) c.shape(positions, index, {in.one_in(3) ? 3 : 1, rows});
  } else if (which == 1) {
    c.shape(out, DType::kF32, {rows, 2 * pairs});
    c.breakable(&base, kDouble);
    if (with_positions) c.shape(at, index, {rows});
  } else if (which == 2) {
    c.breakable(&pairs, kSize);
  } else {
    c.breakable(&count, kSize);
  }
  c.break_some();
  table.give_memory(c);
  switch (which) {
    case 0:
      c.memory_of(cos);
      c.memory_of(sin);
      if (with_positions) c.positions(positions, 200);
      c.compare([&](const simdattn_exec&) {
        return simdattn_rope_table(&cos, &sin, &table.o, with_positions ? &positions : nullptr, first);
      });
      break;
    case 1:
      c.memory_of(out);
      if (with_positions) c.positions(at, 200);
      c.compare([&](const simdattn_exec&) {
        return simdattn_sinusoidal_table(&out, base, with_positions ? &at : nullptr, first);
      });
      break;
    case 2: {
      if (pairs > 1000 && pairs <= kMaxSize) return;
      double* const to = reinterpret_cast<double*>(c.memory.add(pairs < 0 || pairs > 1000 ? 8 : 8 * pairs, true, true));
      double factor = 0;
      c.compare([&](const simdattn_exec&) { return simdattn_rope_frequencies(to, pairs, &factor, &table.o); });
      break;
    }
    default: {
      if (count > 1000 && count <= kMaxSize) return;
      float* const to = reinterpret_cast<float*>(c.memory.add(count < 0 || count > 1000 ? 4 : 4 * count, true, true));
      c.compare([&](const simdattn_exec&) { return simdattn_alibi_slopes(count, to); });
    }
  }
}

// ---- Keys and values ------------------------------------------------------------------------------------------------------

template <class Kv>
void choose_kv(Call& c, Kv& kv, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, bool panels_too,
               bool ring_too) {
  Input& in = c.in;
  kv.type = static_cast<KvType>(in.below(12));
  const bool blocks = kv.type >= KvType::kQ8_0;
  if (blocks && dim % 32 != 0) kv.type = static_cast<KvType>(in.below(6));
  kv.batch = batch;
  kv.heads = heads;
  kv.tokens = tokens;
  kv.dim = dim;
  const bool panels = panels_too && kv.type <= KvType::kQ4_0 && in.one_in(2);
  if (panels) kv.layout = KvLayout::kPanels;
  int64_t held = tokens, entries = batch;
  const int64_t form = in.below(4);
  if (form == 2) {
    kv.page_size = panels ? 32 * (1 + in.below(2)) : 1 + in.below(40);
    kv.n_pages = batch * ((tokens + kv.page_size - 1) / kv.page_size) + in.below(2);
    held = kv.page_size;
    entries = kv.n_pages;
    if (in.one_in(3)) kv.block_table_stride = (tokens + kv.page_size - 1) / kv.page_size + in.below(3);
  } else if (form == 3 && ring_too) {
    kv.ring = panels ? 32 * (1 + in.below(2)) : 1 + in.below(70);
    held = kv.ring;
  }
  if (in.one_in(4)) kv.length = tokens == 0 ? 0 : in.below(tokens + 1);
  const int64_t unit = panels ? simdattn_panel_bytes(kv.type, dim) : simdattn_row_bytes(kv.type, dim);
  const int64_t units = panels ? (held + 31) / 32 : held;
  const int64_t element = kv.type == KvType::kF32 ? 4 : 2;
  kv.token_stride = unit + (in.one_in(4) ? element * in.below(4) : 0);
  kv.head_stride = kv.token_stride * units;
  kv.batch_stride = kv.head_stride * heads;
  if (!panels && in.one_in(4)) {
    kv.head_stride = unit;
    kv.token_stride = unit * heads;
    kv.batch_stride = kv.token_stride * held;
  }
  kv.scale_token_stride = in.one_in(4) && kv.type != KvType::kInt8 ? 0 : 4;
  kv.scale_head_stride = 4 * held;
  kv.scale_batch_stride = 4 * held * heads;
  static_cast<void>(entries);
  c.breakable(&kv.struct_size, kStructSize);
  c.breakable(&kv.type, kEnum);
  c.breakable(&kv.layout, kEnum);
  for (int64_t* n : {&kv.batch, &kv.heads, &kv.tokens, &kv.length, &kv.dim, &kv.batch_stride, &kv.head_stride,
                     &kv.token_stride, &kv.scale_batch_stride, &kv.scale_head_stride, &kv.scale_token_stride,
                     &kv.block_table_stride, &kv.page_size, &kv.n_pages, &kv.ring}) {
    c.breakable(n, kSize);
  }
  c.breakable(&kv.reserved[2], kSize);
}

template <class Kv>
void memory_of(Call& c, Kv& kv, bool changes, bool by_slot = false) {
  Memory& m = c.memory;
  const auto bad = [](int64_t n) { return n < 0 || n > kMaxSize; };
  const bool refused =
      kv.struct_size != sizeof kv || bad(kv.dim) || bad(kv.batch) || bad(kv.heads) || bad(kv.tokens) || bad(kv.ring) ||
      bad(kv.page_size) || bad(kv.n_pages) || (kv.layout != KvLayout::kRows && kv.layout != KvLayout::kPanels) ||
      static_cast<uint32_t>(kv.type) > 11 || kv.block_table_stride < -1 || kv.block_table_stride > kMaxSize;
  if (refused) {
    kv.data = m.add(4, false, changes);
    return;
  }
  if (kv.dim > 4096 || kv.batch > 64 || kv.heads > 64 || kv.tokens > 2048 || kv.page_size > 4096 || kv.n_pages > 4096 ||
      kv.ring > 4096) {
    m.skip = true;
    return;
  }
  const bool panels = kv.layout == KvLayout::kPanels, paged = kv.page_size > 0;
  const int64_t held = paged ? kv.page_size : kv.ring > 0 && kv.ring < kv.tokens ? kv.ring : kv.tokens;
  const int64_t entries = paged ? kv.n_pages : kv.batch;
  const int64_t units = panels ? (held + 31) / 32 : held;
  const bool empty = units == 0 || entries == 0 || kv.heads == 0 || (kv.tokens == 0 && !by_slot);
  Call::Extent extent, scales;
  bool skip = false;
  const int64_t unit = panels ? simdattn_panel_bytes(kv.type, kv.dim) : simdattn_row_bytes(kv.type, kv.dim);
  extent.add(units, kv.token_stride, 1, &skip);
  extent.add(kv.heads, kv.head_stride, 1, &skip);
  extent.add(entries, kv.batch_stride, 1, &skip);
  const bool has_scales = simdattn_has_scales(kv.type) && (kv.type == KvType::kInt8 || !c.in.one_in(3));
  if (has_scales) {
    scales.add(held, kv.scale_token_stride, 1, &skip);
    scales.add(kv.heads, kv.scale_head_stride, 1, &skip);
    scales.add(entries, kv.scale_batch_stride, 1, &skip);
  }
  if (empty) skip = false;
  const bool too_far = extent.refused || scales.refused;
  if (skip && !too_far) m.skip = true;
  if (m.skip) return;
  const int64_t bytes = empty ? 0 : too_far ? 4 : extent.high - extent.low + unit;
  unsigned char* const data = m.add(bytes, false, changes);
  if (m.skip) return;
  m.fill(data, bytes, kv.type == KvType::kF32 ? 4 : 2);
  kv.data = data - (too_far || empty ? 0 : extent.low);
  if (has_scales) {
    const int64_t scale_bytes = empty ? 0 : too_far ? 4 : scales.high - scales.low + 4;
    unsigned char* const data_scales = m.add(scale_bytes, false, changes);
    if (m.skip) return;
    m.fill(data_scales, scale_bytes, 4);
    kv.scales = reinterpret_cast<float*>(data_scales - (too_far || empty ? 0 : scales.low));
  }
  if (paged && !c.in.one_in(16)) {
    const int64_t per = (kv.tokens + kv.page_size - 1) / kv.page_size;
    const int64_t stride = kv.block_table_stride < 0 ? per : kv.block_table_stride;
    if (kv.batch > 0 && (kv.batch - 1) * stride + per > 4096) {
      m.skip = true;
      return;
    }
    const int64_t count = kv.batch == 0 ? 0 : (kv.batch - 1) * stride + per;
    int32_t* const table = reinterpret_cast<int32_t*>(m.add(4 * count, false, false));
    if (m.skip) return;
    const int64_t wrong = c.in.one_in(8) ? c.in.below(64) : -1;
    const bool shared = c.in.one_in(8);  // a page twice, as a common prefix
    for (int64_t i = 0; i < count; ++i) {
      table[i] = kv.n_pages == 0 ? 0 : static_cast<int32_t>((shared ? i / 2 : i) % kv.n_pages);
      if (i == wrong) table[i] = c.in.of({-1, INT32_MIN, INT32_MAX, static_cast<int32_t>(kv.n_pages)});
    }
    kv.block_table = table;
  }
}

void kv_append(Call& c) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), heads = in.size(1, 3), n = in.size(0, 40), tokens = in.size(0, 70),
                d = in.one_in(3) ? 32 : in.size(1, 40);
  const int64_t rows = in.size(1, 70), pairs = d < 2 ? 0 : in.one_in(3) ? 1 + in.below(d / 2) : d / 2;
  simdattn_const_view4 x;
  simdattn_kv kv;
  simdattn_const_view2 at;
  simdattn_append_options o;
  c.shape(x, c.element(), {batch, heads, n, d});
  choose_kv(c, kv, batch, heads, tokens, d, true, true);
  const bool with_positions = in.one_in(2), with_slots = in.one_in(5), rotate = in.one_in(2);
  const int64_t present = in.byte();
  const DType index = in.one_in(2) ? DType::kI64 : DType::kI32;
  if (with_positions) c.shape(at, index, {batch, n});
  if (with_slots) c.shape(o.slots, index, {batch, n});
  if (rotate) {
    c.shape(o.rope.cos, DType::kF32, {rows, pairs});
    c.shape(o.rope.sin, DType::kF32, {rows, pairs});
    o.rope.options.pairing = in.of({simdattn::RopePairing::kHalfSplit, simdattn::RopePairing::kInterleaved});
    if (in.one_in(4)) o.rope.options.first_dim = d - 2 * pairs;
    c.breakable(&o.rope.options.pairing, kEnum);
    c.breakable(&o.rope.options.first_dim, kSize);
  }
  if (in.one_in(4)) o.rope.hadamard_block = in.of<int64_t>({1, 2, 4, 8, 32});
  if (in.one_in(2) && tokens > 0) o.start = in.below(tokens);
  for (size_t* size : {&o.struct_size, &o.rope.struct_size, &o.rope.options.struct_size})
    c.breakable(size, kStructSize);
  c.breakable(&o.rope.reserved[1], kSize);
  c.breakable(&o.rope.hadamard_block, kSize);
  c.breakable(&o.start, kSize);
  c.break_some();
  c.memory_of(x);
  memory_of(c, kv, true, with_slots);
  if (c.memory.skip) return;
  if (with_positions) c.positions(at, kv.tokens);
  if (with_slots) c.positions(o.slots, kv.n_pages * kv.page_size);
  if (rotate) {
    c.memory_of(o.rope.cos);
    c.memory_of(o.rope.sin);
  }
  if (present & 1) o.starts = c.numbers(x.shape[0], 0, kv.tokens);
  if (present & 2) o.counts = c.numbers(x.shape[0], 0, n);
  c.compare([&](const simdattn_exec& exec) {
    return simdattn_kv_append(&x, with_positions ? &at : nullptr, &kv, &o, &exec);
  });
}

void kv_shift(Call& c) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), heads = in.size(1, 3), tokens = in.size(0, 70),
                d = in.one_in(3) ? 32 : in.size(1, 40);
  const int64_t rows = in.size(1, 70), pairs = d < 2 ? 0 : in.one_in(3) ? 1 + in.below(d / 2) : d / 2;
  simdattn_kv kv;
  simdattn_key_rotation o;
  choose_kv(c, kv, batch, heads, tokens, d, true, true);
  int64_t first = in.below(tokens + 1), last = first + in.below(tokens - first + 1),
          delta = in.one_in(2) ? -in.below(first + 1) : in.below(tokens - last + 1);
  const bool rotate = in.one_in(2);
  if (rotate) {
    c.shape(o.cos, DType::kF32, {rows, pairs});
    c.shape(o.sin, DType::kF32, {rows, pairs});
    o.options.pairing = in.of({simdattn::RopePairing::kHalfSplit, simdattn::RopePairing::kInterleaved});
    c.breakable(&o.options.pairing, kEnum);
    c.breakable(&o.options.first_dim, kSize);
  }
  if (in.one_in(4)) o.hadamard_block = in.of<int64_t>({1, 2, 4, 8, 32});
  for (size_t* size : {&o.struct_size, &o.options.struct_size}) c.breakable(size, kStructSize);
  for (int64_t* x : {&first, &last, &delta, &o.hadamard_block}) c.breakable(x, kSize);
  c.break_some();
  memory_of(c, kv, true);
  if (c.memory.skip) return;
  if (rotate) {
    c.memory_of(o.cos);
    c.memory_of(o.sin);
  }
  c.compare([&](const simdattn_exec& exec) { return simdattn_kv_shift(&kv, first, last, delta, &o, &exec); });
}

void dequantise(Call& c) {
  Input& in = c.in;
  const int64_t batch = in.size(1, 2), heads = in.size(1, 3), tokens = in.size(0, 70),
                d = in.one_in(3) ? 64 : in.size(1, 40);
  simdattn_const_kv kv{};
  simdattn_view4 out;
  choose_kv(c, kv, batch, heads, tokens, d, true, true);
  int64_t first = in.below(tokens + 1);
  c.shape(out, DType::kF32, {batch, heads, in.below(tokens - first + 1), d});
  c.breakable(&first, kSize);
  c.break_some();
  memory_of(c, kv, false);
  c.memory_of(out);
  c.compare([&](const simdattn_exec& exec) { return simdattn_dequantise(&kv, first, &out, &exec); });
}

// ---- Fused attention ------------------------------------------------------------------------------------------------------

void attention(Call& c) {
  Input& in = c.in;
  const Heads h = heads(in);
  const bool many = in.one_in(16);  // several blocks of keys, and splits
  const int64_t n_kv = many ? in.size(200, 1040) : in.size(0, 70), n_q = many ? in.below(3) : in.size(0, 6);
  const int64_t d = many           ? 1 + in.below(4)
                    : in.one_in(3) ? 32
                                   : in.size(1, 40),
                d_v = many           ? 1 + in.below(4)
                      : in.one_in(2) ? in.size(1, 40)
                                     : d;
  simdattn_attention_problem a;
  const bool varlen = in.one_in(4), varlen_k = varlen && in.one_in(2);
  c.shape(a.q, c.element(), {varlen ? 1 : h.batch, h.all, n_q, d});
  choose_kv(c, a.k, varlen_k ? 1 : h.batch, h.kv, n_kv, d, !varlen_k, false);
  choose_kv(c, a.v, varlen_k ? 1 : h.batch, h.kv, n_kv, d_v, false, false);
  a.v.length = a.k.length;
  c.shape(a.out, c.element(), {varlen ? 1 : h.batch, h.all, n_q, d_v});
  const bool with_lse = in.one_in(2), with_raw = in.one_in(6), without_out = in.one_in(8);
  if (with_lse) c.shape(a.lse, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q});
  if (with_raw) {
    c.shape(a.acc, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q, d_v});
    c.shape(a.max, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q});
    c.shape(a.sum, DType::kF32, {varlen ? 1 : h.batch, h.all, n_q});
  }
  Scoring scoring;
  scoring.choose(c, varlen ? 1 : h.batch, h.all, n_q, n_kv);
  a.arithmetic = in.of({simdattn::Arithmetic::kF32, simdattn::Arithmetic::kBF16, simdattn::Arithmetic::kInt8});
  if (varlen) a.n_sequences = h.batch;
  c.breakable(&a.struct_size, kStructSize);
  c.breakable(&a.arithmetic, kEnum);
  c.breakable(&a.n_sequences, kSize);
  const int64_t how = in.below(3);
  int64_t cut = in.byte(), first = 0, extra = 0;
  c.breakable(&first, kSize);
  c.breakable(&extra, kSize);
  // The parts of scoring are broken with the rest, so they are looked at where they are.
  c.break_some();
  c.memory_of(a.q);
  memory_of(c, a.k, false);
  memory_of(c, a.v, false);
  if (c.memory.skip) return;
  if (!without_out) c.memory_of(a.out);
  if (with_lse) c.memory_of(a.lse);
  if (with_raw) {
    c.memory_of(a.acc);
    c.memory_of(a.max);
    c.memory_of(a.sum);
  }
  const int64_t sequences = varlen ? a.n_sequences : a.q.shape[0];
  scoring.give_memory(c, sequences, a.q.shape[0], a.q.shape[1], a.q.shape[2], a.k.length < 0 ? a.k.tokens : a.k.length);
  a.scoring = scoring.s;
  if (varlen) {
    const auto ends = [&](int64_t total) {
      const int64_t count = c.listed(sequences);
      int32_t* const cu = reinterpret_cast<int32_t*>(c.memory.add(4 * (count + 1), false, false));
      if (c.memory.skip) return cu;
      cu[0] = 0;
      for (int64_t i = 1; i <= count; ++i) {
        const int64_t left = total <= cu[i - 1] ? 0 : total - cu[i - 1];
        cu[i] = static_cast<int32_t>(i == count ? total : cu[i - 1] + in.below(left < 255 ? left + 1 : 256));
      }
      if (in.one_in(16)) cu[in.below(count + 1)] = in.of({-1, INT32_MIN, INT32_MAX, 1});
      return cu;
    };
    a.cu_q = ends(a.q.shape[2]);
    if (varlen_k) a.cu_k = ends(a.k.length < 0 ? a.k.tokens : a.k.length);
  }
  if (c.memory.skip) return;

  // Sizes, which also need no data.
  simdattn_plan plan;
  c.exec.target = c.target[0];
  const bool good = simdattn_attention_plan(&a, &plan, &c.exec).code == simdattn::Code::kOk;
  if (good) {
    require(plan.tasks >= 0 && plan.reduce_tasks >= 0 && plan.tasks < 1 << 20, "a plan of odd size");
    simdattn_plan other;
    c.exec.target = c.target[1];  // operands have the target's layout
    require(simdattn_attention_plan(&a, &other, &c.exec).code == simdattn::Code::kOk,
            "two targets disagree about a problem");
    if (other.workspace_bytes != plan.workspace_bytes) {
      c.workspace_less = -1;  // not too little for one of them alone
      if (other.workspace_bytes > plan.workspace_bytes) plan.workspace_bytes = other.workspace_bytes;
    }
    if (plan.workspace_bytes > static_cast<size_t>(64 * kMostBytes) ||
        plan.partial_bytes > static_cast<size_t>(64 * kMostBytes))
      return;
  }
  c.workspace(good ? plan.workspace_bytes : 64);
  if (how == 0) {
    c.compare([&](const simdattn_exec& exec) { return simdattn_attention(&a, &exec); });
    return;
  }
  // In ranges, through a plan that may have been made without data.
  unsigned char* const partial = kept_partial.take(good ? plan.partial_bytes : 0);
  c.compare([&](const simdattn_exec& exec) -> simdattn_status {
    simdattn_plan p;
    if (how == 2) {
      simdattn_attention_problem later = a;
      later.q.data = nullptr;
      later.k.data = later.v.data = nullptr;
      later.k.scales = later.v.scales = nullptr;
      later.out.data = nullptr;
      simdattn_status s = simdattn_attention_plan(&later, &p, &exec);
      if (s.code != simdattn::Code::kOk) return s;
      s = simdattn_attention_bind(&a, &p);
      if (s.code != simdattn::Code::kOk) return s;
    } else {
      const simdattn_status s = simdattn_attention_plan(&a, &p, &exec);
      if (s.code != simdattn::Code::kOk) return s;
    }
    require(good || how == 2, "a plan is made or not by chance");
    if (!good) return {};  // without data there was less to refuse
    require(p.workspace_bytes <= plan.workspace_bytes && p.partial_bytes == plan.partial_bytes && p.tasks == plan.tasks,
            "two plans of one problem");
    if (p.partial_bytes > 0) {
      std::memset(partial, 0xFF, p.partial_bytes);
      SIMDATTN_UNINITIALISED(partial, p.partial_bytes);
    }
    for (const bool reduce : {false, true}) {
      const int64_t tasks = reduce ? p.reduce_tasks : p.tasks, middle = tasks == 0 ? 0 : cut % (tasks + 1);
      // The later half first; nothing is written by a range that does not exist.
      const int64_t ranges[3][2] = {
          {middle, tasks}, {first, first == 0 ? middle : first - 1}, {0, extra == 0 ? 0 : tasks + 1}};
      for (const auto& range : ranges) {
        const simdattn_status s =
            reduce ? simdattn_attention_reduce(&p, range[0], range[1], partial, p.partial_bytes, &exec)
                   : simdattn_attention_range(&p, range[0], range[1], partial, p.partial_bytes, &exec);
        // Each looks at the pages that it reads itself: a later one may be refused alone.
        if (s.code != simdattn::Code::kOk) {
          if (&range == &ranges[0] && !reduce) return s;
          return {};
        }
      }
    }
    return {};
  });
}

// ---- Which --------------------------------------------------------------------------------------------------------------

void one_input(const uint8_t* data, size_t size) {
  static const simdattn_target* exact[64];
  static int64_t targets = 0;
  if (targets == 0) {
    size_t count = 0;
    const simdattn_target* const* const all = simdattn_targets(&count);
    for (size_t i = 0; i < count && targets < 64; ++i) {
      if (simdattn_runnable(all[i]) && simdattn_exact(all[i])) exact[targets++] = all[i];
    }
  }
  Call c(Input{data, size});
  const int64_t function = c.in.below(20);
  c.target[0] = exact[targets - 1];  // the definition
  // Another one, where there is one: the definition beside itself says least and takes longest.
  const int64_t other = c.in.byte();
  c.target[1] = exact[targets == 1 || other % 16 == 15 ? targets - 1 : other % (targets - 1)];
  c.memory.values = c.in.below(3);
  c.memory.state = static_cast<uint64_t>(c.in.byte()) * 0x9E3779B97F4A7C15u | 1;
  c.breakable(&c.exec.struct_size, kStructSize);
  switch (function) {
    case 0: scores(c, Score::kProducts); break;
    case 1: scores(c, Score::kGaussian); break;
    case 2: scores(c, Score::kBilinear); break;
    case 3: scores(c, Score::kAdditive); break;
    case 4: softmax(c); break;
    case 5: masked_softmax(c); break;
    case 6: weighted_values(c); break;
    case 7: elementwise(c); break;
    case 8: merge(c); break;
    case 9: rope(c, false); break;
    case 10: rope(c, true); break;
    case 11: tables(c); break;
    case 12: kv_append(c); break;
    case 13: kv_append(c); break;
    case 14: kv_shift(c); break;
    case 15: dequantise(c); break;
    default: attention(c); break;
  }
}

}  // namespace

/// Variables stand on the stack, not in memory of their own, so that fill_stack() reaches them. What an input has freed is soon used again:
/// 256 MB of fresh memory took a tenth of the time, and the library neither frees memory nor keeps a pointer.
extern "C" const char* __asan_default_options() { return "detect_stack_use_after_return=0:quarantine_size_mb=1"; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  one_input(data, size);
  return 0;
}
