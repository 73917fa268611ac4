#include "bench/goals.h"

#include <cstdlib>
#include <map>
#include <string_view>
#include <tuple>
#include <vector>

#include "bench/machine.h"

namespace bench {
namespace {

/// The number after a prefix that ends with `mark`, such as 4096 in "1q_4096x128" after '_'; 0 if there is none.
long number_after(std::string_view text, char mark) {
  const size_t at = text.find(mark);
  return at == text.npos ? 0 : std::strtol(std::string(text.substr(at + 1)).c_str(), nullptr, 10);
}
/// The first part of a shape, split at '_', that is a number.
long number_in(std::string_view shape) {
  for (size_t at = 0; at != shape.npos;) {
    const size_t end = shape.find('_', at);
    const std::string part(shape.substr(at, end == shape.npos ? end : end - at));
    char* stop = nullptr;
    const long n = std::strtol(part.c_str(), &stop, 10);
    if (stop != part.c_str() && *stop == 0) return n;
    at = end == shape.npos ? end : end + 1;
  }
  return 0;
}

}  // namespace

bool find_goal(const Record& r, Goal* goal) {
  const std::string isa = isa_of_target(r.target);
  const bool wide = isa == "avx3";
  const bool f32 = r.type == "f32";
  const auto has = [&](std::string_view part) { return r.shape.find(part) != r.shape.npos; };
  const auto share = [&](double floor, double aim) { return *goal = {"share", floor, aim, false}, true; };
  const auto at_most = [&](const char* name, double floor, double aim) {
    return *goal = {name, floor, aim, true}, true;
  };
  if (r.target == "scalar" || r.target.starts_with("peer/")) return false;

  // Without slots. Some 5 ns more are this program's, which calls through two functions.
  if (r.kernel == "call_cost") return !has("attention") && at_most("companion_ns", 50 + 5, 20 + 5);
  if (r.kernel == "plan") {
    const double sequences = static_cast<double>(number_in(r.shape));
    return at_most("ns", 1000 + 5 * sequences, 500 + 3 * sequences);
  }
  if (r.kernel == "range") return at_most("ns_per_call", 100, 50);
  if (r.kernel == "paged") return at_most("relative", 1 / 0.97, 1 / 0.99);  // 3 % and 1 % outside of slots
  // Decode follows the bandwidth, and that falls as keys leave one cache after the other: what is flat is the share of it.
  if (r.kernel == "growth") return has("prefill") ? at_most("relative", 1.1, 1.0) : share(0.78, 0.95);
  if (r.kernel == "threads") return at_most("relative", 1 / 1.9, 1 / 1.98);
  if (isa != "avx3" && isa != "avx2") return false;  // nobody has measured where the others can get
  if (r.kernel == "softmax") {
    if (has("x4096")) return at_most("cycles_per_element", wide ? 0.58 : 1.10, wide ? 0.47 : 0.95);
    if (has("x128")) return at_most("cycles_per_element", wide ? 0.75 : 1.3, wide ? 0.60 : 1.05);
    return false;
  }
  if (r.kernel == "masked_softmax") {
    if (has("causal") || has("bias") || has("boolean")) return at_most("relative", 1.25, 1.1);
    return false;
  }
  if (r.kernel == "scores" || r.kernel == "weighted_values") {
    const bool values = r.kernel == "weighted_values";
    const long rows = number_after(r.shape, '_');
    if (!f32) return has("1q_") && rows >= 4096 ? at_most("relative", 0.60, 0.52) : false;
    if (has("1q_")) {
      if (rows <= 64) return share(0.55, values ? 0.80 : 0.70);
      if (rows <= 512) return share(0.75, 0.97);
      if (rows <= 4096) return share(0.90, 0.98);
      return share(values ? 0.80 : 0.90, values ? 0.95 : 0.97);
    }
    return !values && rows <= 512 ? share(0.80, 0.90) : false;
  }
  if (r.kernel == "rope") {
    // The floors in the first-level cache ask for more than some CPUs have: two vectors need two multiplications and two
    // fused multiply-adds, so 16 bytes a cycle and pipe at 512 bits, where copying stores 64 a cycle. With two pipes and
    // the lower clock of 512-bit arithmetic (Granite Rapids) loops of nothing else reach 0.62 of memcpy, at 256 bits 0.5,
    // and 16-bit types, converted twice, 0.1 to 0.2.
    if (number_in(r.shape) > 1) return share(0.65, 0.9);
    return has("half") ? share(0.9, 1.2) : share(0.7, 0.75);
  }
  if (r.kernel == "kv_append" && has("panels")) {
    if (r.type != "bf16") return false;
    if (has("heads_1")) return at_most("ns", 400, 200);
    return has("rope") ? share(0.40, 0.60) : share(0.60, 0.85);
  }
  if (r.kernel == "kv_shift" && !has("rows")) return share(0.40, 0.70);
  if (r.kernel == "decode") {
    if (has("_rows")) return at_most("relative", 1.5, 1.1);
    return number_in(r.shape) >= 32768 ? share(0.78, 0.95) : share(0.72, 0.90);
  }
  // Decode from storage that has to be quantised or rounded has no goal: it is stored as int8 or bf16 where it is to be fast.
  if (r.kernel.starts_with("arithmetic_") && !r.target.ends_with("/amx")) {
    const bool converted = has("decode") && (r.kernel == "arithmetic_int8" || f32);
    return converted ? false : at_most("relative", 1 / 0.7, 1.0);
  }
  if (r.kernel == "narrow_int8") {
    if (!has("prefill")) return at_most("relative", 0.58, 0.52);
    if (r.target.ends_with("/amx")) return at_most("relative", 1 / 5.0, 1 / 10.0);
    const bool vnni = r.target.ends_with("/avx3_dl") || r.target.ends_with("/avx_vnni");
    return vnni ? at_most("relative", 1 / 2.2, 1 / 3.0) : at_most("relative", 1 / 0.7, 1.0);
  }
  if (r.kernel == "narrow") {
    if (has("prefill")) return at_most("relative", 1.1, 1.0);
    // Of streaming, or with four rows of the multiplications, which then bound it.
    if (has("32of8")) return share(0.95, 1.0);
    if (r.type == "int8") return at_most("relative", 0.58, 0.52);
    return r.type == "q4_0" ? share(0.55, 0.75) : r.type == "q8_0" ? share(0.75, 0.90) : share(0.70, 0.85);
  }
  if (r.kernel == "prefill" && f32 && number_in(r.shape) >= 2048) {
    return has("gpt2") ? share(0.72, 0.84) : share(0.75, 0.88);
  }
  return false;
}

void print_goals(const Report& report, std::FILE* out) {
  // The best target of each instruction set: the goals are about what the machine can do, not about every back end.
  std::vector<std::tuple<std::string, std::string, std::string, std::string>> order;
  std::map<std::tuple<std::string, std::string, std::string, std::string>, const Record*> best;
  for (const Record& r : report.records) {
    Goal goal;
    if (!r.error.empty() || !find_goal(r, &goal)) continue;
    const std::tuple key{r.kernel, r.shape, r.type, isa_of_target(r.target)};
    const Record*& b = best[key];
    if (b == nullptr) order.push_back(key);
    if (b == nullptr || r.ns < b->ns) b = &r;
  }
  int below = 0, between = 0, reached = 0;
  std::fprintf(out, "%-16s %-34s %-5s %-20s %-20s %9s %9s %9s\n", "kernel", "shape", "type", "target", "measure",
               "measured", "floor", "aim");
  for (const auto& key : order) {
    const Record& r = *best[key];
    Goal goal;
    if (!find_goal(r, &goal)) continue;
    const std::string_view counter = goal.counter;
    const auto it = r.counters.find(goal.counter);
    if (counter != "ns" && it == r.counters.end()) continue;
    const double value = counter == "ns" ? r.ns : it->second;
    const auto good = [&](double limit) { return goal.less_is_better ? value <= limit : value >= limit; };
    const char* verdict = good(goal.aim) ? "aim reached" : good(goal.floor) ? "" : "BELOW FLOOR";
    ++(good(goal.aim) ? reached : good(goal.floor) ? between : below);
    const auto noisy = r.counters.find("noisy");
    std::fprintf(out, "%-16s %-34s %-5s %-20s %-20s %8.2f%s %9.2f %9.2f  %s\n", r.kernel.c_str(), r.shape.c_str(),
                 r.type.c_str(), r.target.c_str(), goal.counter, value,
                 noisy != r.counters.end() && noisy->second > 0 ? "~" : " ", goal.floor, goal.aim, verdict);
  }
  std::fprintf(out, "%d reached the aim, %d the floor, %d are below it\n", reached, between, below);
}

}  // namespace bench
