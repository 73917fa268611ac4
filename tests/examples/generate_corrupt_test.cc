// What llama2_generate does with files that are not what they should be: a sentence on stderr and exit status 1, or, if
// the damage is harmless, text. Never a signal, never a report of a sanitizer, never silence.
//
// SIMDATTN_GENERATE names the program. A tiny model is made here; with SIMDATTN_SHARED the real one is damaged too.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "formula_model.h"

namespace {

namespace fs = std::filesystem;

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void spill(const fs::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << bytes;
  ASSERT_TRUE(out.flush().good()) << path;
}

template <class T>
std::string with(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
  return bytes;
}

/// The numbers of a linear congruential generator: the same files on every machine.
class Random {
 public:
  uint32_t below(uint32_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33) % n;
  }

 private:
  uint64_t state_ = 1;
};

struct Files {
  std::string model, tokenizer;
};

constexpr int32_t kTinySeqLen = 24;

Files tiny(bool shared_classifier, int32_t heads = 6, int32_t kv_heads = 3) {
  FormulaModel model;
  model.dim = 12;
  model.hidden_dim = 10;
  model.n_layers = 2;
  model.n_heads = heads;
  model.n_kv_heads = kv_heads;
  model.seq_len = kTinySeqLen;
  model.shared_classifier = shared_classifier;
  return {model.checkpoint(), FormulaModel::tokenizer()};
}

class Corrupt : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* program = std::getenv("SIMDATTN_GENERATE");
    if (program == nullptr) GTEST_SKIP() << "SIMDATTN_GENERATE does not name llama2_generate";
    program_ = program;
    std::string name = (fs::temp_directory_path() / "simdattn-corrupt-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    scratch_ = name;
  }
  void TearDown() override {
    if (!scratch_.empty()) fs::remove_all(scratch_);
  }

  fs::path path(const char* name) const { return scratch_ / name; }

  /// The exit status. Fails the test unless it is 0 or 1, and if 1 unless stderr has the program's own sentence.
  int run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), program_);
    std::vector<char*> argv;
    for (std::string& a : arguments) argv.push_back(a.data());
    argv.push_back(nullptr);
    const std::string out = path("out").string(), err = path("err").string();
    const pid_t child = fork();
    if (child == 0) {
      const int o = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const int e = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(o, 1);
      dup2(e, 2);
      alarm(60);  // an endless loop is a signal too
      execv(argv[0], argv.data());
      _exit(127);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    const std::string message = slurp(err);
    EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status) << "\n" << message;
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    EXPECT_TRUE(code == 0 || code == 1) << code << "\n" << message;
    EXPECT_EQ(message.find("Sanitizer"), std::string::npos) << message;
    EXPECT_EQ(message.find("runtime error"), std::string::npos) << message;
    if (code == 1) {
      EXPECT_TRUE(message.starts_with("llama2_generate: ")) << message;
      EXPECT_GT(message.size(), std::strlen("llama2_generate: \n")) << message;
    }
    ++runs_;
    return code;
  }

  int generate(const std::string& model, const std::string& tokenizer, std::vector<std::string> options = {}) {
    spill(path("model"), model);
    spill(path("tokenizer"), tokenizer);
    options.insert(options.begin(), {path("model").string(), path("tokenizer").string()});
    return run(options);
  }

  static std::vector<Files> samples() {
    std::vector<Files> all = {tiny(true), tiny(false)};
    if (const char* shared = std::getenv("SIMDATTN_SHARED")) {
      const fs::path data = fs::path(shared) / "data" / "tinyllamas";
      if (fs::exists(data / "stories260K.bin"))
        all.push_back({slurp(data / "stories260K.bin"), slurp(data / "tok512.bin")});
    }
    return all;
  }

  std::string program_;
  fs::path scratch_;
  int runs_ = 0;
};

