// An encoder-decoder that learns to write dates: "Friday, 3 May 1979" becomes "1979-05-03". The set-up of the
// introductions to attention: the encoder reads the whole date, the decoder writes one character after the other and
// looks at the encoder's rows by cross attention. Learns from random dates, then translates dates that it has never
// seen, with two KV caches: that of the decoder's own characters grows, that of the source is written once. Prints
// where the decoder looked.
//
//   encoder_decoder [--steps N] [--date "3 May 1979"]
//
// docs/decode-loop.md#an-encoder-decoder explains this file.
#include <simdattn/simdattn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "command_line.h"
#include "learning_layers.h"

namespace {

namespace sa = simdattn;
using learning::attend;
using learning::check;
using learning::count;
using learning::Rows;

constexpr char kUsage[] =
    "usage: encoder_decoder [--steps N] [--batch N] [--seed N] [--accuracy PERCENT] [--date DATE]\n"
    "Teaches a small encoder-decoder to write dates as 1979-05-03, and shows where it looks.\n"
    "  --steps N           training steps (1000)\n"
    "  --batch N           dates of a step (32)\n"
    "  --seed N            of the weights and of the dates (1)\n"
    "  --accuracy PERCENT  exit status 1 if fewer of the dates that it never saw come out right (0)\n"
    "  --date DATE         a date to translate after training: 3 May 1979; May 3, 1979; 1979 May 3; Friday, 3 May 1979";

// ---- Dates and tokens -----------------------------------------------------------------------------------------------

constexpr int64_t kHeads = 2, kDim = 16, kColumns = kHeads * kDim, kWidth = 64;
constexpr int64_t kLongest = 12;  // tokens of "Friday, 13 May 1979"
constexpr int64_t kTarget = 10;   // characters of "1979-05-13"

/// Words are tokens, digits and signs are tokens of one character.
const std::array<std::string, 31> kSourceTokens = {
    "0",      "1",       "2",         "3",        "4",         "5",        "6",        "7",
    "8",      "9",       " ",         ",",        "January",   "February", "March",    "April",
    "May",    "June",    "July",      "August",   "September", "October",  "November", "December",
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday",    "Saturday", "Sunday"};
const std::string kTargetTokens = "0123456789-^";  // ^ begins a target

struct Date {
  int year, month, day, form;
};

std::string source_of(const Date& d, std::mt19937& random) {
  const std::string day = std::to_string(d.day), month = kSourceTokens[count(11 + d.month)],
                    year = std::to_string(d.year);
  switch (d.form) {
    case 0: return day + " " + month + " " + year;
    case 1: return month + " " + day + ", " + year;
    case 2: return year + " " + month + " " + day;
    default: return kSourceTokens[24 + random() % 7] + ", " + day + " " + month + " " + year;
  }
}

std::string target_of(const Date& d) {
  char text[16];
  std::snprintf(text, sizeof text, "%04d-%02d-%02d", d.year % 10000, d.month % 100, d.day % 100);
  return text;
}

std::vector<int> tokens_of(const std::string& text) {
  std::vector<int> tokens;
  for (size_t at = 0; at < text.size();) {
    size_t found = kSourceTokens.size();
    for (size_t t = 0; t < kSourceTokens.size(); ++t) {
      if (text.compare(at, kSourceTokens[t].size(), kSourceTokens[t]) == 0) found = t;
    }
    if (found == kSourceTokens.size()) throw std::runtime_error("--date: it cannot read \"" + text.substr(at) + "\"");
    tokens.push_back(static_cast<int>(found));
    at += kSourceTokens[found].size();
  }
  if (tokens.empty() || tokens.size() > count(kLongest)) {
    throw std::runtime_error("--date: it reads 1 to 12 words, digits and signs, not " + std::to_string(tokens.size()));
  }
  return tokens;
}

/// Every tenth day of the calendar is kept out of training.
bool held_out(const Date& d) {
  return static_cast<uint32_t>(d.year * 372 + d.month * 31 + d.day) * 2654435761u % 65536 % 10 == 0;
}

/// A date of the calendar that is, or is not, kept out of training.
Date random_date(bool held, std::mt19937& random) {
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<uint32_t>(n)); };
  for (;;) {
    Date d{1900 + below(200), 1 + below(12), 0, below(4)};
    d.day = 1 + below(kDays[d.month - 1]);
    if (held_out(d) == held) return d;
  }
}

