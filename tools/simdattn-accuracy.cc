// The error of attention by arithmetic and storage, with and without a Hadamard rotation, as the tables of
// docs/numerics.md#accuracy.
//
//   simdattn-accuracy [REAL_ACTIVATIONS]
//
// Queries, keys and values are f32; keys and values are stored, and attended to in an arithmetic. The result is
// compared with softmax(q k^T / sqrt(d)) v in float64 of the numbers before they were stored: root mean square of the
// difference over that of the output, in per cent. REAL_ACTIVATIONS is a folder of cases with q.npy, k.npy and v.npy.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "simdattn/extras.h"

namespace sa = simdattn;

namespace {

void check(const sa::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.detail);
}
size_t count(int64_t n) { return static_cast<size_t>(n); }

/// SplitMix64, and normal numbers from it by the polar way.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  double uniform() {  // in (-1, 1)
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>(static_cast<int64_t>(z ^ (z >> 31))) * 0x1p-63;
  }
  float normal() {
    for (;;) {
      const double x = uniform(), y = uniform(), r = x * x + y * y;
      if (r > 0 && r < 1) return static_cast<float>(x * std::sqrt(-2 * std::log(r) / r));
    }
  }

 private:
  uint64_t state_;
};

/// One problem: q [heads][rows][d], k and v [kv_heads][n][d]. Row r of a head sees `sees(r)` keys.
struct Problem {
  int64_t heads, kv_heads, rows, n, d;
  bool causal;
  std::vector<float> q, k, v;

  Problem(int64_t heads_, int64_t kv_heads_, int64_t rows_, int64_t n_, int64_t d_, bool causal_)
      : heads(heads_), kv_heads(kv_heads_), rows(rows_), n(n_), d(d_), causal(causal_) {
    q.resize(count(heads * rows * d));
    k.resize(count(kv_heads * n * d));
    v.resize(k.size());
  }
  int64_t sees(int64_t row) const { return causal ? n - rows + row + 1 : n; }

  std::vector<double> exact() const {
    std::vector<double> out(count(heads * rows * d), 0.0), score(count(n));
    for (int64_t h = 0; h < heads; ++h) {
      const float* keys = k.data() + h * kv_heads / heads * n * d;
      const float* values = v.data() + h * kv_heads / heads * n * d;
      for (int64_t r = 0; r < rows; ++r) {
        const float* query = q.data() + (h * rows + r) * d;
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < sees(r); ++j) {
          double s = 0;
          for (int64_t i = 0; i < d; ++i) s += static_cast<double>(query[i]) * static_cast<double>(keys[j * d + i]);
          score[count(j)] = s / std::sqrt(static_cast<double>(d));
          most = std::max(most, score[count(j)]);
        }
        double* o = out.data() + (h * rows + r) * d;
        for (int64_t j = 0; j < sees(r); ++j) {
          const double w = std::exp(score[count(j)] - most);
          sum += w;
          for (int64_t i = 0; i < d; ++i) o[i] += w * static_cast<double>(values[j * d + i]);
        }
        for (int64_t i = 0; i < d; ++i) o[i] /= sum;
      }
    }
    return out;
  }
};

struct Storage {
  const char* name;
  sa::KvType type;
};
constexpr Storage kStorages[] = {
    {"f32", sa::KvType::kF32},   {"bf16", sa::KvType::kBF16},        {"f16", sa::KvType::kF16},
    {"int8", sa::KvType::kInt8}, {"fp8 e4m3", sa::KvType::kFp8E4M3}, {"fp8 e5m2", sa::KvType::kFp8E5M2},
    {"q8_0", sa::KvType::kQ8_0}, {"q4_0", sa::KvType::kQ4_0},
};
struct Way {
  const char* name;
  sa::Arithmetic arithmetic;
};
constexpr Way kWays[] = {
    {"f32", sa::Arithmetic::kF32}, {"bf16", sa::Arithmetic::kBF16}, {"int8", sa::Arithmetic::kInt8}};

/// A cache of one type, filled from f32 rows.
struct Cache {
  std::vector<std::byte> memory;
  std::vector<float> scales;  // of fp8 they stay 1
  sa::Kv kv;

  Cache(const Storage& storage, const std::vector<float>& rows, const Problem& p) {
    memory.resize(count(sa::kv_bytes(storage.type, sa::KvLayout::kRows, 1, p.kv_heads, p.n, p.d)));
    kv = sa::contiguous_kv(memory.data(), storage.type, sa::KvLayout::kRows, 1, p.kv_heads, p.n, p.d);
    if (sa::has_scales(storage.type)) {
      scales.assign(count(p.kv_heads * p.n), 1.0f);
      kv = sa::contiguous_scales(kv, scales.data());
    }
    check(sa::kv_append(sa::view(rows.data(), {1, p.kv_heads, p.n, p.d}), {}, kv));
  }
};

std::vector<float> rotated(const std::vector<float>& x, int64_t d, bool rotate) {
  std::vector<float> y = x;
  if (rotate) {
    const int64_t rows = static_cast<int64_t>(x.size()) / d;
    check(sa::hadamard(sa::view(x.data(), {1, 1, rows, d}), sa::view(y.data(), {1, 1, rows, d})));
  }
  return y;
}

