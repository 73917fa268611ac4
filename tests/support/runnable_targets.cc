// Alone, so that the linker takes it from the library only where the program has none.
#include "tests/kernels/software_tiles.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

std::vector<const Target*> runnable_targets() {
  std::vector<const Target*> result = library_targets();
  if (const Target* t = software_tiles()) result.push_back(t);
  return result;
}

namespace {

/// In each test that calls the library, whatever it calls: tiles are begun and ended, and configured as before at last.
class TilesOfCaller : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    take_tile_counts();
    configure_as_caller();
  }
  void OnTestEnd(const ::testing::TestInfo& /*test*/) override {
    EXPECT_TRUE(is_configured_as_caller()) << "the caller's tiles are not configured as before";
    const TileCounts counts = take_tile_counts();
    EXPECT_EQ(counts.begun, counts.ended);
    EXPECT_EQ(counts.broken_rules, 0);
  }
};
[[maybe_unused]] const bool kListens = [] {
  if (runs_software_tiles()) ::testing::UnitTest::GetInstance()->listeners().Append(new TilesOfCaller);
  return runs_software_tiles();
}();

}  // namespace

}  // namespace simdattn::test