/// Sources padded to the longest of them, and their lengths.
struct Batch {
  int64_t size = 0, n = 0;
  std::vector<int> source, target;  // [size, n]; [size, kTarget], or empty
  std::vector<int32_t> lengths;

  explicit Batch(const std::vector<std::string>& sources) : size(static_cast<int64_t>(sources.size())) {
    std::vector<std::vector<int>> all;
    for (const std::string& s : sources) all.push_back(tokens_of(s));
    for (const auto& t : all) n = std::max(n, static_cast<int64_t>(t.size()));
    for (auto& t : all) {
      lengths.push_back(static_cast<int32_t>(t.size()));
      t.resize(count(n));  // what stands in the padding has no influence
      source.insert(source.end(), t.begin(), t.end());
    }
  }
};

// ---- The model ------------------------------------------------------------------------------------------------------

/// x[i] = token[tokens[i]] + position[positions from `first` on], [size, n, kColumns].
Rows embed(const learning::Matrix& token, const learning::Matrix& position, const std::vector<int>& tokens, int64_t n,
           int64_t first) {
  Rows x(tokens.size() * kColumns);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const float* t = token.weight.data() + tokens[i] * kColumns;
    const float* p = position.weight.data() + (first + static_cast<int64_t>(i) % n) * kColumns;
    for (int64_t c = 0; c < kColumns; ++c) x[i * kColumns + count(c)] = t[c] + p[c];
  }
  return x;
}

void learn_embedding(learning::Matrix& token, learning::Matrix& position, const std::vector<int>& tokens, int64_t n,
                     const Rows& dx) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (int64_t c = 0; c < kColumns; ++c) {
      const float d = dx[i * kColumns + count(c)];
      token.gradient[count(tokens[i] * kColumns + c)] += d;
      position.gradient[count(static_cast<int64_t>(i) % n * kColumns + c)] += d;
    }
  }
}

/// One layer each, residual connections around every block: y = x + block(x).
struct Model {
  std::mt19937 random;
  learning::Matrix source_token, source_position, target_token, target_position;
  learning::Attention encoder;
  learning::FeedForward encoder_wide;
  learning::Attention decoder, cross;
  learning::FeedForward decoder_wide;
  learning::Matrix logits;

  explicit Model(uint32_t seed)
      : random(seed),
        source_token(kSourceTokens.size(), kColumns, 0.5f, random),
        source_position(kLongest, kColumns, 0.5f, random),
        target_token(static_cast<int64_t>(kTargetTokens.size()), kColumns, 0.5f, random),
        target_position(kTarget, kColumns, 0.5f, random),
        encoder(kHeads, kDim, random),
        encoder_wide(kColumns, kWidth, random),
        decoder(kHeads, kDim, random),
        cross(kHeads, kDim, random),
        decoder_wide(kColumns, kWidth, random),
        logits(static_cast<int64_t>(kTargetTokens.size()), kColumns, 0.3f, random) {}

  /// The rows that the decoder looks at. Padded rows are computed like others; nobody looks at them.
  Rows encode(const Batch& batch) {
    Rows x = embed(source_token, source_position, batch.source, batch.n, 0);
    learning::add(x, encoder.forward(x, x, batch.size, {.kv_length = batch.lengths.data()}));
    learning::add(x, encoder_wide.forward(x));
    return x;
  }

