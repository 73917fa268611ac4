// The floating-point environment: whatever the caller's control word says, a call gives the bits that it gives in the
// default one, and leaves the word as it was.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/interface/environment_scene.h"

namespace simdattn::test {
namespace {

class Environment : public TargetTest {};

TEST_P(Environment, ControlWordMakesNoDifference) {
  const uint64_t word = read_word();
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF16}) {
    Scene scene(seed() * 7000 + static_cast<uint64_t>(type), type, &target());
    for (const Call& call : scene.calls()) {
      // What is changed in place starts the same every time.
      for (const Guarded* m : call.outputs) {
        if (!call.in_place) std::memset(m->data(), Guarded::kCanary, m->size());
      }
      std::vector<std::vector<unsigned char>> before, want;
      for (const Guarded* m : call.outputs) before.emplace_back(m->data(), m->data() + m->size());
      const Status s = call.run();
      ASSERT_TRUE(s.ok()) << call.function << ": " << s.detail;
      ASSERT_EQ(read_word(), word) << call.function;
      for (const Guarded* m : call.outputs) want.emplace_back(m->data(), m->data() + m->size());
      ASSERT_NE(before, want) << call.function << " wrote nothing";
      for (const Word& other : kWords) {
        for (size_t i = 0; i < before.size(); ++i)
          std::memcpy(call.outputs[i]->data(), before[i].data(), before[i].size());
        write_word(word ^ other.bits);
        const uint64_t changed = read_word();  // bits that the CPU does not have stay as they were
        const Status status = call.run();
        const uint64_t after = read_word();
        write_word(word);
        ASSERT_TRUE(status.ok()) << call.function << ", " << other.what << ": " << status.detail;
        EXPECT_EQ(after, changed) << call.function << ", " << other.what << ": the control word is another";
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(std::memcmp(call.outputs[i]->data(), want[i].data(), want[i].size()), 0)
              << call.function << ", " << other.what << ": output " << i << " differs, elements of type "
              << static_cast<int>(type);
        }
      }
    }
  }
}

SIMDATTN_FOR_EACH_TARGET(Environment);

}  // namespace
}  // namespace simdattn::test