TEST_F(Corrupt, WholeFilesAreAccepted) {
  for (const Files& f : samples()) {
    EXPECT_EQ(generate(f.model, f.tokenizer, {"--steps", "20"}), 0);
    EXPECT_FALSE(slurp(path("out")).empty());
    EXPECT_EQ(generate(f.model, f.tokenizer, {"--steps", "20", "--prompt", "a a"}), 0);
    EXPECT_TRUE(slurp(path("out")).starts_with("a a")) << slurp(path("out"));
    EXPECT_EQ(
        generate(f.model, f.tokenizer, {"--steps", "0", "--prompt", "\xC3\xA4 \xFF\x80\x80\x80\x80\x80 \xE2\x82"}), 0)
        << "a prompt need not be UTF-8";
    EXPECT_EQ(generate(f.model, f.tokenizer, {"--steps", "3", "--prompt", "aaaaaaaaaa"}), 0)
        << "fewer steps than prompt";
  }
}

TEST_F(Corrupt, TruncatedModels) {
  for (const Files& f : samples()) {
    const size_t size = f.model.size();
    std::vector<size_t> lengths = {0, 1, 4, 27, 28, 29, 31, 32, size - 1, size - 4, size - 5};
    for (size_t i = 1; i < 16; ++i) lengths.push_back(size * i / 16);
    for (const size_t length : lengths) {
      EXPECT_EQ(generate(f.model.substr(0, length), f.tokenizer), 1) << length << " bytes of " << size;
      if (length >= 28 && length % 4 == 0) {
        EXPECT_NE(slurp(path("err")).find("the file ends inside"), std::string::npos) << length;
      }
    }
    EXPECT_EQ(generate(f.model + "tail", f.tokenizer), 1);
  }
  EXPECT_GE(runs_, 50);
}

TEST_F(Corrupt, EveryHeaderField) {
  constexpr int32_t kMax = std::numeric_limits<int32_t>::max(), kMin = std::numeric_limits<int32_t>::min();
  for (const Files& f : samples()) {
    for (size_t at = 0; at < 28; at += 4) {
      int32_t good = 0;
      std::memcpy(&good, f.model.data() + at, sizeof good);
      for (const int32_t bad :
           {0, -1, -good, good + 1, good - 1, good * 2, kMax, kMax - 1, kMin, kMin + 1, 1 << 16, 1 << 30}) {
        EXPECT_EQ(generate(with(f.model, at, bad), f.tokenizer), 1) << "field " << at / 4 << " = " << bad;
      }
    }
    std::string all = f.model;
    for (size_t at = 0; at < 28; at += 4) all = with(all, at, kMax);
    EXPECT_EQ(generate(all, f.tokenizer), 1);
  }
  EXPECT_GE(runs_, 170);

  const auto sentence = [&](int32_t heads, int32_t kv_heads) {
    const Files f = tiny(true, heads, kv_heads);
    EXPECT_EQ(generate(f.model, f.tokenizer), 1);
    return slurp(path("err"));
  };
  EXPECT_NE(sentence(5, 5).find("dim is not a multiple of n_heads"), std::string::npos);
  EXPECT_NE(sentence(6, 4).find("n_heads is not a multiple of n_kv_heads"), std::string::npos);
  EXPECT_NE(sentence(4, 2).find("head size is odd"), std::string::npos);
}

TEST_F(Corrupt, WeightsThatAreNotNumbers) {
  for (const Files& f : samples()) {
    Random random;
    for (const float value : {std::nanf(""), HUGE_VALF, -HUGE_VALF, 3e38f, -3e38f, 1e-45f}) {
      std::string few = f.model, all = f.model;
      for (int i = 0; i < 20; ++i) {
        few = with(few, 28 + 4 * random.below(static_cast<uint32_t>((f.model.size() - 28) / 4)), value);
      }
      for (size_t at = 28; at < all.size(); at += 4) std::memcpy(all.data() + at, &value, sizeof value);
      EXPECT_EQ(generate(few, f.tokenizer, {"--steps", "16", "--prompt", "a a"}), 0) << value;
      EXPECT_EQ(generate(all, f.tokenizer, {"--steps", "16", "--prompt", "a a"}), 0) << value;
    }
  }
}