  /// Logits of all characters at once, `inputs` [size, kTarget] given: what training does.
  Rows forward(const Batch& batch, const std::vector<int>& inputs) {
    const Rows source = encode(batch);
    Rows y = embed(target_token, target_position, inputs, kTarget, 0);
    learning::add(y, decoder.forward(y, y, batch.size, {.causal = true}));
    learning::add(y, cross.forward(y, source, batch.size, {.kv_length = batch.lengths.data()}));
    learning::add(y, decoder_wide.forward(y));
    last = y;
    return logits.forward(y);
  }

  void backward(const Batch& batch, const std::vector<int>& inputs, const Rows& dlogits) {
    Rows dy = logits.backward(last, dlogits);
    learning::add(dy, decoder_wide.backward(dy));
    auto [dcross, dsource] = cross.backward(dy);
    learning::add(dy, dcross);
    auto [dq, dkeys] = decoder.backward(dy);
    learning::add(dy, dq);
    learning::add(dy, dkeys);
    learn_embedding(target_token, target_position, inputs, kTarget, dy);
    learning::add(dsource, encoder_wide.backward(dsource));
    auto [sq, skeys] = encoder.backward(dsource);
    learning::add(dsource, sq);
    learning::add(dsource, skeys);
    learn_embedding(source_token, source_position, batch.source, batch.n, dsource);
  }

  void learn(float rate, int64_t step) {
    for (learning::Matrix* m : {&source_token, &source_position, &target_token, &target_position, &encoder_wide.first,
                                &encoder_wide.second, &decoder_wide.first, &decoder_wide.second, &logits}) {
      m->learn(rate, step);
    }
    for (learning::Attention* a : {&encoder, &decoder, &cross}) {
      for (learning::Matrix* m : {&a->wq, &a->wk, &a->wv, &a->wo}) m->learn(rate, step);
    }
  }

  Rows last;
};

/// The decoder's inputs: its own output, one place later.
std::vector<int> inputs_of(const std::vector<std::string>& targets) {
  std::vector<int> inputs;
  for (const std::string& t : targets) {
    inputs.push_back(static_cast<int>(kTargetTokens.find('^')));
    for (size_t i = 0; i + 1 < t.size(); ++i) inputs.push_back(static_cast<int>(kTargetTokens.find(t[i])));
  }
  return inputs;
}

/// One step of training; the mean loss of a character.
float train_step(Model& model, int64_t size, float rate, int64_t step) {
  std::vector<std::string> sources, targets;
  for (int64_t i = 0; i < size; ++i) {
    const Date d = random_date(false, model.random);
    sources.push_back(source_of(d, model.random));
    targets.push_back(target_of(d));
  }
  const Batch batch(sources);
  const std::vector<int> inputs = inputs_of(targets);
  Rows p = model.forward(batch, inputs);
  const int64_t n = size * kTarget, classes = static_cast<int64_t>(kTargetTokens.size());
  check(sa::softmax(sa::view(p.data(), {n, classes}), sa::view(p.data(), {n, classes})));
  float loss = 0;
  for (int64_t i = 0; i < n; ++i) {  // the gradient of a cross entropy: p - 1 at the character that is right
    float& right = p[count(i * classes) + kTargetTokens.find(targets[count(i / kTarget)][count(i % kTarget)])];
    loss -= std::log(right + 1e-30f);
    right -= 1;
  }
  for (float& x : p) x /= static_cast<float>(n);
  model.backward(batch, inputs, p);
  model.learn(rate, step);
  return loss / static_cast<float>(n);
}

// ---- Translation, with caches ---------------------------------------------------------------------------------------

/// Keys in panels and values in rows, of f32 here: with f16 a cached row would not have the bits of training any more.
struct Cache {
  std::vector<std::byte> key_bytes, value_bytes;
  sa::Kv keys, values;

