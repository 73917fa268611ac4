// Attention over one sequence whose keys and values are spread over machines: each rank of MPI holds whole key splits
// and computes a raw state (maximum, accumulator, sum) for each of them. The states of a few heads go round the ranks
// in order; each rank joins its own to them. What comes out has the bits of one machine.
//
//   mpirun -n 4 ring_attention [--keys N] [--rows N] [--check] ...
//
// ring.h has the messages, split_states.h the attention. docs/ring-attention.md explains all three, and how it scales.
#include <mpi.h>
#include <simdattn/simdattn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include "command_line.h"
#include "ring.h"
#include "split_states.h"

namespace {

constexpr char kUsage[] =
    "usage: mpirun -n RANKS ring_attention [--keys N] [--rows N] [--heads N] [--kv-heads N] [--dim N] [--steps N]\n"
    "             [--no-overlap] [--check] [--machines N] [--latency US] [--bandwidth MB/S]\n"
    "             [--patience SECONDS] [--lose RANK] [--how stop|exit|kill]\n"
    "Attention over keys and values that are spread over the ranks of MPI.\n"
    "  --keys N            keys of the sequence (65537)\n"
    "  --rows N            query rows, the last positions of the sequence: 1 is a decode step (1)\n"
    "  --heads N, --kv-heads N, --dim N   shape of a layer (8, 2, 64)\n"
    "  --steps N           how often; the fastest is shown (5)\n"
    "  --no-overlap        wait for the messages of some heads before the work on the next ones\n"
    "  --check             rank 0 holds all keys too and compares with attention in one process, bit by bit\n"
    "  --machines N        also what the model says of up to N machines, with messages of\n"
    "  --latency US, --bandwidth MB/S   (20, 1200: Ethernet of 10 Gbit/s)\n"
    "  --patience SECONDS  without a sign of life of a neighbour for so long, it counts as lost (10)\n"
    "  --lose RANK         this rank stops (or --how exit, kill) in the middle, to see what the others say";

struct Options {
  Layer layer;
  int64_t steps = 5, patience = 10, lose = -1;
  int64_t machines = 0, latency = 20, bandwidth = 1200;
  bool no_overlap = false, check = false;
  std::string how = "stop";
};

// ---- A step ---------------------------------------------------------------------------------------------------------

struct Times {
  double step, work, join, wait;
};

/// One step of attention on all ranks. out [rows, heads, dim], on every rank.
class Step {
 public:
  Step(const Options& o, const Share& share, Ring& ring)
      : o_(o), share_(share), ring_(ring), pieces_(pieces_of(o.layer)) {}

  Times run(const std::vector<float>& q, std::vector<float>& out) {
    times_ = {};
    joined_ = finished_ = 0;
    waiting_.clear();
    ring_.meet();
    const auto start = Clock::now();
    auto shown = start;
    for (size_t p = 0; p < pieces_.size(); ++p) {
      lose(p);
      const auto begin = Clock::now();
      waiting_.emplace_back(o_.layer, share_, pieces_[p]).compute(q, look_);
      times_.work += seconds_since(begin);
      if (o_.no_overlap) {
        finish([&] { return joined_ > p && finished_ > p; }, out);
      } else {
        while (progress(out)) continue;
      }
      if (ring_.first() && seconds_since(shown) > 2) {
        std::fprintf(stderr, "step: %zu of %zu pieces\n", p + 1, pieces_.size());
        shown = Clock::now();
      }
    }
    finish([&] { return joined_ == pieces_.size() && finished_ == pieces_.size(); }, out);
    for (MPI_Request& r : sends_) ring_.wait(r);
    sends_.clear();
    messages_.clear();
    times_.step = seconds_since(start);
    times_.wait = times_.step - times_.work - times_.join;
    return times_;
  }

 private:
  template <class Ready>
  void finish(const Ready& ready, std::vector<float>& out) {
    ring_.wait_until([&] {
      while (progress(out)) continue;
      return ready();
    });
  }