TEST_F(Corrupt, Tokenizers) {
  for (const Files& f : samples()) {
    const std::string& t = f.tokenizer;
    for (const size_t length : {size_t{0}, size_t{3}, size_t{4}, size_t{8}, size_t{12}, size_t{14}, t.size() / 3,
                                t.size() / 2, t.size() - 12, t.size() - 1}) {
      EXPECT_EQ(generate(f.model, t.substr(0, length)), 1) << length << " bytes of " << t.size();
    }
    EXPECT_EQ(generate(f.model, t + "tail"), 1);
    for (const int32_t bad : {0, -1, 1, std::numeric_limits<int32_t>::min()}) {
      EXPECT_EQ(generate(f.model, with(t, 0, bad)), 1) << "max_token_length " << bad;
    }
    EXPECT_EQ(generate(f.model, with(t, 0, std::numeric_limits<int32_t>::max())), 0) << "a bound may be loose";
    for (const int32_t bad :
         {-1, 0, 4, 6, 1 << 20, std::numeric_limits<int32_t>::max(), std::numeric_limits<int32_t>::min()}) {
      EXPECT_EQ(generate(f.model, with(t, 8, bad)), 1) << "length " << bad << " of the first token";
    }
    EXPECT_EQ(generate(f.model, f.model), 1) << "a model is no tokenizer";
    EXPECT_EQ(generate(t, t), 1) << "a tokenizer is no model";
  }
}

TEST_F(Corrupt, RandomBytes) {
  for (const Files& f : samples()) {
    Random random;
    int refused = 0;
    for (int i = 0; i < 60; ++i) {
      std::string model = f.model, tokenizer = f.tokenizer;
      std::string& damaged = i % 2 == 0 ? tokenizer : model;
      const uint32_t span = static_cast<uint32_t>(i % 4 == 1 ? 28 : damaged.size());
      for (int n = 1 + i % 5; n > 0; --n) damaged[random.below(span)] = static_cast<char>(random.below(256));
      refused += generate(model, tokenizer, {"--steps", "16", "--prompt", "a \xC3\xA4 a<s>"});
    }
    EXPECT_GT(refused, 10);
    EXPECT_LT(refused, 60);
  }
}

TEST_F(Corrupt, Options) {
  const Files f = tiny(true);
  spill(path("model"), f.model);
  spill(path("tokenizer"), f.tokenizer);
  const std::string m = path("model").string(), t = path("tokenizer").string();
  const std::string long_prompt(kTinySeqLen + 1, 'b'), endless_prompt(100000, 'a');
  const std::vector<std::vector<std::string>> bad = {
      {},
      {m},
      {m, t, t},
      {m, path("absent").string()},
      {path("absent").string(), t},
      {scratch_.string(), t},
      {m, scratch_.string()},
      {"/dev/zero", t},
      {"", ""},
      {m, t, "--steps"},
      {m, t, "--steps", ""},
      {m, t, "--steps", "-1"},
      {m, t, "--steps", "many"},
      {m, t, "--steps", "16x"},
      {m, t, "--steps", "1e3"},
      {m, t, "--steps", "99999999999999999999"},
      {m, t, "--prompt"},
      {m, t, "--prompt", long_prompt},
      {m, t, "--prompt", endless_prompt},
      {m, t, "--target"},
      {m, t, "--target", ""},
      {m, t, "--target", "highway/abacus"},
      {m, t, "--tempo", "1"},
  };
  for (const auto& arguments : bad) {
    std::string line;
    for (const std::string& a : arguments) line += " " + a.substr(0, 100);
    EXPECT_EQ(run(arguments), 1) << line;
  }
  EXPECT_EQ(run({m, t, "--steps", "9223372036854775807"}), 0) << "the context ends it";
}

}  // namespace