  Cache(int64_t batch, int64_t capacity) {
    const auto store = [&](std::vector<std::byte>& bytes, sa::KvLayout layout) {
      bytes.resize(count(sa::kv_bytes(sa::KvType::kF32, layout, batch, kHeads, capacity, kDim)));
      return sa::contiguous_kv(bytes.data(), sa::KvType::kF32, layout, batch, kHeads, capacity, kDim);
    };
    keys = store(key_bytes, sa::KvLayout::kPanels);
    values = store(value_bytes, sa::KvLayout::kRows);
  }
  /// Rows [batch, n, kColumns], as projections leave them.
  void append(const Rows& k, const Rows& v, const sa::AppendOptions& where) {
    const int64_t n = static_cast<int64_t>(k.size()) / (keys.batch * kColumns);
    const auto rows = [&](const Rows& x) {
      return sa::view(x.data(), {keys.batch, kHeads, n, kDim}, {n * kColumns, kDim, kColumns, 1});
    };
    check(sa::kv_append(rows(k), {}, keys, where));
    check(sa::kv_append(rows(v), {}, values, where));
    keys.length = values.length = std::max(keys.length, where.start + n);
  }
  /// One row for each sequence, [batch, kColumns].
  Rows look_up(const Rows& q, const sa::Scoring& scoring) const {
    Rows out(q.size());
    attend({.q = sa::view(q.data(), {keys.batch, kHeads, 1, kDim}),
            .k = keys,
            .v = values,
            .out = sa::view(out.data(), {keys.batch, kHeads, 1, kDim}),
            .scoring = scoring});
    return out;
  }
};

struct Translation {
  std::vector<std::string> text;
  Rows logits;  // [size, kTarget, classes]
};

/// Greedy, a character of all sequences at a time.
Translation translate(Model& model, const std::vector<std::string>& sources) {
  const Batch batch(sources);
  const Rows source = model.encode(batch);
  Cache cross(batch.size, batch.n), own(batch.size, kTarget);
  cross.append(model.cross.wk.forward(source), model.cross.wv.forward(source), {.counts = batch.lengths.data()});

  const size_t classes = kTargetTokens.size(), size = count(batch.size);
  Translation t{std::vector<std::string>(size), Rows(size * kTarget * classes)};
  std::vector<int> tokens(size, static_cast<int>(kTargetTokens.find('^')));
  for (int64_t at = 0; at < kTarget; ++at) {
    Rows y = embed(model.target_token, model.target_position, tokens, 1, at);
    own.append(model.decoder.wk.forward(y), model.decoder.wv.forward(y), {.start = at});
    learning::add(y, model.decoder.wo.forward(own.look_up(model.decoder.wq.forward(y), {.causal = true})));
    learning::add(
        y, model.cross.wo.forward(cross.look_up(model.cross.wq.forward(y), {.kv_length = batch.lengths.data()})));
    learning::add(y, model.decoder_wide.forward(y));
    const Rows logits = model.logits.forward(y);
    for (size_t b = 0; b < size; ++b) {
      const auto row = logits.begin() + static_cast<std::ptrdiff_t>(b * classes);
      std::copy_n(row, classes, t.logits.begin() + static_cast<std::ptrdiff_t>((b * kTarget + count(at)) * classes));
      tokens[b] = static_cast<int>(std::max_element(row, row + static_cast<std::ptrdiff_t>(classes)) - row);
      t.text[b] += kTargetTokens[count(tokens[b])];
    }
  }
  return t;
}

/// The same logits to the bit: in a padded batch, one by one without padding, and all characters at once without a
/// cache.
bool same_bits(Model& model, const std::vector<std::string>& sources) {
  const Translation together = translate(model, sources);
  const size_t row = kTarget * kTargetTokens.size();
  bool same = true;
  for (size_t b = 0; b < sources.size(); ++b) {
    const Translation alone = translate(model, {sources[b]});
    same = same && std::memcmp(alone.logits.data(), &together.logits[b * row], row * sizeof(float)) == 0;
  }
  const Rows at_once = model.forward(Batch(sources), inputs_of(together.text));
  return same && std::memcmp(at_once.data(), together.logits.data(), at_once.size() * sizeof(float)) == 0;
}

