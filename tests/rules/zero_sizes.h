// Sizes of 0, in every function: every size of a problem, alone and with every other one, and every dimension of
// every array by itself, whatever the others are. A call then does what is left to do, or names what it refuses and
// writes nothing.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "simdattn/extras.h"
#include "tests/support/problems.h"
#include "tests/support/random.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr Arithmetic kArithmetics[] = {Arithmetic::kF32, Arithmetic::kBF16, Arithmetic::kInt8};

/// A size of a problem: everywhere where it stands.
struct Size {
  const char* name;
  bool may_be_zero;
  std::vector<int64_t*> at;
};

/// Without data, if it is empty and `null`.
template <class V>
V bare(V view, bool null) {
  if (null && std::count(view.shape.begin(), view.shape.end(), 0) > 0) view.data = nullptr;
  return view;
}
template <bool kConst>
BasicKv<kConst> bare(BasicKv<kConst> kv, bool null) {
  if (null && ((kv.page_size > 0 ? kv.n_pages : kv.batch) == 0 || kv.heads == 0 || kv.capacity == 0)) kv.data = nullptr;
  return kv;
}

class ZeroSizes : public TargetTest {
 protected:
  struct Function {
    std::string name;
    std::vector<Size> sizes;
    std::function<Status(bool null)> call;
    std::vector<const Guarded*> outputs;
    /// Beside Size::may_be_zero; null: nothing.
    std::function<bool()> legal = nullptr;
    /// What a call that is not refused has written; null: nothing that tells.
    std::function<void(const std::string& text)> written = nullptr;
  };

  static void check(const Function& f) {
    const size_t n = f.sizes.size();
    for (size_t set = 0; set < size_t{1} << n; ++set) {
      std::vector<int64_t*> zeros;
      std::string text = f.name + " without";
      bool legal = true;
      for (size_t i = 0; i < n; ++i) {
        if ((set >> i & 1) == 0) continue;
        zeros.insert(zeros.end(), f.sizes[i].at.begin(), f.sizes[i].at.end());
        legal = legal && f.sizes[i].may_be_zero;
        text += std::string(" ") + f.sizes[i].name;
      }
      with_zeros(f, zeros, text, legal ? Expect::kByRule : Expect::kRefused);
    }
    for (const Size& size : f.sizes) {
      for (size_t i = 0; i < size.at.size(); ++i) {
        with_zeros(f, {size.at[i]}, f.name + ", " + size.name + " 0 in place " + std::to_string(i), Expect::kAnything);
      }
    }
  }

 private:
  enum class Expect { kByRule, kRefused, kAnything };

  static void with_zeros(const Function& f, const std::vector<int64_t*>& zeros, const std::string& text,
                         Expect expect) {
    std::vector<int64_t> before;
    for (int64_t* const at : zeros) before.push_back(*at);
    for (int64_t* const at : zeros) *at = 0;
    for (const bool null : {false, true}) {
      for (const Guarded* m : f.outputs) std::memset(m->data(), Guarded::kCanary, m->size());
      const Status s = f.call(null);
      if (expect != Expect::kAnything) {
        const bool good = expect == Expect::kByRule && (f.legal == nullptr || f.legal());
        EXPECT_EQ(s.ok(), good) << text << ": " << s.detail;
      }
      if (s.ok()) {
        if (expect != Expect::kAnything && f.written != nullptr) f.written(text);
        continue;
      }
      EXPECT_GT(std::strlen(s.detail), 0u) << text;
      for (const Guarded* m : f.outputs) {
        EXPECT_TRUE(Guarded::is_canary(m->data(), m->size())) << text << ": refused, and written";
      }
    }
    for (size_t i = 0; i < zeros.size(); ++i) *zeros[i] = before[i];
  }

 protected:
  /// With a workspace of so many bytes.
  Exec with(size_t bytes) {
    memory_ = Guarded(std::max<size_t>(bytes, 1), Guard::kAfter);
    return {.target = GetParam(), .workspace = memory_.data(), .workspace_bytes = bytes};
  }
  template <int kRank>
  static void expect_all(const View<kRank>& view, float number, const std::string& text) {
    for_each_element(view, [&](int64_t at) { EXPECT_EQ(get(view.data, view.dtype, at), number) << text; });
  }

  Random random_{seed() * 7000 + 13};

 private:
  Guarded memory_;
};

}  // namespace simdattn::test
