// A table of bad calls: each returns its code and a sentence that names the argument, and writes nothing. Every row is
// a change to a good call, which is made first.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "simdattn/simdattn.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

using enum Code;

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr int64_t kHuge = int64_t{1} << 40;

/// A call with its arrays, good as it is made.
struct BadCall {
  Exec exec;
  virtual ~BadCall() = default;
  virtual Status call() const = 0;
  virtual std::vector<const Guarded*> outputs() const = 0;
  virtual void prepare(const Target* target) { exec.target = target; }
};

/// `change` is a plain pointer: std::function of 500 lambdas took half of the time to compile.
template <class Call>
struct Bad {
  const char* what;
  Code code;
  const char* argument;  // the sentence begins with it
  void (*change)(Call&);
};

class BadCalls : public TargetTest {
 protected:
  /// Row: Call or its base.
  template <class Call, class Row>
  static void check(const std::string& function, const std::vector<Bad<Row>>& table) {
    const auto prepared = [](Call& call) -> Call& {
      call.prepare(GetParam());
      for (const Guarded* m : call.outputs()) std::memset(m->data(), Guarded::kCanary, m->size());
      return call;
    };
    Call good;
    expect_good(prepared(good), function);
    for (const Bad<Row>& bad : table) {
      Call call;
      bad.change(prepared(call));
      expect_bad(call, function + ", " + bad.what + ": ", bad.code, bad.argument);
    }
    static const Target none = {"test/none", scalar_target().kernels, true, false, "nothing has it"};
    Call call;
    prepared(call).exec.target = &none;
    expect_bad(call, function + ", target cannot run: ", kTarget, "exec.target");
  }

 private:
  static void expect_good(const BadCall& call, const std::string& function) {
    const Status s = call.call();
    EXPECT_TRUE(s.ok()) << function << ", the good call: " << s.detail;
    EXPECT_NE(s.detail, nullptr);
  }
  /// Inputs may be changed by the row, too, so what counts as written is what changes during the call.
  static void expect_bad(const BadCall& call, const std::string& what, Code code, const std::string& argument) {
    std::vector<std::vector<unsigned char>> before;
    for (const Guarded* m : call.outputs()) before.emplace_back(m->data(), m->data() + m->size());
    const Status s = call.call();
    EXPECT_EQ(static_cast<int>(s.code), static_cast<int>(code)) << what << s.detail;
    EXPECT_EQ(std::string(s.detail).rfind(argument, 0), 0u)
        << what << "the sentence is \"" << s.detail << "\" and should name " << argument;
    EXPECT_GT(std::strlen(s.detail), argument.size()) << what << "no rule";
    size_t i = 0;
    for (const Guarded* m : call.outputs()) {
      EXPECT_EQ(std::memcmp(m->data(), before[i].data(), m->size()), 0) << what << "output " << i << " was written";
      ++i;
    }
  }
};

/// Arrays that the rows of scoring tables may use.
struct ScoringArrays {
  Random random{3};
  Array<4> bias{random, DType::kF16, {2, 4, 3, 20}}, keep{random, DType::kU8, {2, 4, 3, 20}};
  Guarded bits{64, Guard::kAfter};
  int32_t numbers[2] = {5, 6};
  int32_t offsets[2] = {0, 17};
  float slopes[4] = {1, 2, 3, 4}, sinks[4] = {0, 1, 2, 3}, bias_scale[4] = {1, -2, 0, 3};
  ScoringArrays() {
    bias.fill_bytes(0);
    keep.fill_bytes(1);
    std::memset(bits.data(), 0xFF, bits.size());
  }
  /// Every option at once.
  Scoring all() {
    Scoring s;
    s.scale = 0.5f;
    s.softcap = 10;
    s.causal = true;
    s.window_left = 3;
    s.window_right = 3;
    s.chunk = 9;
    s.prefix_end = s.kv_start = s.kv_length = numbers;
    s.bias = bias.view;
    s.bias_scale = bias_scale;
    s.mask = keep.view;
    s.packed_mask = {bits.data(), 5, {0, 0, 1}};
    s.alibi_slopes = slopes;
    s.sinks = sinks;
    return s;
  }
};