  /// Does what can be done without waiting: joins a piece whose earlier states have come and passes it on; takes a
  /// result and passes it on. True if it did something.
  bool progress(std::vector<float>& out) {
    bool did = false;
    if (!waiting_.empty()) {
      States& states = waiting_.front();
      if (!ring_.first() && state_request_ == MPI_REQUEST_NULL && state_.empty()) {
        state_.resize(count(states.size()));
        state_request_ = ring_.receive(state_, ring_.previous(), kState);
      }
      if (ring_.first()) state_ = states.empty();
      if (ring_.first() || ring_.done(state_request_)) {
        const auto begin = Clock::now();
        states.join_to(state_, look_);
        if (ring_.last()) {
          result(pieces_[joined_], states.finish(state_), out);
        } else {
          send(std::move(state_), kState);
        }
        times_.join += seconds_since(begin);
        state_.clear();
        waiting_.pop_front();
        ++joined_;
        did = true;
      }
    }
    if (!ring_.last() && finished_ < pieces_.size()) {  // the last rank has results first; they go on round the ring
      if (result_request_ == MPI_REQUEST_NULL && result_.empty()) {
        result_.resize(count(o_.layer.group() * pieces_[finished_].rows * o_.layer.dim));
        result_request_ = ring_.receive(result_, ring_.previous(), kResult);
      }
      if (ring_.done(result_request_)) {
        result(pieces_[finished_], std::move(result_), out);
        result_.clear();
        did = true;
      }
    }
    return did;
  }

  void result(const Piece& piece, std::vector<float> rows, std::vector<float>& out) {
    for (int64_t g = 0; g < o_.layer.group(); ++g) {
      for (int64_t i = 0; i < piece.rows; ++i) {
        std::copy_n(rows.begin() + (g * piece.rows + i) * o_.layer.dim, o_.layer.dim,
                    out.begin() +
                        ((piece.first_row + i) * o_.layer.heads + piece.kv_head * o_.layer.group() + g) * o_.layer.dim);
      }
    }
    ++finished_;
    if (ring_.size() > 1 && ring_.rank() + 2 != ring_.size()) send(std::move(rows), kResult);  // not to its origin
  }

  void send(std::vector<float> numbers, Tag tag) {
    messages_.push_back(std::move(numbers));
    sends_.push_back(ring_.send(messages_.back(), ring_.next(), tag));
  }

  /// --lose: in the middle of a step.
  void lose(size_t piece) {
    if (o_.lose != ring_.rank() || piece != pieces_.size() / 2) return;
    if (o_.how == "exit") {
      std::fprintf(stderr, "ring_attention: rank %d: ends with status 3 in the middle of a step\n", ring_.rank());
      std::_Exit(3);
    }
    std::raise(o_.how == "kill" ? SIGKILL : SIGSTOP);
  }

  const Options& o_;
  const Share& share_;
  Ring& ring_;
  const Look look_ = [this] { ring_.look(); };
  std::vector<Piece> pieces_;
  size_t joined_ = 0, finished_ = 0;  // pieces that this rank has passed on; whose results it has
  std::deque<States> waiting_;        // computed, not yet joined
  std::vector<float> state_, result_;
  MPI_Request state_request_ = MPI_REQUEST_NULL, result_request_ = MPI_REQUEST_NULL;
  std::deque<std::vector<float>> messages_;
  std::vector<MPI_Request> sends_;
  Times times_{};
};

/// The same on one rank that holds all keys: one call of attention.
std::vector<float> in_one_process(const Options& o, const std::vector<float>& q, Ring& ring) {
  const Look look = [&] { ring.look(); };
  Share all(o.layer, 0, o.layer.splits(), look);
  all.keys.length = all.values.length = o.layer.keys;
  std::vector<float> out(q.size());
  const std::array<int64_t, 4> shape = {1, o.layer.heads, o.layer.rows, o.layer.dim},
                               strides = {0, o.layer.dim, o.layer.heads * o.layer.dim, 1};
  run({.q = {q.data(), sa::DType::kF32, shape, strides},
       .k = all.keys,
       .v = all.values,
       .out = {out.data(), sa::DType::kF32, shape, strides},
       .scoring = {.causal = true}},
      look);
  return out;
}

/// Seconds for a message of `numbers` floats to a neighbour and back, halved.
double message_seconds(Ring& ring, size_t numbers) {
  std::vector<float> data(numbers);
  double best = 1e9;
  for (int i = 0; i < 50; ++i) {
    const auto start = Clock::now();
    for (const int sender : {0, 1}) {
      if (ring.rank() > 1) continue;
      MPI_Request r =
          ring.rank() == sender ? ring.send(data, 1 - sender, kState) : ring.receive(data, 1 - ring.rank(), kState);
      ring.wait(r);
    }
    best = std::min(best, seconds_since(start) / 2);
  }
  ring.meet();
  return best;
}

/// What a step takes, from what its parts take. docs/ring-attention.md derives it.
struct Model {
  double work, join;         // seconds for a split, all heads
  double latency, per_byte;  // seconds of a message