/// Root mean square of the error over that of the exact output.
double error(const Problem& p, const std::vector<double>& exact, const Storage& storage, const Way& way, bool rotate) {
  const std::vector<float> q = rotated(p.q, p.d, rotate);
  const Cache keys(storage, rotated(p.k, p.d, rotate), p), values(storage, rotated(p.v, p.d, rotate), p);
  std::vector<float> out(count(p.heads * p.rows * p.d));
  sa::AttentionProblem problem;
  problem.q = sa::view(q.data(), {1, p.heads, p.rows, p.d});
  problem.k = keys.kv;
  problem.v = values.kv;
  problem.out = sa::view(out.data(), {1, p.heads, p.rows, p.d});
  problem.scoring.causal = p.causal;
  problem.arithmetic = way.arithmetic;
  sa::Plan plan;
  check(sa::attention_plan(problem, &plan));
  std::vector<std::byte> workspace(plan.workspace_bytes);
  sa::Exec exec;
  exec.workspace = workspace.data();
  exec.workspace_bytes = workspace.size();
  check(sa::attention(problem, exec));
  out = rotated(out, p.d, rotate);
  double squares = 0, all = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double difference = static_cast<double>(out[i]) - exact[i];
    squares += difference * difference;
    all += exact[i] * exact[i];
  }
  return std::sqrt(squares / all);
}

struct Column {
  std::string name;
  std::vector<Problem> problems;
};

/// Normal numbers; scores `sharpness` times as large; four channels of keys `outliers` times as large as the others.
Problem random_problem(int64_t n, int64_t d, double sharpness, double outliers) {
  Problem p(2, 1, 8, n, d, false);
  Random random(static_cast<uint64_t>(n * 1000 + d));
  for (float& x : p.q) x = random.normal() * static_cast<float>(sharpness);
  for (float& x : p.k) x = random.normal();
  for (float& x : p.v) x = random.normal();
  for (int64_t j = 0; j < n; ++j) {
    for (const int64_t c : {3, 17, 40, 55}) p.k[count(j * d + c)] *= static_cast<float>(outliers);
  }
  // The scores keep their spread: what the outliers cost is digits.
  for (int64_t r = 0; r < 2 * 8 && outliers != 1; ++r) {
    for (const int64_t c : {3, 17, 40, 55}) p.q[count(r * d + c)] /= static_cast<float>(outliers);
  }
  return p;
}

std::vector<float> read_npy(const std::filesystem::path& path, std::vector<int64_t>* shape) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  uint16_t header = 0;
  if (bytes.size() > 10) std::memcpy(&header, bytes.data() + 8, 2);
  const std::string text(bytes.data(), std::min<size_t>(bytes.size(), 10u + header));
  if (header == 0 || text.find("'<f4'") == std::string::npos)
    throw std::runtime_error(path.string() + ": no f32 NPY file");
  shape->clear();
  for (size_t at = text.find("'shape': (") + 10; at < text.size() && text[at] != ')';) {
    size_t used = 0;
    shape->push_back(std::stoll(text.substr(at), &used));
    at = text.find_first_of("0123456789)", at + used);
  }
  std::vector<float> x((bytes.size() - 10 - header) / sizeof(float));
  std::memcpy(x.data(), bytes.data() + 10 + header, x.size() * sizeof(float));
  return x;
}

std::vector<Problem> real_problems(const std::filesystem::path& folder) {
  std::vector<Problem> problems;
  std::vector<std::filesystem::path> cases;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (std::filesystem::exists(entry.path() / "v.npy")) cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  for (const auto& at : cases) {
    std::vector<int64_t> q, k, v;
    const std::vector<float> rows = read_npy(at / "q.npy", &q), keys = read_npy(at / "k.npy", &k),
                             values = read_npy(at / "v.npy", &v);
    Problem p(q[1], k[1], q[2], k[2], q[3], true);
    p.q = rows;
    p.k = keys;
    p.v = values;
    problems.push_back(std::move(p));
  }
  if (problems.empty()) throw std::runtime_error(folder.string() + ": no cases with q.npy, k.npy and v.npy");
  return problems;
}

void print_table(const std::vector<Column>& columns) {
  std::printf("| storage | arithmetic | rotated |");
  for (const Column& c : columns) std::printf(" %s |", c.name.c_str());
  std::printf("\n|---|---|---|");
  for (size_t i = 0; i < columns.size(); ++i) std::printf("---|");
  std::printf("\n");
  std::vector<std::vector<std::vector<double>>> exact;
  for (const Column& c : columns) {
    exact.emplace_back();
    for (const Problem& p : c.problems) exact.back().push_back(p.exact());
  }
  for (const Storage& storage : kStorages) {
    for (const Way& way : kWays) {
      for (const bool rotate : {false, true}) {
        std::printf("| %s | %s | %s |", storage.name, way.name, rotate ? "yes" : "no");
        for (size_t i = 0; i < columns.size(); ++i) {
          if (sa::row_bytes(storage.type, columns[i].problems[0].d) == 0) {  // the dimension is none of this type
            std::printf(" |");
            continue;
          }
          double least = INFINITY, most = 0;
          for (size_t j = 0; j < columns[i].problems.size(); ++j) {
            const double e = 100 * error(columns[i].problems[j], exact[i][j], storage, way, rotate);
            least = std::min(least, e);
            most = std::max(most, e);
          }
          if (columns[i].problems.size() > 1) {
            std::printf(" %.2g - %.2g |", least, most);
          } else {
            std::printf(" %.2g |", most);
          }
          std::fflush(stdout);
        }
        std::printf("\n");
      }
    }
  }
}

int run(int argc, char** argv) {
  std::vector<Column> columns;
  for (const int64_t n : {256, 4096, 65536}) {
    columns.push_back({"normal, " + std::to_string(n), {random_problem(n, 128, 1, 1)}});
  }
  columns.push_back({"sharper, 4096", {random_problem(4096, 128, 3, 1)}});
  columns.push_back({"outliers, 4096", {random_problem(4096, 128, 1, 12)}});
  if (argc > 1) columns.push_back({"real", real_problems(argv[1])});
  print_table(columns);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "simdattn-accuracy: %s\n", error.what());
    return 1;
  }
}
