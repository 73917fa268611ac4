#include <atomic>
#include <cstring>
#include <thread>

#include "bench/harness.h"
#include "bench/peers.h"

// Every library does one problem with one thread and with two, and one row (head) of it alone and among others. Bits
// are the same or they are not.

namespace bench {
namespace {

using simdattn::ConstView;
using simdattn::DType;
using simdattn::View;

ConstView<4> rows_view(const void* p, DType t, int64_t heads, int64_t rows, int64_t n) {
  return {p, t, {1, heads, rows, n}};
}
View<4> out_view(void* p, DType t, int64_t heads, int64_t rows, int64_t n) { return {p, t, {1, heads, rows, n}}; }

/// Rows [first, first + rows) of an unfused function.
void own_rows(const Work& w, int64_t first, int64_t rows) {
  const float* q = static_cast<const float*>(w.q) + first * (w.kind == Kind::kScores ? w.d : w.n);
  float* out = static_cast<float*>(w.out) + first * (w.kind == Kind::kWeightedValues ? w.d : w.n);
  if (w.kind == Kind::kSoftmax) {
    (void)simdattn::softmax(simdattn::view(q, {rows, w.n}), simdattn::view(out, {rows, w.n}));
  } else if (w.kind == Kind::kScores) {
    (void)simdattn::scores(rows_view(q, DType::kF32, 1, rows, w.d), rows_view(w.k, DType::kF32, 1, w.n, w.d),
                           out_view(out, DType::kF32, 1, rows, w.n), {.scale = w.scale});
  } else {
    (void)simdattn::weighted_values(rows_view(q, DType::kF32, 1, rows, w.n), rows_view(w.v, DType::kF32, 1, w.n, w.d),
                                    out_view(out, DType::kF32, 1, rows, w.d));
  }
}

/// This library, seen as one of the others: two threads share the tasks of a plan; rows of the unfused functions are
/// cut in two halves, as a caller does it.
Call make_own(const Work& w) {
  if (w.kind != Kind::kAttention) {
    return {[=] {
      if (w.threads == 1) return own_rows(w, 0, w.n_q);
      std::thread other([&] { own_rows(w, w.n_q / 2, w.n_q - w.n_q / 2); });
      own_rows(w, 0, w.n_q / 2);
      other.join();
    }};
  }
  return {[=] {
    simdattn::AttentionProblem a;
    a.q = rows_view(w.q, w.type, w.heads, w.n_q, w.d);
    a.k = rows_view(w.k, w.type, w.kv_heads, w.n, w.d);
    a.v = rows_view(w.v, w.type, w.kv_heads, w.n, w.d);
    a.out = out_view(w.out, w.type, w.heads, w.n_q, w.d);
    a.scoring.scale = w.scale;
    a.scoring.causal = w.causal;
    simdattn::Plan plan;
    if (!simdattn::attention_plan(a, &plan).ok()) return;
    std::vector<Buffer> memory;
    for (int i = 0; i < 2; ++i) memory.emplace_back(plan.workspace_bytes);
    if (w.threads == 1) {
      (void)simdattn::attention(a, {.workspace = memory[0].data(), .workspace_bytes = memory[0].size()});
      return;
    }
    const Buffer partial(plan.partial_bytes);
    for (const bool reduce : {false, true}) {
      std::atomic<int64_t> next{0};
      const auto work = [&](size_t thread) {
        const simdattn::Exec exec{.workspace = memory[thread].data(), .workspace_bytes = memory[thread].size()};
        for (int64_t i; (i = next++) < (reduce ? plan.reduce_tasks : plan.tasks);) {
          (void)(reduce ? simdattn::attention_reduce(plan, i, i + 1, partial.data(), partial.size(), exec)
                        : simdattn::attention_range(plan, i, i + 1, partial.data(), partial.size(), exec));
        }
      };
      std::thread other(work, size_t{1});
      work(0);
      other.join();
    }
  }};
}

bool own_can(const Work& w) { return w.kind != Kind::kRope; }
constexpr Peer kOwn{"simdattn", nullptr, own_can, make_own};

/// A problem, and one row of it alone.
struct Question {
  const char* name;
  Work all, one;
  size_t out_bytes, at;  // of the whole result; where the row's result stands in it
  size_t row_bytes;
};

bool run(const Peer& peer, const Work& w) {
  if (!peer.can(w)) return false;
  const Call call = peer.make(w);
  if (!call.run) return false;
  call.run();
  if (call.after) call.after();
  return true;
}

std::string answer(const Peer& peer, const Question& question) {
  Buffer expected(question.out_bytes), got(question.out_bytes);
  const auto work = [](Work w, const Buffer& out, int threads) {
    w.out = out.data();
    w.threads = threads;
    return w;
  };
  std::memset(expected.data(), 0, expected.size());
  if (!run(peer, work(question.all, expected, 1))) return "";
  std::string text = "threads: ";
  // Three times: which thread does what may change.
  bool can = true, same = true;
  for (int i = 0; i < 3 && can; ++i) {
    std::memset(got.data(), 1, got.size());
    can = run(peer, work(question.all, got, 2));
    same = same && can && std::memcmp(got.data(), expected.data(), question.out_bytes) == 0;
  }
  text += !can ? "one only" : same ? "same" : "differ";
  std::memset(got.data(), 1, got.size());
  if (!run(peer, work(question.one, got, 1))) return text + ", alone: cannot";
  same = std::memcmp(got.data(), expected.as<char>() + question.at, question.row_bytes) == 0;
  return text + (same ? ", alone: same" : ", alone: differ");
}

}  // namespace

std::vector<std::pair<std::string, std::string>> peer_bits() {
  constexpr int64_t kRows = 8, kKeys = 3000, kDim = 128, kGroup = 4;
  const Buffer q = random_buffer(DType::kF32, kRows * kKeys, 1), k = random_buffer(DType::kF32, 2 * kKeys * kDim, 2),
               v = random_buffer(DType::kF32, 2 * kKeys * kDim, 3);
  const auto row = [&](const Buffer& b, int64_t i, int64_t n) {
    return static_cast<const void*>(b.as<float>() + i * n);
  };
  const auto bytes = [](int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); };
  std::vector<Question> questions;
  const auto add = [&](const char* name, Work all, int64_t in_row, int64_t out_row) {
    Work one = all;
    one.n_q = 1;
    one.q = row(q, kRows / 2, in_row);
    questions.push_back({name, all, one, bytes(all.n_q * out_row), bytes(kRows / 2 * out_row), bytes(out_row)});
  };
  const Work plain{.n_q = kRows, .n = kKeys, .d = kDim, .q = q.data(), .k = k.data(), .v = v.data()};
  Work w = plain;
  w.kind = Kind::kSoftmax;
  add("softmax", w, kKeys, kKeys);
  w = plain;
  w.kind = Kind::kScores;
  add("scores", w, kDim, kKeys);
  w = plain;
  w.kind = Kind::kWeightedValues;
  add("weighted values", w, kKeys, kDim);
  // Decode: one key head's group, and that among two.
  w = plain;
  w.kind = Kind::kAttention;
  w.scale = 0.088f;
  w.n_q = 1;
  w.heads = 2 * kGroup;
  w.kv_heads = 2;
  Work one = w;
  one.heads = kGroup;
  one.kv_heads = 1;
  questions.push_back({"decode", w, one, bytes(w.heads * kDim), 0, bytes(kGroup * kDim)});
  // Prefill: its last row, and the same as a decode step.
  w.heads = w.kv_heads = 1;
  w.causal = true;
  w.n = w.n_q = 150;
  one = w;
  one.n_q = 1;
  one.q = row(q, w.n_q - 1, kDim);
  questions.push_back({"prefill", w, one, bytes(w.n_q * kDim), bytes((w.n_q - 1) * kDim), bytes(kDim)});

  std::vector<std::pair<std::string, std::string>> answers;
  for (const Question& question : questions) {
    std::vector<const Peer*> peers = peers_for(question.all);
    peers.insert(peers.begin(), &kOwn);
    for (const Peer* p : peers) {
      const std::string text = answer(*p, question);
      if (!text.empty()) answers.emplace_back(std::string(p->name) + " " + question.name, text);
    }
  }
  return answers;
}

}  // namespace bench