/// Where the decoder looked: a row for each character that it wrote, a column for each token of the source, percent.
/// The fused kernel never holds these weights; `scores` and `masked_softmax` make them.
void print_alignment(Model& model, const std::string& source) {
  const std::string text = translate(model, {source}).text[0];
  model.forward(Batch({source}), inputs_of({text}));
  const learning::Attention& a = model.cross;
  Rows weights(count(kHeads * a.n_q * a.n_kv));
  const auto view = sa::view(weights.data(), {1, kHeads, a.n_q, a.n_kv});
  check(sa::scores(a.view(a.q.data(), a.n_q), a.view(a.k.data(), a.n_kv), view));
  check(sa::masked_softmax(view, view, {.scale = 1.0f}));
  std::printf("\n%s -> %s\n   ", source.c_str(), text.c_str());
  for (const int t : tokens_of(source))
    std::printf(" %5.5s", kSourceTokens[count(t)] == " " ? "_" : kSourceTokens[count(t)].c_str());
  std::printf("\n");
  for (int64_t i = 0; i < a.n_q; ++i) {
    std::printf("  %c", text[count(i)]);
    for (int64_t j = 0; j < a.n_kv; ++j) {
      float sum = 0;  // mean of the heads
      for (int64_t h = 0; h < kHeads; ++h) sum += weights[count((h * a.n_q + i) * a.n_kv + j)] / kHeads;
      if (sum < 0.005f) std::printf("     .");
      else std::printf(" %5.0f", static_cast<double>(sum) * 100);
    }
    std::printf("\n");
  }
}

int run(int argc, char** argv) {
  int64_t steps = 1000, size = 32, seed = 1, wanted = 0;
  std::string date;
  CommandLine line(kUsage);
  line.whole("--steps", &steps, 1, 1000000).whole("--batch", &size, 1, 4096).whole("--seed", &seed, 0, 4294967295);
  line.whole("--accuracy", &wanted, 0, 100).text("--date", &date);
  if (!line.parse(argc, argv).empty()) throw std::runtime_error("it takes options alone\n" + line.usage());
  if (!date.empty()) tokens_of(date);

  Model model(static_cast<uint32_t>(seed));
  const auto start = std::chrono::steady_clock::now();
  float loss = 0;
  for (int64_t step = 1; step <= steps; ++step) {
    const float done = static_cast<float>(step) / static_cast<float>(steps);
    loss += train_step(model, size, 4e-3f * std::min(done * 20, 1 - done) + 1e-5f, step);
    if (step % 100 != 0 && step != steps) continue;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "step %lld of %lld, loss %.4f, %.1f s\n", static_cast<long long>(step),
                 static_cast<long long>(steps), static_cast<double>(loss / static_cast<float>((step - 1) % 100 + 1)),
                 seconds);
    loss = 0;
  }

  std::vector<std::string> sources, targets;
  for (int i = 0; i < 500; ++i) {
    const Date d = random_date(true, model.random);
    sources.push_back(source_of(d, model.random));
    targets.push_back(target_of(d));
  }
  const Translation t = translate(model, sources);
  int right = 0;
  for (size_t i = 0; i < sources.size(); ++i) right += t.text[i] == targets[i];
  std::printf("%d of %zu dates that it never saw are right (%.1f %%)\n", right, sources.size(), right / 5.0);
  const bool same = same_bits(model, {sources.begin(), sources.begin() + 50});
  std::printf("batched with padding, one by one, without a cache: %s\n", same ? "the same bits" : "DIFFERENT BITS");
  if (date.empty()) {
    for (const char* example : {"3 May 1979", "May 31, 1979", "Friday, 13 October 2017"})
      print_alignment(model, example);
  } else {
    print_alignment(model, date);
  }
  if (right < wanted * 5) std::printf("\nfewer than %lld %%\n", static_cast<long long>(wanted));
  return same && right >= wanted * 5 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("encoder_decoder", [&] { return run(argc, argv); });
}