/// The rows that masked_softmax() and attention() have in common; n_kv = 20. C has `s` and `arrays`.
template <class C>
std::vector<Bad<C>> scoring_rows() {
  return {
      {"scale NaN", kRange, "scoring.scale", [](C& c) { c.s.scale = kNaN; }},
      {"scale infinite", kRange, "scoring.scale", [](C& c) { c.s.scale = kInf; }},
      {"softcap negative", kRange, "scoring.softcap", [](C& c) { c.s.softcap = -1; }},
      {"softcap infinite", kRange, "scoring.softcap", [](C& c) { c.s.softcap = kInf; }},
      {"softcap NaN", kRange, "scoring.softcap", [](C& c) { c.s.softcap = kNaN; }},
      {"offset too large", kRange, "scoring.offset", [](C& c) { c.s.offset = (int64_t{1} << 30) + 1; }},
      {"offset too small", kRange, "scoring.offset", [](C& c) { c.s.offset = -(int64_t{1} << 30) - 1; }},
      {"offset next to kBottomRight", kRange, "scoring.offset", [](C& c) { c.s.offset = kBottomRight + 1; }},
      {"an offset of a sequence too large", kRange, "scoring.offsets",
       [](C& c) { c.arrays->offsets[1] = (1 << 30) + 1, c.s.offsets = c.arrays->offsets; }},
      {"an offset of a sequence too small", kRange, "scoring.offsets",
       [](C& c) { c.arrays->offsets[0] = -(1 << 30) - 1, c.s.offsets = c.arrays->offsets; }},
      {"window -2", kRange, "scoring.window_left", [](C& c) { c.s.window_left = -2; }},
      {"right window -2", kRange, "scoring.window", [](C& c) { c.s.window_right = -2; }},
      {"chunk negative", kRange, "scoring.chunk", [](C& c) { c.s.chunk = -1; }},
      {"length beyond the keys", kRange, "scoring.kv_length", [](C& c) { c.arrays->numbers[1] = 21; }},
      {"length negative", kRange, "scoring.kv_length", [](C& c) { c.arrays->numbers[1] = -1; }},
      {"start negative", kRange, "scoring.kv_start", [](C& c) { c.arrays->numbers[0] = -1, c.s.kv_length = nullptr; }},
      {"prefix negative", kRange, "scoring.prefix_end",
       [](C& c) { c.arrays->numbers[0] = -1, c.s.kv_length = c.s.kv_start = nullptr; }},
      {"bias of bytes", kDType, "scoring.bias", [](C& c) { c.s.bias.dtype = DType::kU8; }},
      {"bias of other shape", kShape, "scoring.bias", [](C& c) { c.s.bias.shape[3] = 19; }},
      {"bias of half of the heads", kShape, "scoring.bias", [](C& c) { c.s.bias.shape[1] = 2; }},
      {"bias of no rows", kShape, "scoring.bias", [](C& c) { c.s.bias.shape[2] = 0; }},
      {"bias_scale NaN", kRange, "scoring.bias_scale", [](C& c) { c.arrays->bias_scale[3] = kNaN; }},
      {"bias_scale infinite", kRange, "scoring.bias_scale", [](C& c) { c.arrays->bias_scale[0] = kInf; }},
      {"bias not contiguous", kStride, "scoring.bias", [](C& c) { c.s.bias.stride[3] = 0; }},
      {"keep of floats", kDType, "scoring.mask", [](C& c) { c.s.mask.dtype = DType::kF32; }},
      {"keep of other shape", kShape, "scoring.mask", [](C& c) { c.s.mask.shape[1] = 3; }},
      {"keep not contiguous", kStride, "scoring.mask", [](C& c) { c.s.mask.stride[3] = 20; }},
      {"more mask columns than keys", kRange, "scoring.packed_mask",
       [](C& c) { c.s.packed_mask.columns = 21, c.s.kv_length = nullptr; }},
      {"more mask columns than a length", kRange, "scoring.packed_mask", [](C& c) { c.s.packed_mask.columns = 6; }},
      {"mask columns negative", kRange, "scoring.packed_mask", [](C& c) { c.s.packed_mask.columns = -1; }},
      {"mask columns without a mask", kNullPointer, "scoring.packed_mask",
       [](C& c) { c.s.packed_mask.data = nullptr; }},
      {"huge mask stride", kStride, "scoring.packed_mask",
       [](C& c) { c.s.packed_mask.stride[1] = std::numeric_limits<int64_t>::max(); }},
      {"slope NaN", kRange, "scoring.alibi_slopes", [](C& c) { c.arrays->slopes[3] = kNaN; }},
      {"scoring that was only cleared", kStructSize, "scoring", [](C& c) { c.s.struct_size = 0; }},
      {"reserved numbers", kStructSize, "scoring", [](C& c) { c.s.reserved[1] = 1; }},
  };
}

}  // namespace simdattn::test