  double step(const Options& o, int64_t ranks) const {
    const int64_t splits = o.layer.splits(), most = (splits + ranks - 1) / ranks;
    const auto all = static_cast<double>(splits), own = static_cast<double>(most),
               hops = static_cast<double>(ranks - 1);
    const auto pieces = static_cast<double>(pieces_of(o.layer).size());
    // A state and a result of a piece.
    const double numbers = static_cast<double>(o.layer.heads * o.layer.rows * (2 * o.layer.dim + 2)) / pieces;
    const double messages = 2 * latency + numbers * sizeof(float) * per_byte;
    if (o.no_overlap) return own * work + all * join + pieces * hops * messages;
    return own * (work + join) + hops * (own * join / pieces + messages);
  }
};

/// On rank 0. times: Times and bytes of each rank.
void report(const Options& o, const Ring& ring, const std::vector<double>& times, double latency, double per_byte) {
  const int64_t splits = o.layer.splits();
  std::printf("%d ranks, %lld keys in %lld splits, %lld rows, %lld/%lld heads of %lld, f16, %s\n", ring.size(),
              static_cast<long long>(o.layer.keys), static_cast<long long>(splits),
              static_cast<long long>(o.layer.rows), static_cast<long long>(o.layer.heads),
              static_cast<long long>(o.layer.kv_heads), static_cast<long long>(o.layer.dim),
              o.no_overlap ? "messages, then work" : "messages beside work");
  std::printf("%6s %7s %10s %10s %10s %10s %16s\n", "rank", "splits", "step ms", "work ms", "joins ms", "waits ms",
              "bytes per token");
  Model model{0, 0, latency, per_byte};
  for (int r = 0; r < ring.size(); ++r) {
    const double* x = &times[count(r) * 5];
    const int64_t own = share_begin(splits, r + 1, ring.size()) - share_begin(splits, r, ring.size());
    std::printf("%6d %7lld %10.3f %10.3f %10.3f %10.3f %16.0f\n", r, static_cast<long long>(own), x[0] * 1e3,
                x[1] * 1e3, x[2] * 1e3, x[3] * 1e3, x[4]);
    if (own == 0) continue;
    model.work = std::max(model.work, x[1] / static_cast<double>(own));
    model.join = std::max(model.join, x[2] / static_cast<double>(own));
  }
  std::printf(
      "a split: work %.2f us, join %.2f us; a message: %.2f us and %.2f GB/s; by the model a step takes %.3f ms\n",
      model.work * 1e6, model.join * 1e6, latency * 1e6, per_byte > 0 ? 1e-9 / per_byte : 0.0,
      model.step(o, ring.size()) * 1e3);
  if (o.machines == 0) return;
  model.latency = static_cast<double>(o.latency) * 1e-6;
  model.per_byte = 1e-6 / static_cast<double>(o.bandwidth);
  std::printf("by the model, with messages of %lld us and %lld MB/s:\n%9s %10s %8s\n",
              static_cast<long long>(o.latency), static_cast<long long>(o.bandwidth), "machines", "step ms", "faster");
  for (int64_t n = 1; n <= o.machines; n *= 2) {
    std::printf("%9lld %10.3f %8.1f\n", static_cast<long long>(n), model.step(o, n) * 1e3,
                model.step(o, 1) / model.step(o, n));
  }
}

int run_ring(const Options& o) {
  Ring ring(static_cast<double>(o.patience));
  if (o.lose >= ring.size()) throw std::runtime_error("--lose names a rank that does not exist");
  const auto border = [&](int64_t rank) { return share_begin(o.layer.splits(), rank, ring.size()); };
  const int64_t first = border(ring.rank()), last = border(ring.rank() + 1);
  auto shown = Clock::now();
  int64_t filled = 0;
  const Share share(o.layer, first, last, [&] {
    ring.look();
    ++filled;
    if (!ring.first() || seconds_since(shown) < 2) return;
    shown = Clock::now();
    std::fprintf(stderr, "keys: %lld of %lld splits of this rank\n", static_cast<long long>(filled),
                 static_cast<long long>(last - first));
  });
  const std::vector<float> q = rows_at(0, o.layer.keys - o.layer.rows, o.layer.rows, o.layer.heads, o.layer.dim);
  std::vector<float> out(q.size());

  Step step(o, share, ring);
  Times best{1e9, 0, 0, 0};
  const size_t before = ring.sent();
  for (int64_t i = 0; i < o.steps; ++i) {
    const Times t = step.run(q, out);
    if (t.step < best.step) best = t;
  }
  const double sent = static_cast<double>(ring.sent() - before) / static_cast<double>(o.steps * o.layer.rows);

  const double mine[5] = {best.step, best.work, best.join, best.wait, sent};
  std::vector<double> all(count(ring.size()) * 5);
  MPI_Request gather = MPI_REQUEST_NULL;
  MPI_Igather(mine, 5, MPI_DOUBLE, all.data(), 5, MPI_DOUBLE, 0, MPI_COMM_WORLD, &gather);
  ring.wait(gather);
  constexpr size_t kLarge = 262144;
  const double small = ring.size() > 1 ? message_seconds(ring, 1) : 0;
  const double large = ring.size() > 1 ? message_seconds(ring, kLarge) : 0;
  if (ring.first()) report(o, ring, all, small, (large - small) / (kLarge * sizeof(float)));

  int bad = 0;
  if (o.check && ring.first()) {
    const std::vector<float> expected = in_one_process(o, q, ring);
    const sa::Target* target = nullptr;
    check(sa::default_target(&target));
    const bool same = std::memcmp(expected.data(), out.data(), out.size() * sizeof(float)) == 0;
    bool close = true;
    for (size_t i = 0; i < out.size(); ++i) close = close && std::fabs(out[i] - expected[i]) < 1e-5f;
    // Without fused multiply-add states are joined with roundings of their own.
    bad = !same && (sa::target_exact(*target) || !close);
    std::printf("%s\n", same       ? "the same bits as one process"
                        : bad == 0 ? "close to one process: this target has no fused multiply-add"
                                   : "DIFFERENT BITS from one process");
  }
  ring.meet();
  return bad;
}

int run(int argc, char** argv) {
  Options o;
  CommandLine line(kUsage);
  line.whole("--keys", &o.layer.keys, 1, int64_t{1} << 30).whole("--rows", &o.layer.rows, 1, int64_t{1} << 20);
  line.whole("--heads", &o.layer.heads, 1, 1024)
      .whole("--kv-heads", &o.layer.kv_heads, 1, 1024)
      .whole("--dim", &o.layer.dim, 1, 1024);
  line.whole("--steps", &o.steps, 1, 1000000)
      .whole("--patience", &o.patience, 1, 86400)
      .whole("--lose", &o.lose, 0, 1 << 20);
  line.whole("--machines", &o.machines, 1, 1 << 20).whole("--latency", &o.latency, 0, 1000000);
  line.whole("--bandwidth", &o.bandwidth, 1, 1000000);
  line.flag("--no-overlap", &o.no_overlap).flag("--check", &o.check).text("--how", &o.how);
  if (!line.parse(argc, argv).empty()) throw std::runtime_error("it takes options alone\n" + line.usage());
  if (o.layer.heads % o.layer.kv_heads != 0) throw std::runtime_error("--heads must be a multiple of --kv-heads");
  if (o.layer.rows > o.layer.keys)
    throw std::runtime_error("--rows: there are only " + std::to_string(o.layer.keys) + " keys");
  if (o.how != "stop" && o.how != "exit" && o.how != "kill") throw std::runtime_error("--how takes stop, exit or kill");
  MPI_Init(&argc, &argv);
  try {
    const int status = run_ring(o);
    MPI_Finalize();
    return status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ring_attention: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("ring_attention", [&] { return run(argc, argv); });
}
