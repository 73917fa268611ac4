// Lines of RoPE and of tables of positions.
#include "tools/digest/run.h"

namespace simdattn::digest {
namespace {

bool run_rope(Run& run, DType x_type, DType out_type) {
  Random& random = run.random;
  RopeOptions options;
  options.pairing = random.one_in(2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  options.inverse = random.one_in(3);
  options.first_dim = random.one_in(2) ? 0 : random.integer(1, 20);
  const int64_t half = run.size(1, 70);
  const int64_t dim = options.first_dim + 2 * half + random.integer(0, 9);
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 5), n = random.integer(1, 7);
  const Array<4> x = input(random, x_type, {batch, heads, n, dim}, run.values());
  Array<2> cos, sin;
  random_table(run, cos, sin, n + 20, half);
  Array<2> positions(random.one_in(2) ? DType::kI64 : DType::kI32, {batch, n});
  for (int64_t i = 0; i < batch * n; ++i) positions.buffer.set(i, random.integer(0, n + 19));
  const ConstView<2> given = random.one_in(2) ? ConstView<2>(positions.view) : ConstView<2>();
  Array<4> out(out_type, {batch, heads, n, dim});
  if (!run.ok(rope(x.view, cos.view, sin.view, given, out.view, options, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

bool run_rope_direct(Run& run, DType x_type) {
  Random& random = run.random;
  const int64_t batch = random.integer(1, 2), heads = random.integer(1, 4), n = random.integer(1, 6);
  const int64_t half = run.size(1, 70), dim = 2 * half + random.integer(0, 9);
  const Array<4> x = input(random, x_type, {batch, heads, n, dim}, run.values());
  RopeTableOptions table;
  table.rope_theta = random.of({10000.0, 500000.0});
  RopeOptions options;
  options.pairing = random.one_in(2) ? RopePairing::kInterleaved : RopePairing::kHalfSplit;
  Array<3> positions(DType::kI32, {1, batch, n});
  for (int64_t i = 0; i < batch * n; ++i) positions.buffer.set(i, random.integer(0, 1000000));
  Array<4> out(x_type, {batch, heads, n, dim});
  if (!run.ok(rope_direct(x.view, half, table, positions.view, out.view, options, run.exec()))) return false;
  run.add(out.buffer);
  return true;
}

bool run_rope_table(Run& run, RopeType type, bool f32_angles) {
  Random& random = run.random;
  const int64_t half = random.of<int64_t>({16, 32, 40, 64, 96}), n = 24;
  RopeTableOptions options;
  options.rope_type = type;
  options.f32_angles = f32_angles;
  options.rope_theta = random.of({10000.0, 150000.0, 500000.0, 1e6});
  options.factor = random.of({2.0, 8.0, 32.0});
  if (type == RopeType::kDefault) options.factor = 0;
  options.original_max_position_embeddings = random.of<int64_t>({4096, 8192});
  options.max_position_embeddings = 4 * options.original_max_position_embeddings;
  options.seq_len = random.one_in(2) ? 0 : random.integer(1, 200000);
  options.partial_rotary_factor = type == RopeType::kProportional ? 0.25 : 1;
  std::vector<double> short_factor, long_factor;
  for (int64_t i = 0; i < half; ++i) {
    short_factor.push_back(static_cast<double>(random.integer(64, 128)) / 64);
    long_factor.push_back(static_cast<double>(random.integer(64, 4096)) / 64);
  }
  options.short_factor = short_factor;
  options.long_factor = long_factor;
  Array<2> cos(DType::kF32, {n, half}), sin(DType::kF32, {n, half}), positions(DType::kI64, {1, n});
  for (int64_t i = 0; i < n; ++i) {
    const int64_t range = random.of<int64_t>({100, 100000, (int64_t{1} << 31) - 1});
    positions.buffer.set(i, random.integer(-range, range));
  }
  if (!run.ok(rope_table(cos.view, sin.view, options, positions.view))) return false;
  run.add(cos.buffer);
  run.add(sin.buffer);
  std::vector<double> frequencies(static_cast<size_t>(half));
  double factor = 0;
  if (!run.ok(rope_frequencies(frequencies.data(), half, &factor, options))) return false;
  run.digest.add(frequencies.data(), frequencies.size() * sizeof(double));
  run.digest.add(&factor, sizeof factor);
  return true;
}

bool run_sinusoidal(Run& run) {
  Random& random = run.random;
  const int64_t n = random.integer(1, 20), dim = run.size(1, 140);
  const double base = random.of({100.0, 10000.0, 1e6});
  const int64_t first = random.one_in(2) ? 0 : random.integer(-100000, 100000);
  Array<2> out(DType::kF32, {n, dim});
  if (!run.ok(sinusoidal_table(out.view, base, {}, first))) return false;
  run.add(out.buffer);
  return true;
}

bool run_alibi(Run& run) {
  std::vector<float> slopes(static_cast<size_t>(run.random.integer(1, 200)));
  if (!run.ok(alibi_slopes(static_cast<int64_t>(slopes.size()), slopes.data()))) return false;
  run.digest.add(slopes.data(), slopes.size() * sizeof(float));
  return true;
}

}  // namespace

void add_position_lines(Lines* lines) {
  const auto add = [&](const std::string& name, int problems, std::function<bool(Run&)> run) {
    lines->push_back({name, problems, std::move(run)});
  };
  for (const DType a : kTypes) {
    for (const DType b : kTypes) {
      add(std::string("rope ") + type_name(a) + " " + type_name(b), 20, [=](Run& r) { return run_rope(r, a, b); });
    }
    add(std::string("rope_direct ") + type_name(a), 8, [=](Run& r) { return run_rope_direct(r, a); });
  }
  constexpr std::pair<RopeType, const char*> kRopeTypes[] = {
      {RopeType::kDefault, "default"},  {RopeType::kLinear, "linear"}, {RopeType::kProportional, "proportional"},
      {RopeType::kDynamic, "dynamic"},  {RopeType::kYarn, "yarn"},     {RopeType::kLlama3, "llama3"},
      {RopeType::kLongRope, "longrope"}};
  for (const auto& [type, name] : kRopeTypes) {
    add(std::string("rope_table ") + name, 4, [t = type](Run& r) { return run_rope_table(r, t, false); });
    add(std::string("rope_table f32_angles ") + name, 4, [t = type](Run& r) { return run_rope_table(r, t, true); });
  }
  add("sinusoidal_table", 10, run_sinusoidal);
  add("alibi_slopes", 20, run_alibi);
}

}  // namespace simdattn::digest
