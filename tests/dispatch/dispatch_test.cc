// Targets as values: the list, looking one up, the choice of the default by SIMDATTN_TARGET, and that a call runs the
// target it was given and no other.
#include <gtest/gtest.h>
#if defined(_WIN32)
#include <windows.h>
#elif defined(__APPLE__)
#include <mach-o/dyld.h>
#else
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/cpu.h"
#include "dispatch/streaming.h"
#include "dispatch/target.h"
#include "lib/contract/ukernels.h"
#include "simdattn/simdattn.h"
#include "tests/support/status.h"
#include "tests/support/target_test.h"

namespace simdattn::test {

/// Those that have a name in the list.
std::vector<const Target*> runnable_targets() { return library_targets(); }

namespace {

class Dispatch : public TargetTest {};

std::string self() {
  char path[4096];
#if defined(_WIN32)
  return std::string(path, GetModuleFileNameA(nullptr, path, sizeof path));
#elif defined(__APPLE__)
  uint32_t size = sizeof path;
  return _NSGetExecutablePath(path, &size) == 0 ? path : "";
#else
  const ssize_t n = readlink("/proc/self/exe", path, sizeof path);
  return n > 0 ? std::string(path, static_cast<size_t>(n)) : std::string();
#endif
}

/// The line of a shell that runs this program again with SIMDATTN_TARGET set (null: unset).
std::string again_with(const char* value) {
#if defined(_WIN32)
  // Children inherit the environment; an empty value unsets. The shell takes off the outer quotation marks.
  _putenv_s("SIMDATTN_TARGET", value != nullptr ? value : "");
  const std::string line = "\"\"" + self() + "\"";
  const char* const end = "\"";
#else
  const std::string quoted =
      value != nullptr ? std::string("SIMDATTN_TARGET='") + value + "' " : "env -u SIMDATTN_TARGET ";
  // Under an emulator it takes another one to run the program again; Meson names it.
  const char* const emulator = std::getenv("MESON_EXE_WRAPPER");
  const std::string line = quoted + (emulator != nullptr ? std::string(emulator) + " '" : "'") + self() + "'";
  const char* const end = "";
#endif
  return line + " --gtest_also_run_disabled_tests --gtest_filter=Environment.DISABLED_PrintDefault" + end;
}

/// Runs this program again with SIMDATTN_TARGET set (null: unset) and returns what the test `PrintDefault` prints: the
/// name of the default target, or "status: " and the sentence.
std::string default_with(const char* value) {
  FILE* const pipe = popen(again_with(value).c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  char buffer[512];
  while (std::fgets(buffer, sizeof buffer, pipe) != nullptr) text += buffer;
  pclose(pipe);
  const size_t at = text.find("default: ");
  if (at == std::string::npos) return text;
  return text.substr(at + 9, text.find_first_of("\r\n", at) - at - 9);
}

TEST(Environment, DISABLED_PrintDefault) {
  const Target* t = nullptr;
  const Status s = default_target(&t);
  // A call that relies on the default has the same opinion.
  const float x = 1;
  float y = 0;
  const Status call = softmax(view(&x, {1, 1}), view(&y, {1, 1}));
  if (s.ok()) {
    EXPECT_TRUE(call.ok()) << call.detail;
    EXPECT_EQ(y, 1.0f);
  } else {
    EXPECT_EQ(call.code, Code::kTarget);
    EXPECT_STREQ(call.detail, s.detail);
    EXPECT_EQ(y, 0.0f) << "nothing may be written";
    // A target given by hand does not care.
    EXPECT_TRUE(softmax(view(&x, {1, 1}), view(&y, {1, 1}), {}, {.target = &scalar_target()}).ok());
  }
  std::printf("default: %s\n", s.ok() ? target_name(*t) : (std::string("status: ") + s.detail).c_str());
}

TEST(Targets, ListIsBestFirstAndEndsWithScalar) {
  ASSERT_GT(targets().size(), 0u);
  std::set<std::string> names;
  for (const Target* t : targets()) {
    ASSERT_NE(t, nullptr);
    EXPECT_TRUE(names.insert(target_name(*t)).second) << target_name(*t) << " is there twice";
    EXPECT_NE(t->kernels, nullptr) << target_name(*t);
    EXPECT_EQ(std::strlen(t->missing) == 0, target_runnable(*t)) << target_name(*t) << ": " << t->missing;
  }
  EXPECT_STREQ(target_name(*targets().back()), "scalar");
  EXPECT_TRUE(target_runnable(*targets().back()));
  EXPECT_TRUE(target_exact(*targets().back()));
  // The same list at every call.
  EXPECT_EQ(targets().data, targets().data);
}

TEST(Targets, ListIsOrderedByInstructionSetAcrossBackends) {
  std::vector<std::vector<const char*>> best_first = {{"/amx"},
                                                      {"/avx512_bf16"},
                                                      {"/avx3_dl"},
                                                      {"/avx3", "/avx512bw"},
                                                      {"/avx_vnni"},
                                                      {"/avx2"},
                                                      {"/sse4"},
                                                      {"/sse2"},
                                                      {"/sve_256", "/sve256", "/sve512"},
                                                      {"/neon"},
                                                      {"/sve2_128", "/sve128"},
                                                      {"/ppc9"},
                                                      {"/rvv_256", "/rvv_128"},
                                                      {"/wasm"},
                                                      {"/f32x"},
                                                      {"scalar"}};
#if defined(__x86_64__)
  // VDPBF16PS takes longer than two multiply-adds there.
  if (__builtin_cpu_is("intel")) std::swap(best_first[1], best_first[2]);
#endif
  const auto rank = [&](const std::string& name) {
    for (size_t i = 0; i < best_first.size(); ++i) {
      for (const char* part : best_first[i]) {
        if (name.find(part) != name.npos) return i;
      }
    }
    ADD_FAILURE() << "no instruction set is known for " << name;
    return size_t{0};
  };
  for (size_t i = 1; i < targets().size(); ++i) {
    EXPECT_LE(rank(target_name(*targets()[i - 1])), rank(target_name(*targets()[i])))
        << target_name(*targets()[i - 1]) << " stands before " << target_name(*targets()[i]);
  }
}

/// Where the rule says kBF16, told by names and the vendor of the CPU: kF32 for every other set of types everywhere.
TEST(Targets, ArithmeticDependsOnTypesAndTarget) {
  bool intel = false;
#if defined(__x86_64__)
  intel = __builtin_cpu_is("intel");
#endif
  for (const Target* t : targets()) {
    const std::string name = target_name(*t);
    const bool fast = name == "intrinsics/amx" || (name == "intrinsics/avx512_bf16" && !intel);
    for (int q = 0; q <= static_cast<int>(DType::kF16); ++q) {
      for (int k = 0; k <= static_cast<int>(KvType::kIq4Nl); ++k) {
        for (int v = 0; v <= static_cast<int>(KvType::kIq4Nl); ++v) {
          const bool bf16 = q == static_cast<int>(DType::kBF16) && k == static_cast<int>(KvType::kBF16) && v == k;
          const Arithmetic wanted = fast && bf16 && target_runnable(*t) ? Arithmetic::kBF16 : Arithmetic::kF32;
          const Arithmetic found =
              arithmetic_for(static_cast<DType>(q), static_cast<KvType>(k), static_cast<KvType>(v), {.target = t});
          ASSERT_EQ(found, wanted) << name << ", types " << q << ", " << k << ", " << v;
        }
      }
    }
    if (fast) {
      EXPECT_TRUE(target_native(*t, Arithmetic::kBF16)) << name;
    }
  }
  const Target* usual = nullptr;
  ASSERT_TRUE(default_target(&usual).ok());
  const Arithmetic of_usual = arithmetic_for(DType::kBF16, KvType::kBF16, KvType::kBF16, {.target = usual});
  EXPECT_EQ(arithmetic_for(DType::kBF16, KvType::kBF16, KvType::kBF16), of_usual);
  EXPECT_EQ(simdattn_arithmetic_for(DType::kBF16, KvType::kBF16, KvType::kBF16, nullptr), of_usual);
}

#if defined(__x86_64__) && defined(__linux__)
/// What the kernels are compiled with, in a list of the test's own and as this system names it: a CPU that lacks one
/// feature alone is at hand nowhere.
TEST(Targets, EveryFeatureIsAskedFor) {
  const std::set<std::string> sse4 = {"ssse3", "sse4_1", "sse4_2", "popcnt"};
  std::set<std::string> avx2 = {"avx", "avx2", "fma", "bmi1", "bmi2", "f16c"};
  avx2.insert(sse4.begin(), sse4.end());
  std::set<std::string> avx3 = {"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"};
  avx3.insert(avx2.begin(), avx2.end());
  std::set<std::string> avx_vnni = {"avx_vnni"};
  avx_vnni.insert(avx2.begin(), avx2.end());
  std::set<std::string> avx3_dl = {"avx512_vnni",      "avx512vbmi", "avx512_vbmi2", "avx512_bitalg",
                                   "avx512_vpopcntdq", "gfni",       "vpclmulqdq",   "vaes"};
  avx3_dl.insert(avx3.begin(), avx3.end());
  std::set<std::string> avx512_bf16 = {"avx512_bf16"};
  avx512_bf16.insert(avx3_dl.begin(), avx3_dl.end());
  std::set<std::string> amx = {"amx_tile", "amx_bf16", "amx_int8"};
  amx.insert(avx3_dl.begin(), avx3_dl.end());
  std::set<std::string> flags;
  FILE* const file = std::fopen("/proc/cpuinfo", "r");
  std::vector<char> line(1 << 16);
  while (file != nullptr && flags.empty() && std::fgets(line.data(), static_cast<int>(line.size()), file) != nullptr) {
    if (std::strncmp(line.data(), "flags", 5) != 0) continue;
    for (char* word = std::strtok(std::strchr(line.data(), ':') + 1, " \n"); word != nullptr;
         word = std::strtok(nullptr, " \n"))
      flags.insert(word);
  }
  if (file != nullptr) std::fclose(file);
  const std::vector<std::pair<Isa, std::set<std::string>>> needs = {
      {Isa::kBaseline, {}},      {Isa::kSse2, {}},   {Isa::kSse4, sse4},      {Isa::kAvx2, avx2},
      {Isa::kAvxVnni, avx_vnni}, {Isa::kAvx3, avx3}, {Isa::kAvx3Dl, avx3_dl}, {Isa::kAvx512Bf16, avx512_bf16},
      {Isa::kAmx, amx}};
  // An emulated CPU is not the one that the system tells of.
  const bool native = std::getenv("MESON_EXE_WRAPPER") == nullptr && std::getenv("QEMU_CPU") == nullptr;
  for (const auto& [isa, want] : needs) {
    std::set<std::string> asked;
    for (const CpuFeature& feature : kCpuFeatures) {
      if (!feature.needed_by(isa)) continue;
      std::string flag = feature.name;
      for (char& c : flag) c = c == '.' ? '_' : c;
      asked.insert(flag);
      if (native && !flags.empty()) {
        EXPECT_EQ(feature.here(), flags.count(flag) == 1) << flag;
      }
    }
    EXPECT_EQ(asked, want) << static_cast<int>(isa);
    const bool all = std::includes(flags.begin(), flags.end(), want.begin(), want.end());
    if (native && !flags.empty()) {
      EXPECT_EQ(*missing_feature(isa) == '\0', all) << static_cast<int>(isa);
    }
  }
}
#endif

/// Also the one for CPUs that this one is not.
TEST(Targets, EveryScalarTableIsExact) {
  ASSERT_FALSE(kScalarTables.empty());
  for (const KernelTable& table : kScalarTables) EXPECT_TRUE(table.fma) << table.name;
}

TEST(Targets, Version) {
  const std::string want = std::to_string(SIMDATTN_VERSION_MAJOR) + "." + std::to_string(SIMDATTN_VERSION_MINOR) + "." +
                           std::to_string(SIMDATTN_VERSION_PATCH);
  EXPECT_EQ(version(), want);
}

TEST_P(Dispatch, FindTarget) {
  const Target* found = nullptr;
  EXPECT_TRUE(ok(find_target(target_name(target()), &found)));
  EXPECT_EQ(found, GetParam());
}

TEST_P(Dispatch, EnvironmentChooses) { EXPECT_EQ(default_with(target_name(target())), target_name(target())); }

TEST(Environment, DefaultIsTheFirstThatRuns) {
  EXPECT_EQ(default_with(nullptr), target_name(*runnable_targets().front()));
  EXPECT_EQ(default_with(""), target_name(*runnable_targets().front()));
}

TEST(Environment, UnknownNameIsAStatusWithTheGoodOnes) {
  for (const char* bad : {"highway/avx99", "SCALAR", "scalar ", "highway", "/"}) {
    const std::string text = default_with(bad);
    EXPECT_EQ(text.rfind("status: SIMDATTN_TARGET", 0), 0u) << text;
    for (const Target* t : runnable_targets())
      EXPECT_NE(text.find(target_name(*t)), std::string::npos) << target_name(*t) << " is not in: " << text;
  }
}

TEST(Targets, FindRefusesWhatCannotRun) {
  const Target* const sentinel = targets().back();
  const Target* found = sentinel;
  for (const char* bad : {"", "no such target", "Scalar", "scalar/"}) {
    const Status s = find_target(bad, &found);
    EXPECT_EQ(s.code, Code::kTarget) << bad;
    for (const Target* t : runnable_targets()) EXPECT_NE(std::strstr(s.detail, target_name(*t)), nullptr) << s.detail;
    EXPECT_EQ(found, sentinel);
  }
  EXPECT_EQ(find_target(nullptr, &found).code, Code::kNullPointer);
  EXPECT_EQ(find_target("scalar", nullptr).code, Code::kNullPointer);
  EXPECT_EQ(default_target(nullptr).code, Code::kNullPointer);
  for (const Target* t : targets()) {
    if (target_runnable(*t)) continue;
    EXPECT_EQ(find_target(target_name(*t), &found).code, Code::kTarget) << target_name(*t);
    EXPECT_EQ(found, sentinel);
    const float x = 1;
    float y = 0;
    EXPECT_EQ(softmax(view(&x, {1, 1}), view(&y, {1, 1}), {}, {.target = t}).code, Code::kTarget) << target_name(*t);
    EXPECT_EQ(default_with(target_name(*t)).rfind("status: ", 0), 0u) << target_name(*t);
  }
}

// A copy of the target's table in which some slots count their calls.
const UKernels* counted = nullptr;
int64_t calls = 0;

TEST_P(Dispatch, CallsGoToTheTargetOfTheirExec) {
  counted = target().kernels;
  UKernels table = *counted;
  table.softmax_rows = [](const SoftmaxRows& a) {
    ++calls;
    counted->softmax_rows(a);
  };
  table.score_rows[0] = [](const ScoreRows& a) {
    ++calls;
    counted->score_rows[0](a);
  };
  table.attention[0].kv[0].value_tile = [](const ValueTile& a) {
    ++calls;
    counted->attention[0].kv[0].value_tile(a);
  };
  table.attention[0].softmax_tile = [](const SoftmaxTile& a) {
    ++calls;
    counted->attention[0].softmax_tile(a);
  };
  table.rope_heads[0] = [](const RopeHeads& a) {
    ++calls;
    counted->rope_heads[0](a);
  };
  const Target counting = {"test/counting", &table, true, true, ""};
  const float x[4] = {1, 2, 3, 4};
  float y[4] = {};
  const auto expect_call = [&](const char* what, const auto& call) {
    calls = 0;
    const Status s = call();
    EXPECT_TRUE(s.ok()) << what << ": " << s.detail;
    EXPECT_GT(calls, 0) << what << " did not run the table of its target";
  };
  const Exec e = {.target = &counting};
  expect_call("scores",
              [&] { return scores(view(x, {1, 1, 1, 2}), view(x, {1, 1, 2, 2}), view(y, {1, 1, 1, 2}), {}, e); });
  expect_call("softmax", [&] { return softmax(view(x, {1, 4}), view(y, {1, 4}), {}, e); });
  expect_call("masked_softmax",
              [&] { return masked_softmax(view(x, {1, 1, 1, 4}), view(y, {1, 1, 1, 4}), {}, {}, e); });
  expect_call("weighted_values", [&] {
    return weighted_values(view(x, {1, 1, 1, 2}), view(x, {1, 1, 2, 2}), view(y, {1, 1, 1, 2}), {}, e);
  });
  expect_call("rope", [&] {
    return rope(view(x, {1, 1, 1, 4}), view(x, {1, 2}), view(x, {1, 2}), {}, view(y, {1, 1, 1, 4}), {}, e);
  });
  expect_call("attention", [&] {
    AttentionProblem a;
    a.q = view(x, {1, 1, 1, 2});
    a.k = view(x, {1, 1, 2, 2});
    a.v = view(x, {1, 1, 2, 2});
    a.out = view(y, {1, 1, 1, 2});
    Plan plan;
    if (const Status s = attention_plan(a, &plan, e); !s.ok()) return s;
    std::vector<char> workspace(plan.workspace_bytes);
    return attention(a, {.target = &counting, .workspace = workspace.data(), .workspace_bytes = workspace.size()});
  });
}

SIMDATTN_FOR_EACH_TARGET(Dispatch);

TEST(Streaming, CopiesWhatMemcpyDoes) {
  std::vector<unsigned char> from(256);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(7 * i + 1);
  for (size_t offset = 0; offset < 17; ++offset) {
    for (size_t bytes = 0; bytes < 100; ++bytes) {
      std::vector<unsigned char> got(256, 0xEE), want(got);
      copy_past_caches(got.data() + offset, from.data() + 3, bytes);
      std::memcpy(want.data() + offset, from.data() + 3, bytes);
      ASSERT_EQ(got, want) << bytes << " bytes at " << offset;
    }
  }
  order_copies_past_caches();
}

}  // namespace
}  // namespace simdattn::test
